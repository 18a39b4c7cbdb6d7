"""Precision against recall at IoU .5. K classes, R recall levels."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from libreyolo.record.plots import style


def draw_pr_curve(recall: np.ndarray, precision: np.ndarray, ap50: np.ndarray, names: dict[int, str], path: Path) -> None:
    """Write the curve of every class with truth and their mean.

    recall: [R] in [0, 1]. precision: [K, R]; -1 in the rows of classes without truth. ap50: [K]; -1 without truth.
    """
    known = np.flatnonzero(ap50 >= 0)
    few = len(known) <= style.MAX_LEGEND
    with style.figure(path, 7.6 if few else 6, 4.6) as figure:
        axes = figure.subplots()
        for place, k in enumerate(known):
            color = style.PALETTE[place % len(style.PALETTE)] if few else style.FAINT
            label = f"{style.label(names[int(k)])} {ap50[k]:.3f}" if few else None
            dashes = "-" if place < len(style.PALETTE) or not few else "--"
            axes.plot(recall, precision[k], color=color, linewidth=1.4 if few else 0.8, linestyle=dashes, label=label)
        if len(known):
            text = f"mean of {style.count(len(known), 'class', 'classes')} {ap50[known].mean():.3f}"
            axes.plot(recall, precision[known].mean(axis=0), color=style.INK, linewidth=2.6, label=text)
            place_legend = {"loc": "center left", "bbox_to_anchor": (1.01, 0.5)} if few else {"loc": "lower left"}
            axes.legend(title="AP50", **place_legend)
        else:
            axes.text(0.5, 0.5, "no labelled object", transform=axes.transAxes, ha="center", va="center", color="#888888")
        style.unit_axes(axes, "recall", "precision")
        axes.set_title("Precision and recall at IoU 0.5")
