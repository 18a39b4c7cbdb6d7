"""What is labelled in a data set. M boxes of all pictures, P pictures."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from libreyolo.record.plots import style

if TYPE_CHECKING:
    from matplotlib.axes import Axes

MAX_BARS = 25
MAX_DOTS = 20_000


def draw_labels(labels: np.ndarray, boxes: np.ndarray, boxes_per_picture: np.ndarray, names: dict[int, str], path: Path) -> None:
    """Write four panels: boxes of each class, where their centres lie, their widths and heights, and how many a picture has.

    labels: [M] class ids. boxes: [M, 4] cxcywh as fractions of the picture. boxes_per_picture: [P] counts, 0 for pictures without any.
    """
    boxes = np.asarray(boxes, np.float64).reshape(-1, 4)
    with style.figure(path, 10, 8) as figure:
        (classes, centres), (sizes, crowding) = figure.subplots(2, 2)
        _draw_classes(classes, np.asarray(labels, np.int64), names)
        _draw_centres(centres, boxes)
        _draw_sizes(sizes, boxes)
        _draw_crowding(crowding, np.asarray(boxes_per_picture))


def _draw_classes(axes: Axes, labels: np.ndarray, names: dict[int, str]) -> None:
    counts = np.bincount(labels, minlength=len(names))
    order = np.argsort(-counts, kind="stable")
    shown = order if len(order) <= MAX_BARS else order[: MAX_BARS - 1]
    bars = [(style.label(names[int(k)]), int(counts[k])) for k in shown]
    if len(shown) < len(order):
        bars.append((f"{len(order) - len(shown)} others", int(counts.sum() - counts[shown].sum())))
    colors = [style.PALETTE[0]] * len(shown) + [style.FAINT] * (len(bars) - len(shown))
    axes.barh(range(len(bars)), [count for _, count in bars], color=colors, height=0.75)
    axes.set_yticks(range(len(bars)), [name for name, _ in bars], fontsize=9 if len(bars) <= 12 else 7)
    axes.invert_yaxis()
    axes.grid(axis="y", visible=False)
    axes.set(title=f"{style.count(len(labels), 'box', 'boxes')} of {style.count(len(names), 'class', 'classes')}", xlabel="boxes")
    for place, (_, count) in enumerate(bars):
        axes.text(count, place, f" {count}", va="center", fontsize=8 if len(bars) <= 12 else 6.5)
    axes.margins(x=0.14)


def _draw_centres(axes: Axes, boxes: np.ndarray) -> None:
    heat, _, _ = np.histogram2d(boxes[:, 1], boxes[:, 0], bins=40, range=[[0, 1], [0, 1]])
    axes.imshow(heat, cmap="Blues", extent=(0, 1, 1, 0), interpolation="nearest", vmin=0, vmax=max(heat.max(), 1))
    axes.grid(False)
    axes.set(title="Where the centres lie", xlabel="x / width", ylabel="y / height")


def _draw_sizes(axes: Axes, boxes: np.ndarray) -> None:
    if len(boxes) > MAX_DOTS:  # a fixed choice of rows, so that the picture is the same each time
        boxes = boxes[np.linspace(0, len(boxes) - 1, MAX_DOTS).astype(np.int64)]
    alpha = float(np.clip(300 / max(len(boxes), 1), 0.05, 0.6))
    axes.scatter(boxes[:, 2], boxes[:, 3], s=7, alpha=alpha, color=style.PALETTE[1], edgecolors="none")
    axes.set_aspect("equal")
    axes.set(xlim=(0, 1.02), ylim=(0, 1.02), title="Size of the boxes", xlabel="width / picture", ylabel="height / picture")


def _draw_crowding(axes: Axes, boxes_per_picture: np.ndarray) -> None:
    most = int(boxes_per_picture.max()) if len(boxes_per_picture) else 0
    step = max(1, -(-(most + 1) // 30))  # whole numbers to a bar
    edges = np.arange(0, most + 1 + step, step) - 0.5
    axes.hist(boxes_per_picture, bins=edges.tolist(), color=style.PALETTE[2], rwidth=0.9)
    style.count_whole(axes.xaxis)
    style.count_whole(axes.yaxis)
    axes.grid(axis="x", visible=False)
    empty = int((boxes_per_picture == 0).sum())
    axes.set(
        title=f"{style.count(len(boxes_per_picture), 'picture', 'pictures')}, {empty} without a box", xlabel="boxes in a picture", ylabel="pictures"
    )
