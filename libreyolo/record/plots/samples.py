"""A page of a data set's pictures with what is labelled in them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from PIL import Image, ImageDraw

from libreyolo.errors import printable
from libreyolo.record.plots.boxes import Mark, draw_marks, fit, font, save
from libreyolo.record.plots.style import shorten

COLUMNS, TILE, GAP, HEAD = 4, 320, 6, 20


def draw_samples(samples: Sequence[tuple[Image.Image, Sequence[Mark], str]], path: Path) -> None:
    """Write a PNG with four pictures to a row; each sample is an RGB picture, marks in its pixels, and a title."""
    columns = min(COLUMNS, max(len(samples), 1))
    rows = max(-(-len(samples) // columns), 1)
    sheet = Image.new("RGB", (columns * (TILE + GAP) - GAP, rows * (TILE + HEAD + GAP) - GAP), "white")
    canvas = ImageDraw.Draw(sheet)
    for place, (picture, marks, title) in enumerate(samples):
        x, y = (place % columns) * (TILE + GAP), (place // columns) * (TILE + HEAD + GAP)
        canvas.text((x + 2, y + 2), shorten(printable(title), 44), fill=(34, 34, 34), font=font(12))
        tile, scale = fit(picture, TILE, TILE)
        draw_marks(tile, [Mark((b[0] * scale, b[1] * scale, b[2] * scale, b[3] * scale), m.text, m.color) for m in marks for b in (m.box,)])
        sheet.paste(tile, (x + (TILE - tile.width) // 2, y + HEAD + (TILE - tile.height) // 2))
    save(sheet, path)
