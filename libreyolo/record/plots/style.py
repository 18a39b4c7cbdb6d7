"""One look for every diagram: quiet axes, colours that colour-blind readers can tell apart, letters readable at a README's width."""

from __future__ import annotations

import io
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from cycler import cycler

from libreyolo.record.atomic import write_bytes

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.axis import Axis
    from matplotlib.figure import Figure

DPI = 120
# Okabe and Ito's palette, the strongest first, without its yellow (too pale for lines) and black (kept for means).
PALETTE = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#7F7F7F")
INK = "#222222"
FAINT = "#B8BFC6"
MAX_LEGEND = 10  # classes named in a legend; more are drawn faint

STYLE: Any = {
    "font.size": 10,
    "axes.titlesize": 11,
    "axes.titleweight": "bold",
    "axes.edgecolor": "#8A8A8A",
    "axes.labelcolor": INK,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": "#E4E7EA",
    "grid.linewidth": 0.8,
    "lines.linewidth": 1.8,
    "legend.frameon": False,
    "legend.fontsize": 9,
    "xtick.color": "#555555",
    "ytick.color": "#555555",
    "text.color": INK,
    "axes.prop_cycle": cycler(color=PALETTE),
}


@contextmanager
def figure(path: Path, width: float, height: float, layout: Literal["constrained", "compressed"] = "constrained") -> Iterator[Figure]:
    """Yield a figure of `width` x `height` inches in the common style; on leaving it is written to `path` and emptied.
    "compressed" suits panels of a fixed aspect.

    Without pyplot: its registry keeps every figure alive, and its backend may want a screen.
    """
    # Here, since a third of a second of imports is no part of a training's start, or of one that draws nothing.
    import matplotlib
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure
    from matplotlib.layout_engine import ConstrainedLayoutEngine

    with matplotlib.rc_context(STYLE), warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Glyph .* missing from")  # a class name in a script that the font lacks
        engine = ConstrainedLayoutEngine(compress=layout == "compressed", w_pad=0.08, h_pad=0.08)  # inches: no letter touches the edge
        drawn = Figure(figsize=(width, height), dpi=DPI, layout=engine)
        canvas = FigureCanvasAgg(drawn)
        yield drawn
        buffer = io.BytesIO()
        canvas.print_png(buffer)
        drawn.clear()
    write_bytes(Path(path), buffer.getvalue())


def unit_axes(axes: Axes, xlabel: str, ylabel: str) -> None:
    """Give both axes the range 0 to 1, with room for a line at 1, and their names."""
    axes.set(xlim=(0, 1), ylim=(0, 1.03), xlabel=xlabel, ylabel=ylabel)


def count_whole(axis: Axis) -> None:
    """Mark an axis at whole numbers only."""
    from matplotlib.ticker import MaxNLocator

    axis.set_major_locator(MaxNLocator(integer=True))


def shorten(name: str, limit: int = 22) -> str:
    """Return a name of at most `limit` letters."""
    return name if len(name) <= limit else name[: limit - 1] + "…"


def count(number: int, one: str, many: str) -> str:
    """Return "1 class" or "80 classes"."""
    return f"{number} {one if number == 1 else many}"


def label(name: str, limit: int = 22) -> str:
    """Return a class's name for a diagram; a dollar sign in it does not start a formula."""
    return shorten(name, limit).replace("$", r"\$")
