"""The data of a restoration run: sizes and damage of its pictures, and a training batch as the network sees it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw

from libreyolo.record.plots import style
from libreyolo.record.plots.boxes import font, save

MAX_PAIRS = 12
SHEET = 1280  # pixels, width of the whole sheet
GAP, HEAD = 4, 20


def draw_pair_data(sizes: np.ndarray, psnr: np.ndarray, crop: tuple[int, int], path: Path) -> None:
    """Write two panels: the pictures' widths and heights with the training crop, and the PSNR of inputs against their targets.

    sizes: [P, 2] (h, w) of all pictures. psnr: [S] dB of some of them. crop: (h, w).
    """
    from matplotlib.patches import Rectangle  # where something is drawn, as in `style.figure`

    with style.figure(path, 10, 4.4) as figure:
        left, right = figure.subplots(1, 2)
        shapes, counts = np.unique(sizes, axis=0, return_counts=True)
        left.add_patch(Rectangle((0, 0), crop[1], crop[0], color=style.PALETTE[4], alpha=0.25, label=f"training crop {crop[1]}x{crop[0]}"))
        area = np.clip(200 * counts / counts.max(), 12, None)
        left.scatter(shapes[:, 1], shapes[:, 0], s=area, color=style.PALETTE[0], alpha=0.7, edgecolors="none", zorder=3, label="pictures")
        most = 1.1 * max(float(sizes.max()), *crop)
        left.set(xlim=(0, most), ylim=(0, most), xlabel="width in pixels", ylabel="height in pixels")
        left.set_title(f"{len(sizes)} pairs of {_counted(len(shapes), 'size')}")
        left.set_aspect("equal")
        left.legend(loc="lower right")
        right.hist(psnr, bins=min(24, max(6, len(psnr) // 3)), color=style.PALETTE[2], rwidth=0.9)
        right.grid(axis="x", visible=False)
        right.set(xlabel="PSNR of the input, dB", ylabel="pictures")
        right.set_title(f"Damage: {psnr.mean():.2f} dB on average of {_counted(len(psnr), 'picture')}")


def _counted(count: int, word: str) -> str:
    return f"one {word}" if count == 1 else f"{count} {word}s"


def draw_pair_batch(inputs: Sequence[np.ndarray], targets: Sequence[np.ndarray], path: Path) -> None:
    """Write up to 12 crops, each input beside its target; uint8 [H, W, 3] RGB, all of one size."""
    num = min(len(inputs), MAX_PAIRS)
    columns = min(3, math.ceil(num / 2))
    rows = max(1, math.ceil(num / columns))
    tile_w = (SHEET // columns - 3 * GAP) // 2
    height, width = inputs[0].shape[:2]
    tile_h = max(round(tile_w * height / width), 1)
    sheet = Image.new("RGB", (columns * (2 * tile_w + 3 * GAP), HEAD + rows * (tile_h + GAP)), "white")
    canvas = ImageDraw.Draw(sheet)
    for column in range(columns):
        canvas.text((column * (2 * tile_w + 3 * GAP) + 2, 2), "input", fill=(34, 34, 34), font=font(13))
        canvas.text((column * (2 * tile_w + 3 * GAP) + tile_w + GAP + 2, 2), "target", fill=(34, 34, 34), font=font(13))
    for place in range(num):
        left, top = (place % columns) * (2 * tile_w + 3 * GAP), HEAD + (place // columns) * (tile_h + GAP)
        for side, pixels in enumerate((inputs[place], targets[place])):
            tile = Image.fromarray(pixels).resize((tile_w, tile_h), Image.Resampling.NEAREST)
            sheet.paste(tile, (left + side * (tile_w + GAP), top))
    save(sheet, Path(path))
