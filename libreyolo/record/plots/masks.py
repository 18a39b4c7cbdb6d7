"""Classes of pixels, painted over pictures. H W the picture, h w a mask of its shape, perhaps not of its size."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from PIL import Image, ImageDraw

from libreyolo.ops.pixels import IGNORED
from libreyolo.record.plots.boxes import class_color, font
from libreyolo.record.plots.style import shorten

STRENGTH = 0.5
IGNORED_COLOR = (40, 40, 40)
LINE, SWATCH, SPACE = 20, 12, 8


def overlay(picture: np.ndarray, mask: np.ndarray, *, strength: float = STRENGTH, faded: bool = True) -> np.ndarray:
    """Return the picture uint8 [H, W, 3] with the colour of its class over every pixel (dark where ignored), and a line between classes.

    faded: take most of the picture's own colour out first, so that it is not mistaken for that of a class.
    """
    fitted = fit_mask(mask, (picture.shape[0], picture.shape[1]))
    if faded:
        picture = 0.25 * picture + 0.75 * picture.mean(axis=2, keepdims=True)
    colors = np.array([class_color(k) for k in range(IGNORED)] + [IGNORED_COLOR], np.float32)
    mixed = (1 - strength) * picture + strength * colors[fitted]
    mixed[_borders(fitted)] = colors[fitted][_borders(fitted)]
    return mixed.round().astype(np.uint8)


def fit_mask(mask: np.ndarray, hw: tuple[int, int]) -> np.ndarray:
    """Return a mask at another size, each pixel the nearest one's class."""
    return np.asarray(Image.fromarray(mask).resize((hw[1], hw[0]), Image.Resampling.NEAREST))


def _borders(mask: np.ndarray) -> np.ndarray:
    """Return which pixels have another class to the right or below, bool [H, W]."""
    found = np.zeros(mask.shape, bool)
    found[:, :-1] |= mask[:, :-1] != mask[:, 1:]
    found[:-1] |= mask[:-1] != mask[1:]
    return found


def legend(width: int, classes: Sequence[int], names: dict[int, str]) -> Image.Image:
    """Return a white strip, as many lines high as it needs, with a colour and a name for each class; 255 is "ignored"."""
    places, x, line = [], SPACE, 0
    for label in classes:
        name = "ignored" if label == IGNORED else shorten(names[label], 26)
        length = SWATCH + 4 + round(font(12).getlength(name)) + 2 * SPACE
        if x > SPACE and x + length > width:
            x, line = SPACE, line + 1
        places.append((x, line, label, name))
        x += length
    strip = Image.new("RGB", (width, LINE * (line + 1)), "white")
    pen = ImageDraw.Draw(strip)
    for x, line, label, name in places:
        top = line * LINE + (LINE - SWATCH) // 2
        pen.rectangle((x, top, x + SWATCH, top + SWATCH), fill=IGNORED_COLOR if label == IGNORED else class_color(label))
        pen.text((x + SWATCH + 4, line * LINE + LINE // 2), name, fill=(34, 34, 34), font=font(12), anchor="lm")
    return strip


def labelled_overlay(picture: np.ndarray, mask: np.ndarray, names: dict[int, str]) -> np.ndarray:
    """Return the picture with the classes of its mask painted over, and their names below."""
    return with_legend(overlay(picture, mask), np.unique(mask).tolist(), names)


def with_legend(picture: np.ndarray, classes: Sequence[int], names: dict[int, str]) -> np.ndarray:
    """Return the picture with the legend of these classes below it."""
    return np.concatenate([picture, np.asarray(legend(picture.shape[1], classes, names))])
