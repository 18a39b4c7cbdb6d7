"""The confusion matrix as a picture."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from libreyolo.record.plots import style

if TYPE_CHECKING:
    from matplotlib.axes import Axes

MAX_WITH_SHARE = 12  # classes up to which a cell shows its share and its count
MAX_WITH_COUNT = 40  # up to which it shows a number at all
MAX_WRITTEN = 1_000_000  # a larger count (of pixels, say) would not fit into its cell and is rounded


def draw_confusion(counts: np.ndarray, names: dict[int, str], path: Path) -> None:
    """Write the matrix, [M, M] counts with row = predicted and column = true; colour is a cell's share of its column.

    M is the number of names, or one more: the last row and column are then the background (missed objects and false detections).
    """
    size = len(counts)
    labels = [style.label(names[k], 18) for k in range(len(names))] + ["background"] * (size - len(names))
    columns = counts.sum(axis=0, keepdims=True)
    share = np.divide(counts, columns, out=np.zeros(counts.shape), where=columns > 0)
    cell = 0.75 if size <= MAX_WITH_SHARE else 0.36 if size <= MAX_WITH_COUNT else 0.2  # inches
    side = max(cell * size, 2.6)
    with style.figure(path, side + 2.6, side + 1.8, layout="compressed") as figure:
        axes = figure.subplots()
        axes.grid(False)
        picture = axes.imshow(np.where(counts > 0, share, np.nan), cmap="Blues", vmin=0, vmax=1)
        letters = 9 if size <= MAX_WITH_SHARE else 8 if size <= MAX_WITH_COUNT else 7
        axes.set_xticks(range(size), labels, rotation=90 if size > 5 else 0, fontsize=letters)
        axes.set_yticks(range(size), labels, fontsize=letters)
        axes.set(xlabel="true", ylabel="predicted", title="Confusion: share of each true class (column)")
        axes.tick_params(length=0)
        axes.set_xticks(np.arange(size + 1) - 0.5, minor=True)
        axes.set_yticks(np.arange(size + 1) - 0.5, minor=True)
        axes.grid(which="minor", color="#E4E7EA", linewidth=0.6)
        axes.tick_params(which="minor", length=0)
        if size <= MAX_WITH_COUNT:
            _write_cells(axes, counts, share, labels)
        figure.colorbar(picture, ax=axes, shrink=0.6, aspect=24, pad=0.02).outline.set_visible(False)


def _write_cells(axes: Axes, counts: np.ndarray, share: np.ndarray, labels: Sequence[str]) -> None:
    with_share = len(labels) <= MAX_WITH_SHARE
    for row, column in np.argwhere(counts > 0):
        count = int(counts[row, column])
        text = f"{share[row, column]:.0%}\n{count if count < MAX_WRITTEN else _short(count)}" if with_share else _short(count)
        color = "white" if share[row, column] > 0.55 else style.INK
        axes.text(column, row, text, ha="center", va="center", fontsize=8.5 if with_share else 6.5, color=color)


def _short(count: int) -> str:
    """Return a count of at most four letters (up to 9999G): 123, 12k, 1M."""
    for least, size, letter in ((1_000_000_000, 1_000_000_000, "G"), (1_000_000, 1_000_000, "M"), (10_000, 1000, "k")):
        if count >= least:
            return f"{count // size}{letter}"
    return str(count)
