"""Tables that a reader can sort where scripts run, and read where they don't."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from libreyolo.record.numbers import number
from libreyolo.record.report.html import Markup, element

MANY = 30  # rows from which a table scrolls in its frame, its titles in sight


@dataclass(frozen=True)
class Cell:
    """What a cell shows, and the number it is sorted by (None: its text)."""

    shown: Any
    value: float | None = None


def table(
    head: Sequence[Any], rows: Sequence[Sequence[Any]], *, marked: int | None = None, sortable: bool = True, class_: str | None = None
) -> Markup:
    """Return a table in a frame of its own that scrolls where the window is too narrow; nothing where there is no row.

    Numbers are written short and aligned, None is a dash. `marked` is the place of a row to be emphasised.
    """
    if not rows:
        return Markup("")
    cells = [[_cell(value) for value in row] for row in rows]
    numeric = [all(row[i].value is not None or row[i].shown is None for row in cells) for i in range(len(head))]
    titles = [element("th", title, scope="col", class_="num" if right else None) for title, right in zip(head, numeric, strict=True)]
    body = [
        element("tr", [_column(cell, right) for cell, right in zip(row, numeric, strict=True)], class_="marked" if place == marked else None)
        for place, row in enumerate(cells)
    ]
    kinds = " ".join(filter(None, ["sortable" if sortable and len(rows) > 1 else "", class_ or ""]))
    whole = element("table", element("thead", element("tr", titles)), element("tbody", body), class_=kinds or None)
    return element("div", whole, class_="scroll tall" if len(rows) > MANY else "scroll", tabindex="0")


def _cell(value: Any) -> Cell:
    if isinstance(value, Cell):
        return value
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        return Cell(number(value), float(value)) if math.isfinite(value) else Cell(None)
    return Cell(value)


def _column(cell: Cell, right: bool) -> Markup:
    shown = number(None) if cell.shown is None else cell.shown
    return element("td", shown, class_="num" if right else None, data_value=cell.value)
