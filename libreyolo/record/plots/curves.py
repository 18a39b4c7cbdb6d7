"""How a run went, as one picture: losses, metrics, learning rates and speed against the epoch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from libreyolo.record.numbers import number
from libreyolo.record.plots import style
from libreyolo.record.plots.panels import VALIDATION, Panel, panels_of

if TYPE_CHECKING:
    from matplotlib.axes import Axes

COLUMNS = 3
MAX_DOTS = 30  # values up to which each has a dot


def plot_curves(rows: Sequence[Mapping[str, Any]], path: Path) -> None:
    """Write the diagrams of all rows (as `read_results` gives them), three to a row."""
    panels = panels_of(rows)
    columns = 2 if len(panels) in (2, 4) else COLUMNS
    num_rows = -(-len(panels) // columns)
    with style.figure(path, 4 * columns, 3.9 * num_rows) as figure:
        every = figure.subplots(num_rows, columns, squeeze=False).ravel()
        for axes, panel in zip(every, panels, strict=False):
            _draw(axes, panel)
        for axes in every[len(panels) :]:
            axes.remove()


def _draw(axes: Axes, panel: Panel) -> None:
    axes.set(title=style.label(panel.title, 40), xlabel="epoch")
    style.count_whole(axes.xaxis)
    if not panel.lines:
        axes.text(0.5, 0.5, "nothing yet", transform=axes.transAxes, ha="center", va="center", color="#888888")
        return
    colors: dict[str, str] = {}
    for place, (name, (epochs, values)) in enumerate(panel.lines.items()):
        color = colors.setdefault(name.removesuffix(VALIDATION), style.PALETTE[len(colors) % len(style.PALETTE)])
        # A dot for each value while there are few: a single one would draw no line at all.
        dots = "o" if len(values) <= MAX_DOTS else ""
        dashes = (0, (4, 2)) if panel.is_dashed(name) else "-"
        axes.plot(epochs, values, label=style.label(name, 30), color=color, linestyle=dashes, marker=dots, markersize=3.5, zorder=3 - place / 100)
    if panel.best is not None:
        epoch, value = panel.best
        text = f"best {number(value)} (epoch {epoch})"
        axes.plot([epoch], [value], marker="*", markersize=12, color=style.INK, linestyle="", label=text, zorder=5)
    seen = {epoch for epochs, _ in panel.lines.values() for epoch in epochs}
    if len(seen) == 1:  # or the axis would show fractions of an epoch
        axes.set_xlim(min(seen) - 1, min(seen) + 1)
    if panel.log:
        axes.set_yscale("log")
    else:
        axes.ticklabel_format(axis="y", style="sci", scilimits=(-3, 5), useOffset=False)
    if panel.from_zero:
        axes.update_datalim([(0.0, 0.0)], updatex=False)  # the margin is a share of what is shown: a line that hardly moves stays off the frame
        axes.set_ylim(bottom=0)
    _add_legend(axes, panel)


def _add_legend(axes: Axes, panel: Panel) -> None:
    """Below the diagram, where it covers nothing; a lone line needs none, its title says it."""
    if len(panel.lines) == 1 and panel.best is None:
        return
    if panel.left_out:
        axes.plot([], [], linestyle="", label=f"and {panel.left_out} more")
    axes.legend(loc="upper center", bbox_to_anchor=(0.5, -0.19), ncols=2, handlelength=1.6, columnspacing=1.2)
