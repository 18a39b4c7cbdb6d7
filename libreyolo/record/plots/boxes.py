"""Boxes with names, drawn on pictures."""

from __future__ import annotations

import colorsys
import io
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw, ImageFont

from libreyolo.record.atomic import write_bytes

Color = tuple[int, int, int]
Box = tuple[float, float, float, float]  # xyxy
# Bright enough for dark pictures: Okabe and Ito's palette without its black.
CLASS_COLORS: tuple[Color, ...] = (
    (86, 180, 233),
    (230, 159, 0),
    (0, 158, 115),
    (213, 94, 0),
    (204, 121, 167),
    (240, 228, 66),
    (0, 114, 178),
)


@dataclass(frozen=True)
class Mark:
    """One box to draw: xyxy in pixels of the picture, what to write at it, its colour, and whether it deserves attention."""

    box: Box
    text: str
    color: Color
    strong: bool = False


def class_color(label: int) -> Color:
    """Return a class's colour, the same in every picture."""
    if label < len(CLASS_COLORS):
        return CLASS_COLORS[label]
    hue = (label * 0.618034) % 1.0  # golden ratio: neighbours in number are far apart in hue
    red, green, blue = colorsys.hsv_to_rgb(hue, 0.65, 0.95)
    return round(255 * red), round(255 * green), round(255 * blue)


@lru_cache(maxsize=8)
def font(size: int) -> ImageFont.FreeTypeFont:
    """Return matplotlib's own font: the same letters on every machine."""
    import matplotlib  # dear to import, and only what draws needs it

    return ImageFont.truetype(str(Path(matplotlib.get_data_path()) / "fonts" / "ttf" / "DejaVuSans.ttf"), size)


def draw_marks(picture: Image.Image, marks: Sequence[Mark], *, letters: int = 12) -> None:
    """Draw boxes on an RGB picture in place, strong ones over the others; names go near their box, inside the picture, and cover no other name."""
    marks = [replace(mark, text=_within(mark.text, picture.width - 6, letters)) for mark in marks]
    canvas = ImageDraw.Draw(picture)
    for mark in sorted(marks, key=lambda mark: mark.strong):
        x1, y1, x2, y2 = mark.box
        box = (min(x1, x2), min(y1, y2), max(x1, x2), max(y1, y2))
        canvas.rectangle(box, outline=mark.color, width=3 if mark.strong else 2)
    draw_names(picture, [(mark.box[0], mark.box[1], mark.text, mark.color) for mark in sorted(marks, key=lambda mark: not mark.strong)], letters)


def draw_names(picture: Image.Image, names: Sequence[tuple[float, float, str, Color]], letters: int = 12) -> None:
    """Write names (x, y, text, colour) above their places in an RGB picture, inside it.

    One that would cover an earlier one goes a line below or above it; where that is covered too, it is left out.
    """
    canvas = ImageDraw.Draw(picture)
    width, height = picture.size
    placed: list[Box] = []
    for left_x, top_y, text, color in names:
        if not text:
            continue
        left, top, right, bottom = canvas.textbbox((0, 0), text, font=font(letters))
        wide, tall = right - left + 6, bottom - top + 5
        x = float(np.clip(left_x, 0, max(width - wide, 0)))
        y = top_y - tall if top_y >= tall else top_y
        y = float(np.clip(y, 0, max(height - tall, 0)))
        plates = [(x, y + shift, x + wide, y + shift + tall) for shift in (0, tall + 1, -tall - 1) if 0 <= y + shift <= max(height - tall, 0)]
        plate = next((plate for plate in plates if not any(_meet(plate, other) for other in placed)), None)
        if plate is None:
            continue
        placed.append(plate)
        y = plate[1]
        canvas.rectangle(plate, fill=color)
        canvas.text((x + 3 - left, y + 2 - top), text, fill=_ink_on(color), font=font(letters))


def _meet(plate: Box, other: Box) -> bool:
    return plate[0] < other[2] and other[0] < plate[2] and plate[1] < other[3] and other[1] < plate[3]


def _ink_on(color: Color) -> Color:
    """Return black or white, whichever reads better on `color` (Rec. 601 luma)."""
    luma = 0.299 * color[0] + 0.587 * color[1] + 0.114 * color[2]
    return (0, 0, 0) if luma > 130 else (255, 255, 255)


def fit(picture: Image.Image, width: int, height: int) -> tuple[Image.Image, float]:
    """Return the picture scaled (up or down) to fit `width` x `height` with its aspect ratio, and the scale."""
    scale = min(width / picture.width, height / picture.height)
    size = (max(round(picture.width * scale), 1), max(round(picture.height * scale), 1))
    return picture.resize(size, Image.Resampling.BILINEAR), scale


def _within(text: str, width: int, letters: int) -> str:
    """Return a text that is at most `width` pixels long, its end cut off where it must be."""
    if font(letters).getlength(text) <= width:
        return text
    kept = next((n for n in range(len(text) - 1, 0, -1) if font(letters).getlength(text[:n] + "…") <= width), 0)
    return text[:kept] + "…"


def save(picture: Image.Image, path: Path) -> None:
    """Write a picture in one step, in the format of its suffix."""
    buffer = io.BytesIO()
    kind = "JPEG" if path.suffix.lower() in (".jpg", ".jpeg") else "PNG"
    picture.save(buffer, kind, quality=92) if kind == "JPEG" else picture.save(buffer, kind)
    write_bytes(path, buffer.getvalue())
