"""F1, precision and recall against the confidence threshold. K classes, S confidences."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from libreyolo.record.plots import style

if TYPE_CHECKING:
    from matplotlib.axes import Axes

MAX_COLUMNS = 7  # of the legend


def draw_confidence_curves(
    confidence: np.ndarray,
    f1: np.ndarray,
    precision: np.ndarray,
    recall: np.ndarray,
    instances: np.ndarray,
    best_conf: float,
    names: dict[int, str],
    path: Path,
) -> None:
    """Write three panels, each with every class that has truth and their mean; a dashed line marks `best_conf`, where a model is used.

    confidence: [S]. f1, precision, recall: [K, S]. instances: [K] true boxes of each class.
    """
    known = np.flatnonzero(instances > 0)
    # Above the last detection of a class its precision means nothing: it is not drawn as a fall to 0.
    drawn_precision = np.where((precision == 0) & (recall == 0), np.nan, precision)
    with style.figure(path, 12, 4.0) as figure:
        panels = figure.subplots(1, 3)
        for axes, title, table in zip(panels, ("F1", "Precision", "Recall"), (f1, drawn_precision, recall), strict=True):
            _panel(axes, title, confidence, table[known], [names[int(k)] for k in known])
            if len(known):
                axes.axvline(best_conf, color=style.INK, linewidth=1, linestyle=(0, (4, 3)))
        if len(known):
            mean = f1[known].mean(axis=0)
            at = max(int(np.searchsorted(confidence, best_conf, side="right")) - 1, 0)
            panels[0].set_title(f"F1: mean {mean[at]:.2f} at confidence {best_conf:.3f}")
            handles, labels = panels[0].get_legend_handles_labels()
            num_rows = -(-len(labels) // MAX_COLUMNS)
            figure.legend(handles, labels, loc="outside lower center", ncols=-(-len(labels) // num_rows))


def _panel(axes: Axes, title: str, confidence: np.ndarray, table: np.ndarray, names: list[str]) -> None:
    few = len(names) <= style.MAX_LEGEND
    for place, (name, line) in enumerate(zip(names, table, strict=True)):
        color = style.PALETTE[place % len(style.PALETTE)] if few else style.FAINT
        dashes = "-" if place < len(style.PALETTE) or not few else "--"
        axes.plot(confidence, line, color=color, linewidth=1.4 if few else 0.8, linestyle=dashes, label=style.label(name) if few else None)
    if names:
        known = np.isfinite(table)
        count = known.sum(axis=0)
        mean = np.where(count > 0, np.where(known, table, 0.0).sum(axis=0) / np.maximum(count, 1), np.nan)
        axes.plot(confidence, mean, color=style.INK, linewidth=2.6, label=f"mean of {style.count(len(names), 'class', 'classes')}")
    style.unit_axes(axes, "confidence", title.lower() if title != "F1" else "F1")
    axes.set_title(title)
