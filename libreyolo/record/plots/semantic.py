"""The pictures of a segmenter's data and validation. B pictures of a batch, K classes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from PIL import Image, ImageDraw
from torch import Tensor

from libreyolo.interfaces.events import ValidationEnd
from libreyolo.metrics.semantic import SemanticSample
from libreyolo.ops.pixels import IGNORED
from libreyolo.record.plots import style
from libreyolo.record.plots.boxes import fit, font, save
from libreyolo.record.plots.confusion import draw_confusion
from libreyolo.record.plots.listener import PictureListener, attempt
from libreyolo.record.plots.masks import fit_mask, legend, overlay

if TYPE_CHECKING:
    from matplotlib.axes import Axes

MAX_PICTURES, SHEET = 16, 1280
TILE, GAP, HEAD = 320, 6, 22
MAX_BARS = 40
WRONG = (220, 30, 30)


class SemanticValidationPictures(PictureListener):
    """Draws the confusion matrix, the IoU of every class, and predictions beside the truth."""

    validation_pictures = ("confusion.png", "iou.png", "predictions.png")

    def draw_validation(self, event: ValidationEnd) -> None:
        curves = event.curves
        if "confusion" in curves:
            attempt(self.folder / "confusion.png", lambda path: draw_confusion(curves["confusion"].T, self.names, path))
        if "per_class" in curves:
            attempt(self.folder / "iou.png", lambda path: draw_ious(curves["per_class"], path))
        samples = [sample for sample in event.samples if isinstance(sample, SemanticSample)]
        if samples:
            attempt(self.folder / "predictions.png", lambda path: draw_predictions(samples, self.names, path))


def draw_batch(images: Tensor, masks: Tensor, names: dict[int, str], path: Path) -> None:
    """Write a sheet of up to 16 pictures as the network sees them, classes painted over, with a legend.

    images: [B, 3, H, W] RGB in [0, 1]. masks: uint8 [B, H, W]. Both on the CPU.
    """
    num = min(len(images), MAX_PICTURES)
    columns = max(math.ceil(math.sqrt(num)), 1)
    tile_w = (SHEET - (columns - 1) * GAP) // columns
    tile_h = max(round(tile_w * images.shape[-2] / images.shape[-1]), 1)
    rows = max(math.ceil(num / columns), 1)
    key = legend(SHEET, np.unique(masks[:num].numpy()).tolist(), names)
    sheet = Image.new("RGB", (SHEET, rows * (tile_h + GAP) + key.height), "white")
    for i in range(num):
        pixels = (images[i].float().clamp(0, 1) * 255).round().byte().permute(1, 2, 0).contiguous().numpy()
        tile, _ = fit(Image.fromarray(overlay(pixels, masks[i].numpy(), strength=0.25, faded=False)), tile_w, tile_h)
        sheet.paste(tile, ((i % columns) * (tile_w + GAP), (i // columns) * (tile_h + GAP)))
    sheet.paste(key, (0, rows * (tile_h + GAP)))
    save(sheet, Path(path))


def draw_predictions(samples: Sequence[SemanticSample], names: dict[int, str], path: Path) -> None:
    """Write a row for each sample, the worst mistakes first: the picture, its truth, its prediction, and in red where they differ."""
    chosen = sorted(samples, key=lambda sample: -sample.mistakes)
    tile_h = max(min(round(TILE * s.image.shape[0] / s.image.shape[1]), TILE) for s in chosen)
    width = 4 * TILE + 3 * GAP
    present = np.unique(np.concatenate([part.reshape(-1) for s in chosen for part in (s.truth, s.predicted)]))
    key = legend(width, present.tolist(), names)
    sheet = Image.new("RGB", (width, len(chosen) * (tile_h + HEAD) + key.height + GAP), "white")
    pen = ImageDraw.Draw(sheet)
    for row, sample in enumerate(chosen):
        top = row * (tile_h + HEAD)
        titles = (style.shorten(sample.title, 36), "truth", "predicted", f"wrong: {100 * sample.mistakes:.1f} % of the labelled pixels")
        for column, (title, tile) in enumerate(zip(titles, _tiles(sample, tile_h), strict=True)):
            left = column * (TILE + GAP)
            pen.text((left + 2, top + 3), title, fill=(34, 34, 34), font=font(12))
            sheet.paste(tile, (left + (TILE - tile.width) // 2, top + HEAD))
    sheet.paste(key, (0, sheet.height - key.height))
    save(sheet, Path(path))


def _tiles(sample: SemanticSample, tile_h: int) -> list[Image.Image]:
    tile, _ = fit(Image.fromarray(np.ascontiguousarray(sample.image)), TILE, tile_h)
    picture = np.asarray(tile)
    hw = (picture.shape[0], picture.shape[1])
    truth, predicted = fit_mask(sample.truth, hw), fit_mask(sample.predicted, hw)
    grey = np.repeat(picture.mean(axis=2, keepdims=True), 3, axis=2) * 0.6 + 80
    grey[(truth != predicted) & (truth != IGNORED)] = WRONG
    painted = (picture, overlay(picture, truth), overlay(picture, predicted), grey.round().astype(np.uint8))
    return [Image.fromarray(pixels) for pixels in painted]


def draw_ious(rows: Sequence[dict[str, Any]], path: Path) -> None:
    """Write the IoU of every class as bars, the best first; a class that occurs nowhere has none."""
    known = sorted((row for row in rows if row["IoU"] >= 0), key=lambda row: -row["IoU"])
    shown = known if len(known) <= MAX_BARS else [*known[: MAX_BARS // 2], *known[-MAX_BARS // 2 :]]
    mean = float(np.mean([row["IoU"] for row in known])) if known else 0.0
    title = f"IoU of {len(known)} classes, mean {mean:.3f}" + (f" (the best and the worst {MAX_BARS // 2})" if len(shown) < len(known) else "")
    with style.figure(path, 8, max(2.2, 0.3 * len(shown) + 1.2)) as figure:
        axes = figure.subplots()
        _bars(axes, [row["name"] for row in shown], [row["IoU"] for row in shown], [f"{row['IoU']:.3f}" for row in shown])
        axes.set(xlim=(0, 1.12), title=title, xlabel="IoU")


def draw_classes(pixels: np.ndarray, pictures: np.ndarray, num_pictures: int, names: dict[int, str], path: Path) -> None:
    """Write two panels: the share of each class of the labelled pixels, and of the pictures.

    pixels, pictures: int64 [K + 1], pixels of each class, pictures that have any; the last of ignored pixels.
    """
    labelled, ignored = int(pixels[:-1].sum()), int(pixels[-1])
    order = np.argsort(-pixels[:-1], kind="stable")[:MAX_BARS]
    labels = [names[int(k)] for k in order]
    share = pixels[order] / max(labelled, 1)
    seen = pictures[order] / max(num_pictures, 1)
    more = len(names) - len(order)
    with style.figure(path, 11, max(2.6, 0.3 * len(order) + 1.4)) as figure:
        left, right = figure.subplots(1, 2)
        _bars(left, labels, share.tolist(), [f"{100 * s:.2g} %" for s in share])
        first = f"{len(names)} classes" + (f", the {len(order)} largest" if more else "")
        left.set(title=f"{first}; {100 * ignored / max(labelled + ignored, 1):.2g} % ignored", xlabel="share of the labelled pixels", xlim=(0, 1.15))
        _bars(right, labels, seen.tolist(), [str(int(n)) for n in pictures[order]])
        right.set(title=f"{num_pictures} pictures", xlabel="share of the pictures that have the class", xlim=(0, 1.15))


def _bars(axes: Axes, labels: Sequence[str], lengths: Sequence[float], texts: Sequence[str]) -> None:
    small = 9 if len(labels) <= 12 else 7
    axes.barh(range(len(labels)), list(lengths), color=style.PALETTE[0], height=0.72)
    axes.set_yticks(range(len(labels)), [style.label(name) for name in labels], fontsize=small)
    axes.invert_yaxis()
    axes.grid(axis="y", visible=False)
    for place, (length, text) in enumerate(zip(lengths, texts, strict=True)):
        axes.text(length, place, f" {text}", va="center", fontsize=small - 1)
