"""How a run went: losses, metrics and learning rates against the epoch, from the rows of results.csv."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator

from libreyolo.record.plots import style

Line = tuple[list[int], list[float]]
# What a task's figure shows of its metrics, most important first; a task with none of them shows its first four.
SHOWN = ("mAP50-95", "mAP50", "precision", "recall", "accuracy_top1", "accuracy_top5", "f1", "mIoU", "pixel_accuracy", "PSNR", "SSIM")
MAX_METRICS = 4
IN_DECIBELS = ("PSNR",)  # drawn on a scale of their own, or the others would be a flat line at the bottom
BESIDE_THE_LOSS = ("psnr",)  # what is reported with the losses and is none


def plot_curves(rows: Sequence[dict[str, Any]], path: Path) -> None:
    """Write the diagram of all rows (as `read_results` gives them); cells without a finite number are skipped."""
    lines = _lines(rows)
    losses = {name.removeprefix("train/").removesuffix("_loss"): line for name, line in lines.items() if name.startswith("train/")}
    losses = {name: line for name, line in losses.items() if name not in BESIDE_THE_LOSS}
    metrics = {name.removeprefix("metrics/"): line for name, line in lines.items() if name.startswith("metrics/")}
    shown = {name: metrics[name] for name in SHOWN if name in metrics} or metrics
    rates = {name.removeprefix("lr/"): line for name, line in lines.items() if name.startswith("lr/")}
    with style.figure(path, 12, 3.7) as figure:
        left, middle, right = figure.subplots(1, 3)
        _panel(left, "Training loss", {("total" if name == "loss" else name): line for name, line in losses.items()})
        _log_if_wide(left, [value for _, values in losses.values() for value in values])
        _draw_metrics(middle, dict(list(shown.items())[:MAX_METRICS]), rows)
        _panel(right, "Learning rate", _merge_equal(rates))
        if rates:
            right.set_ylim(bottom=0)
            right.ticklabel_format(axis="y", style="sci", scilimits=(-3, 3))


def _lines(rows: Sequence[dict[str, Any]]) -> dict[str, Line]:
    lines: dict[str, Line] = {}
    for row in rows:
        for name, value in row.items():
            if isinstance(value, (int, float)) and math.isfinite(value):
                epochs, values = lines.setdefault(name, ([], []))
                epochs.append(int(row["epoch"]))
                values.append(float(value))
    return lines


def _panel(axes: Axes, title: str, lines: dict[str, Line]) -> None:
    axes.set(title=title, xlabel="epoch")
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    for name, (epochs, values) in lines.items():
        # A dot for each value while there are few: a single one would draw no line at all.
        axes.plot(epochs, values, label=name, marker="o" if len(values) <= 30 else "", markersize=3.5)
    epochs_seen = {epoch for epochs, _ in lines.values() for epoch in epochs}
    if len(epochs_seen) == 1:  # or the axis would show fractions of an epoch
        axes.set_xlim(min(epochs_seen) - 1, min(epochs_seen) + 1)
    if lines:
        axes.legend(loc="best")
    else:
        axes.text(0.5, 0.5, "nothing yet", transform=axes.transAxes, ha="center", va="center", color="#888888")


def _draw_metrics(axes: Axes, metrics: dict[str, Line], rows: Sequence[dict[str, Any]]) -> None:
    """Draw the metrics and the best one; beside those in decibels the others have the right-hand scale."""
    decibels = {f"{name}, dB": line for name, line in metrics.items() if name in IN_DECIBELS}
    if not decibels:
        _panel(axes, "Validation", metrics)
        _mark_best(axes, rows)
        return
    _panel(axes, "Validation", decibels)
    _mark_best(axes, rows)
    others = {name: line for name, line in metrics.items() if name not in IN_DECIBELS}
    if others:
        right = axes.twinx()
        right.set_prop_cycle(color=style.PALETTE[len(decibels) :])
        _panel(right, "", others)
        right.set_xlabel("")
        right.grid(False)
        right.spines["right"].set_visible(True)
        handles = [*axes.get_legend_handles_labels()[0], *right.get_legend_handles_labels()[0]]
        right.legend(handles=handles, loc="lower right")
        if (own := axes.get_legend()) is not None:
            own.remove()


def _log_if_wide(axes: Axes, values: list[float]) -> None:
    if values and min(values) > 0 and max(values) / min(values) > 20:
        axes.set_yscale("log")


def _mark_best(axes: Axes, rows: Sequence[dict[str, Any]]) -> None:
    best = next((row for row in reversed(rows) if row.get("best_metric") is not None and row.get("best_epoch")), None)
    if best is None:
        return
    value, epoch = float(best["best_metric"]), int(best["best_epoch"])
    axes.plot([epoch], [value], marker="*", markersize=12, color=style.INK, linestyle="", label=f"best {value:.3f} (epoch {epoch})", zorder=5)
    axes.legend(loc="best")


def _merge_equal(rates: dict[str, Line]) -> dict[str, Line]:
    """Return each different line once, named by all its groups: on top of each other only the last could be seen."""
    merged: list[tuple[list[str], Line]] = []
    for name, line in rates.items():
        same = next((names for names, other in merged if other == line), None)
        if same is None:
            merged.append(([name], line))
        else:
            same.append(name)
    return {", ".join(names): line for names, line in merged}
