"""Pairs of drawings of one picture, truth on the left and what the network says on the right, two pairs to a row."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw

from libreyolo.record.plots.boxes import fit, font, save
from libreyolo.record.plots.style import shorten

TILE_W, MAX_TILE_H = 400, 400
GAP, HEAD = 6, 24
MAX_PAIRS = 8

# Draws on a tile in place; the second argument is the tile's scale, tile pixels for each picture pixel.
Draw = Callable[[Image.Image, float], None]


@dataclass(frozen=True)
class Pair:
    """One picture, uint8 [H, W, 3] RGB, and what is drawn on it on either side. mistakes: pairs with more come first."""

    image: np.ndarray
    truth: Draw
    found: Draw
    title: str = ""
    word: str = "detected"
    mistakes: float = 0.0


def draw_pairs(pairs: Sequence[Pair], path: Path, *, max_pairs: int = MAX_PAIRS) -> None:
    """Write up to `max_pairs` pairs, those with the worst mistakes first."""
    chosen = sorted(pairs, key=lambda pair: -pair.mistakes)[:max_pairs]
    columns = 2 if len(chosen) > 1 else 1
    rows = max(-(-len(chosen) // columns), 1)
    tile_h = max((_height(pair.image) for pair in chosen), default=MAX_TILE_H)
    pair_w, pair_h = 2 * TILE_W + GAP, tile_h + HEAD
    sheet = Image.new("RGB", (columns * (pair_w + 3 * GAP) - 3 * GAP, rows * (pair_h + GAP) - GAP), "white")
    for i, pair in enumerate(chosen):
        sheet.paste(_drawn(pair, tile_h), ((i % columns) * (pair_w + 3 * GAP), (i // columns) * (pair_h + GAP)))
    save(sheet, Path(path))


def _height(image: np.ndarray) -> int:
    """Return the height of a picture in its tile."""
    height, width = image.shape[:2]
    return min(max(round(TILE_W * height / width), 1), MAX_TILE_H)


def _drawn(pair: Pair, tile_h: int) -> Image.Image:
    drawn = Image.new("RGB", (2 * TILE_W + GAP, tile_h + HEAD), "white")
    canvas = ImageDraw.Draw(drawn)
    title = f"truth   {shorten(pair.title, 40)}" if pair.title else "truth"
    canvas.text((2, 4), title, fill=(34, 34, 34), font=font(13))
    canvas.text((TILE_W + GAP + 2, 4), f"{pair.word}   (mistakes {pair.mistakes:.1f})", fill=(34, 34, 34), font=font(13))
    for side, draw in enumerate((pair.truth, pair.found)):
        tile, scale = fit(Image.fromarray(np.ascontiguousarray(pair.image)), TILE_W, tile_h)
        draw(tile, scale)
        drawn.paste(tile, (side * (TILE_W + GAP) + (TILE_W - tile.width) // 2, HEAD + (tile_h - tile.height) // 2))
    return drawn
