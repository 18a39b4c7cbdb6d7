"""A diagram as SVG inside the page: it takes the page's colours, light or dark, and its lines say their values."""

from __future__ import annotations

import json
from collections.abc import Sequence

from libreyolo.record.numbers import number
from libreyolo.record.plots.panels import VALIDATION, Line, Panel
from libreyolo.record.report.axes import Axis, linear, logarithmic
from libreyolo.record.report.html import Markup, element

WIDTH, HEIGHT = 460, 250
LEFT, RIGHT, TOP, BOTTOM = 54, 14, 10, 36
MAX_DOTS = 60  # values up to which each has a dot that tells it
NUM_COLORS = 7


def line_chart(panel: Panel) -> Markup:
    """Return a figure with title, diagram and legend; one that says so where there is nothing to draw."""
    title = element("figcaption", panel.title)
    if not panel.lines:
        return element("figure", title, element("p", "Nothing yet.", class_="none"), class_="chart")
    points = [value for _, values in panel.lines.values() for value in values]
    across = linear([float(epoch) for epochs, _ in panel.lines.values() for epoch in epochs], whole=True)
    up = logarithmic(points) if panel.log else linear(points, from_zero=panel.from_zero)
    colors = _colors(panel)
    # The most important line last: no other hides it.
    drawn = [_line(name, line, across, up, colors[name], dashed=panel.is_dashed(name)) for name, line in reversed(panel.lines.items())]
    star = _star(panel.best, across, up) if panel.best is not None and up.low <= panel.best[1] <= up.high else None
    read = element("line", class_="cursor", y1=TOP, y2=HEIGHT - BOTTOM)
    picture = element(
        "svg",
        element("title", f"{panel.title} against the epoch"),
        _frame(across, up),
        *drawn,
        star,
        read,
        viewBox=f"0 0 {WIDTH} {HEIGHT}",
        role="img",
        data_lines=json.dumps([{"name": name, "x": epochs, "y": values} for name, (epochs, values) in panel.lines.items()]),
        data_range=json.dumps([across.low, across.high, LEFT, WIDTH - RIGHT]),
    )
    return element("figure", title, picture, _legend(panel, colors), class_="chart")


def _colors(panel: Panel) -> dict[str, int]:
    """Return a colour's number for each line; a validation loss has that of its training loss."""
    numbers: dict[str, int] = {}
    return {name: numbers.setdefault(name.removesuffix(VALIDATION), len(numbers) % NUM_COLORS) for name in panel.lines}


def _x(across: Axis, epoch: float) -> float:
    return round(LEFT + across.share(epoch) * (WIDTH - LEFT - RIGHT), 1)


def _y(up: Axis, value: float) -> float:
    return round(HEIGHT - BOTTOM - up.share(value) * (HEIGHT - TOP - BOTTOM), 1)


def _frame(across: Axis, up: Axis) -> Sequence[Markup]:
    """Grid and numbers."""
    parts = []
    for tick in up.ticks:
        y = _y(up, tick)
        parts.append(element("line", x1=LEFT, x2=WIDTH - RIGHT, y1=y, y2=y, class_="grid"))
        parts.append(element("text", f"{tick:g}", x=LEFT - 6, y=y + 4, text_anchor="end"))
    for tick in across.ticks:
        parts.append(element("text", f"{tick:g}", x=_x(across, tick), y=HEIGHT - BOTTOM + 17, text_anchor="middle"))
    parts.append(element("line", x1=LEFT, x2=WIDTH - RIGHT, y1=HEIGHT - BOTTOM, y2=HEIGHT - BOTTOM, class_="axis"))
    parts.append(element("text", "epoch", x=(LEFT + WIDTH - RIGHT) / 2, y=HEIGHT - 4, text_anchor="middle", class_="name"))
    return parts


def _line(name: str, line: Line, across: Axis, up: Axis, color: int, *, dashed: bool) -> Markup:
    epochs, values = line
    places = [(_x(across, epoch), _y(up, value)) for epoch, value in zip(epochs, values, strict=True)]
    path = element("polyline", points=" ".join(f"{x},{y}" for x, y in places), class_="dashed" if dashed else None)
    dots = [
        element("circle", element("title", f"{name} {number(value)}, epoch {epoch}"), cx=x, cy=y, r=2.4)
        for (x, y), epoch, value in zip(places, epochs, values, strict=True)
        if len(values) <= MAX_DOTS
    ]
    return element("g", path, dots, class_=f"line c{color}")


def _star(best: tuple[int, float], across: Axis, up: Axis) -> Markup | None:
    epoch, value = best
    if not across.low <= epoch <= across.high:
        return None
    title = element("title", f"best: {number(value)}, epoch {epoch}")
    return element("circle", title, cx=_x(across, epoch), cy=_y(up, value), r=6, class_="best")


def _legend(panel: Panel, colors: dict[str, int]) -> Markup:
    entries = []
    for name, (_, values) in panel.lines.items():
        mark = element("span", class_=f"mark c{colors[name]}{' dashed' if panel.is_dashed(name) else ''}", aria_hidden="true")
        entries.append(element("li", mark, element("span", name), " ", element("b", number(values[-1]), class_="now")))
    if panel.best is not None:
        entries.append(
            element("li", element("span", class_="mark best", aria_hidden="true"), f"best {number(panel.best[1])} (epoch {panel.best[0]})")
        )
    if panel.left_out:
        entries.append(element("li", f"and {panel.left_out} more below"))
    return element("ul", entries, class_="legend")
