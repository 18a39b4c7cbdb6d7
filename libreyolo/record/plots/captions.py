"""Pictures side by side with a few words below each."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw

from libreyolo.errors import printable
from libreyolo.record.plots.boxes import Color, fit, font, save
from libreyolo.record.plots.style import shorten

TILE, GAP, LETTERS = 240, 8, 13
LINE = LETTERS + 5
INK: Color = (34, 34, 34)
WHITE: Color = (255, 255, 255)


@dataclass(frozen=True)
class Captioned:
    """A picture, uint8 [H, W, 3] RGB, and the lines below it, each with its colour."""

    image: np.ndarray
    lines: Sequence[tuple[str, Color]]


def draw_captioned(pictures: Sequence[Captioned], path: Path, *, columns: int | None = None) -> None:
    """Write the pictures row by row, each scaled to fit a square tile; `columns` is about the root of their number unless given."""
    columns = min(columns or math.ceil(math.sqrt(len(pictures))) or 1, max(len(pictures), 1))
    rows = max(math.ceil(len(pictures) / columns), 1)
    num_lines = max((len(p.lines) for p in pictures), default=0)
    height = TILE + num_lines * LINE + 4
    sheet = Image.new("RGB", (columns * (TILE + GAP) - GAP, rows * (height + GAP) - GAP), WHITE)
    canvas = ImageDraw.Draw(sheet)
    for i, picture in enumerate(pictures):
        x, y = (i % columns) * (TILE + GAP), (i // columns) * (height + GAP)
        tile, _ = fit(Image.fromarray(np.ascontiguousarray(picture.image)), TILE, TILE)
        sheet.paste(tile, (x + (TILE - tile.width) // 2, y + (TILE - tile.height) // 2))
        for number, (text, color) in enumerate(picture.lines):
            canvas.text((x + 2, y + TILE + 2 + number * LINE), shorten(printable(text), 34), fill=color, font=font(LETTERS))
    save(sheet, Path(path))
