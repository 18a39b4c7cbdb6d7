"""The pictures of a classifier's run. B pictures of a batch, K classes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from torch import Tensor

from libreyolo.interfaces.events import ValidationEnd
from libreyolo.metrics.classification import NO_GUESS, ClassifySample
from libreyolo.record.plots import style
from libreyolo.record.plots.boxes import Color
from libreyolo.record.plots.captions import INK, Captioned, draw_captioned
from libreyolo.record.plots.confusion import draw_confusion
from libreyolo.record.plots.listener import PictureListener, attempt

if TYPE_CHECKING:
    from matplotlib.axes import Axes

MAX_PICTURES = 16
MAX_CLASSES = 40  # in the confusion matrix and the bars
SHOWN_GUESSES = 2
RIGHT: Color = (0, 120, 80)
WRONG: Color = (190, 60, 0)


class ClassifyValidationPictures(PictureListener):
    """Draws what a classifier's validation holds: confusion matrix and predictions; what the event does not hold is not drawn."""

    validation_pictures = ("confusion.png", "predictions.png")

    def draw_validation(self, event: ValidationEnd) -> None:
        if "confusion" in event.curves:
            counts, names = most_confused(event.curves["confusion"], self.names)
            attempt(self.folder / "confusion.png", lambda path: draw_confusion(counts, names, path))
        samples = [sample for sample in event.samples if isinstance(sample, ClassifySample)]
        if samples:
            attempt(self.folder / "predictions.png", lambda path: draw_guesses(samples, self.names, path))


def most_confused(counts: np.ndarray, names: Mapping[int, str], limit: int = MAX_CLASSES) -> tuple[np.ndarray, dict[int, str]]:
    """Return the rows and columns of the `limit` classes with the most mistakes, in their order, and their names; all where there are not more."""
    if len(names) <= limit:
        return counts, dict(names)
    mistakes = counts.sum(axis=0) + counts.sum(axis=1) - 2 * np.diag(counts)
    chosen = np.sort(np.argsort(-mistakes, kind="stable")[:limit])
    return counts[np.ix_(chosen, chosen)], {place: names[k] for place, k in enumerate(chosen.tolist())}


def draw_guesses(samples: Sequence[ClassifySample], names: Mapping[int, str], path: Path) -> None:
    """Write the pictures, worst mistakes first: the class that is true, and the best guesses with their probabilities."""
    ordered = sorted(samples, key=lambda sample: -sample.mistakes)[:MAX_PICTURES]
    draw_captioned([Captioned(s.image, _guess_lines(s, names)) for s in ordered], path, columns=4)


def _guess_lines(sample: ClassifySample, names: Mapping[int, str]) -> list[tuple[str, Color]]:
    lines: list[tuple[str, Color]] = [(f"true: {names[sample.truth]}   {sample.title}", INK)]
    for label, score in list(zip(sample.guesses.labels.tolist(), sample.guesses.scores.tolist(), strict=True))[:SHOWN_GUESSES]:
        text = "no number" if label == NO_GUESS else f"{names[label]} {score:.2f}"
        lines.append((text, RIGHT if label == sample.truth else WRONG if len(lines) == 1 else INK))
    return lines


def draw_class_batch(images: Tensor, labels: Tensor, shares: Tensor, names: Mapping[int, str], path: Path) -> None:
    """Write up to 16 training pictures with what they are labelled, "cat" or "cat 0.70 + dog 0.30".

    images: [B, 3, H, W] RGB in [0, 1]. labels: [B, 2], shares: [B, 2], as in a ClassifyBatch. All on the CPU.
    """
    drawn = []
    for image, own, parts in list(zip(images, labels.tolist(), shares.tolist(), strict=True))[:MAX_PICTURES]:
        pixels = (image.float().clamp(0, 1) * 255).round().byte().permute(1, 2, 0).contiguous().numpy()
        text = names[own[0]] if parts[0] == 1 or own[0] == own[1] else f"{names[own[0]]} {parts[0]:.2f} + {names[own[1]]} {parts[1]:.2f}"
        drawn.append(Captioned(pixels, [(text, INK)]))
    draw_captioned(drawn, path)


def draw_class_counts(counts: Mapping[str, np.ndarray], sizes: np.ndarray, names: Mapping[int, str], path: Path) -> None:
    """Write two panels: pictures of each class by split, and the sides of the training pictures.

    counts: split -> [K] pictures. sizes: [P, 2] height and width in pixels.
    """
    with style.figure(path, 10, max(3.6, 0.24 * min(len(names), MAX_CLASSES) * len(counts) + 1.4)) as figure:
        classes, sides = figure.subplots(1, 2)
        _draw_bars(classes, counts, names)
        _draw_sizes(sides, sizes)


def _draw_sizes(axes: Axes, sizes: np.ndarray) -> None:
    """A dot for each picture, the fainter the more there are; where all have one size, a large one and the size in words."""
    different = np.unique(sizes, axis=0)
    if len(different) == 1:
        height, width = different[0].tolist()
        drawn, dot, alpha, title = different, 80.0, 1.0, f"All {len(sizes)} training pictures: {width} × {height}"
    else:
        drawn, dot, alpha, title = sizes, 9.0, float(np.clip(300 / max(len(sizes), 1), 0.05, 0.6)), f"Size of {len(sizes)} training pictures"
    axes.scatter(drawn[:, 1], drawn[:, 0], s=dot, alpha=alpha, color=style.PALETTE[1], edgecolors="none")
    axes.set(xlim=(0, None), ylim=(0, None), title=title, xlabel="width in pixels", ylabel="height in pixels")


def _draw_bars(axes: Axes, counts: Mapping[str, np.ndarray], names: Mapping[int, str]) -> None:
    """Bars of the most frequent training classes, the other splits beside them."""
    first = next(iter(counts.values()))
    shown = np.argsort(-first, kind="stable")[:MAX_CLASSES]
    height = 0.8 / len(counts)
    for place, (split, of_split) in enumerate(counts.items()):
        at = np.arange(len(shown)) + (place - (len(counts) - 1) / 2) * height
        axes.barh(at, of_split[shown], height=0.9 * height, color=style.PALETTE[place], label=f"{split}: {int(of_split.sum())}")
        for y, count in zip(at.tolist(), of_split[shown].tolist(), strict=True):
            axes.text(count, y, f" {count}", va="center", fontsize=7)
    axes.set_yticks(range(len(shown)), [style.label(names[int(k)]) for k in shown], fontsize=9 if len(shown) <= 12 else 7)
    axes.invert_yaxis()
    axes.grid(axis="y", visible=False)
    axes.margins(x=0.14)
    axes.legend(loc="upper center", bbox_to_anchor=(0.5, -0.12), ncols=len(counts))
    more = f", the {len(shown)} largest" if len(shown) < len(first) else ""
    axes.set(title=f"Pictures of {len(first)} classes{more}", xlabel="pictures")
