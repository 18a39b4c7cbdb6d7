"""The pictures of a point network: a training batch with its cells, and a validation."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from torch import Tensor

from libreyolo.interfaces.events import ValidationEnd
from libreyolo.metrics.point_pictures import PointSample
from libreyolo.record.plots.boxes import class_color
from libreyolo.record.plots.confusion import draw_confusion
from libreyolo.record.plots.dots import Dot, draw_dots
from libreyolo.record.plots.f1_curve import draw_confidence_curves
from libreyolo.record.plots.listener import PictureListener, attempt
from libreyolo.record.plots.pairs import MAX_PAIRS, Pair, draw_pairs
from libreyolo.record.plots.train_batch import draw_batch


class PointValidationPictures(PictureListener):
    """Draws what a validation holds: curves, confusion matrix and points; what the event does not hold is not drawn."""

    validation_pictures = ("f1_curve.png", "confusion.png", "predictions.png")

    def draw_validation(self, event: ValidationEnd) -> None:
        curves, folder = event.curves, self.folder
        if "confidence" in curves:
            tables = {key: curves[key] for key in ("confidence", "f1", "precision", "recall", "instances", "best_conf")}
            attempt(folder / "f1_curve.png", lambda path: draw_confidence_curves(**tables, names=self.names, path=path))
        if "confusion" in curves:
            attempt(folder / "confusion.png", lambda path: draw_confusion(curves["confusion"], self.names, path))
        samples = [sample for sample in event.samples if isinstance(sample, PointSample)]
        if samples:
            attempt(folder / "predictions.png", lambda path: draw_points(samples, self.names, path))


def draw_points(samples: Sequence[PointSample], names: dict[int, str], path: Path, *, max_samples: int = MAX_PAIRS) -> None:
    """Write up to `max_samples` pairs, two to a row: crosses at the true centres on the left, dots where the network sees an object on the right.

    Pairs with the worst mistakes come first. What went wrong is drawn larger and named: "missed", "false", or the true class.
    """
    draw_pairs([_pair(sample, names) for sample in samples], path, max_pairs=max_samples)


def draw_cells(images: Tensor, grid: Tensor, stride: int, names: dict[int, str], path: Path) -> None:
    """Write a sheet of up to 16 training pictures with the cells that hold an object.

    images: [B, 3, H, W] RGB in [0, 1]. grid: int64 [B, h, w], 0 for background, else 1 + class id. stride: side of a cell in pixels.
    """
    most = max(1, int((grid > 0).flatten(1).sum(dim=1).max()))
    boxes, labels, valid = images.new_zeros(len(grid), most, 4), grid.new_zeros(len(grid), most), grid.new_zeros(len(grid), most).bool()
    for i, cells in enumerate(grid):
        rows, columns = cells.nonzero(as_tuple=True)
        corners = stride * Tensor([[x, y, x + 1, y + 1] for x, y in zip(columns.tolist(), rows.tolist(), strict=True)]).reshape(-1, 4)
        boxes[i, : len(rows)], labels[i, : len(rows)], valid[i, : len(rows)] = corners, cells[rows, columns] - 1, True
    draw_batch(images, boxes, labels, valid, names, path)


def _pair(sample: PointSample, names: dict[int, str]) -> Pair:
    return Pair(
        sample.image,
        truth=lambda tile, scale: draw_dots(tile, _true_dots(sample, names, scale)),
        found=lambda tile, scale: draw_dots(tile, _found_dots(sample, names, scale)),
        title=sample.title,
        word="found",
        mistakes=sample.mistakes,
    )


def _true_dots(sample: PointSample, names: dict[int, str], scale: float) -> list[Dot]:
    rows = zip((sample.truth_xy * scale).tolist(), sample.truth_labels.tolist(), sample.missed.tolist(), strict=True)
    return [Dot((x, y), f"{names[k]}: missed" if missed else names[k], class_color(k), True, missed) for (x, y), k, missed in rows]


def _found_dots(sample: PointSample, names: dict[int, str], scale: float) -> list[Dot]:
    dots = []
    columns = ((sample.xy * np.float32(scale)).tolist(), sample.labels.tolist(), sample.scores.tolist(), sample.is_class.tolist())
    for (x, y), label, score, true in zip(*columns, strict=True):
        reason = "" if true == label else ": false" if true < 0 else f": is {names[true]}"
        dots.append(Dot((x, y), f"{names[label]} {score:.2f}{reason}", class_color(label), False, bool(reason)))
    return dots
