"""Points with names, drawn on pictures."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from PIL import Image, ImageDraw

from libreyolo.record.plots.boxes import Color, draw_names

DARK = (20, 20, 20)


@dataclass(frozen=True)
class Dot:
    """One point to draw: xy in pixels of the picture, what to write at it, its colour, a cross instead of a dot, whether it deserves attention."""

    xy: tuple[float, float]
    text: str
    color: Color
    cross: bool = False
    strong: bool = False


def draw_dots(picture: Image.Image, dots: Sequence[Dot], *, letters: int = 12) -> None:
    """Draw dots and crosses on an RGB picture in place, each with a dark rim; names stand above them, where they cover no other name."""
    canvas = ImageDraw.Draw(picture)
    size = max(3.0, min(picture.size) / 80)
    for dot in dots:
        reach = size * (1.6 if dot.strong else 1.0)
        (_cross if dot.cross else _disc)(canvas, dot, reach)
    ordered = sorted(dots, key=lambda dot: not dot.strong)
    draw_names(picture, [(dot.xy[0] + size, dot.xy[1] - size, dot.text, dot.color) for dot in ordered], letters)


def _disc(canvas: ImageDraw.ImageDraw, dot: Dot, reach: float) -> None:
    x, y = dot.xy
    canvas.ellipse((x - reach, y - reach, x + reach, y + reach), fill=dot.color, outline=DARK)


def _cross(canvas: ImageDraw.ImageDraw, dot: Dot, reach: float) -> None:
    x, y = dot.xy
    for color, width in ((DARK, 5), (dot.color, 3)):
        canvas.line((x - reach, y - reach, x + reach, y + reach), fill=color, width=width)
        canvas.line((x - reach, y + reach, x + reach, y - reach), fill=color, width=width)
