"""The pictures of a restorer's validation: before, after and truth with a magnified detail, and what was gained on each picture."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw

from libreyolo.interfaces.events import ValidationEnd
from libreyolo.metrics.restore import RestoreSample
from libreyolo.record.plots import style
from libreyolo.record.plots.boxes import font, save
from libreyolo.record.plots.listener import PictureListener, attempt
from libreyolo.record.plots.style import shorten

TILE, GAP, HEAD = 300, 6, 24
DETAIL = 48  # pixels of the magnified detail each way, at most; a third of the picture where that is less
COLOR = (213, 94, 0)
MAX_SAMPLES = 8


class RestoreValidationPictures(PictureListener):
    """Draws what a restorer's validation holds: the worst pictures and the gain on every one; what the event does not hold is not drawn."""

    validation_pictures = ("restored.png", "psnr.png")

    def draw_validation(self, event: ValidationEnd) -> None:
        curves = event.curves
        if "input_psnr" in curves and len(curves["psnr"]):
            attempt(self.folder / "psnr.png", lambda path: draw_gain(curves["input_psnr"], curves["psnr"], path))
        samples = [sample for sample in event.samples if isinstance(sample, RestoreSample)]
        if samples:
            attempt(self.folder / "restored.png", lambda path: draw_restored(samples, path))


def draw_restored(samples: Sequence[RestoreSample], path: Path, *, max_samples: int = MAX_SAMPLES) -> None:
    """Write a row for each of up to `max_samples` pictures, the lowest PSNR first: input, restored and target, each with the same detail beside it.

    The detail is where the restored picture is furthest from its target, and framed in the whole one.
    """
    chosen = sorted(samples, key=lambda sample: sample.psnr)[:max_samples]
    rows = [_row(sample) for sample in chosen]
    width = max((row.width for row in rows), default=TILE)
    sheet = Image.new("RGB", (width, max(sum(row.height + GAP for row in rows) - GAP, 1)), "white")
    top = 0
    for row in rows:
        sheet.paste(row, (0, top))
        top += row.height + GAP
    save(sheet, Path(path))


def _row(sample: RestoreSample) -> Image.Image:
    height, width = sample.given.shape[:2]
    tile_h = min(max(round(TILE * height / width), 1), TILE)
    box = _worst_detail(sample)
    columns = (
        (sample.given, f"input {sample.input_psnr:.2f} dB   {shorten(sample.title, 34)}"),
        (sample.restored, f"restored {sample.psnr:.2f} dB, SSIM {sample.ssim:.3f}"),
        (sample.target, "target"),
    )
    column_w = TILE + GAP + tile_h
    row = Image.new("RGB", (len(columns) * (column_w + 2 * GAP) - 2 * GAP, tile_h + HEAD), "white")
    canvas = ImageDraw.Draw(row)
    for place, (pixels, text) in enumerate(columns):
        left = place * (column_w + 2 * GAP)
        canvas.text((left + 2, 4), text, fill=(34, 34, 34), font=font(13))
        picture = Image.fromarray(np.ascontiguousarray(pixels))
        scale = min(TILE / width, tile_h / height)
        whole = picture.resize((max(round(width * scale), 1), max(round(height * scale), 1)), Image.Resampling.BILINEAR)
        ImageDraw.Draw(whole).rectangle(tuple(scale * v for v in box), outline=COLOR, width=2)
        row.paste(whole, (left + (TILE - whole.width) // 2, HEAD + (tile_h - whole.height) // 2))
        # Nearest: what is magnified are the pixels themselves.
        row.paste(picture.crop(box).resize((tile_h, tile_h), Image.Resampling.NEAREST), (left + TILE + GAP, HEAD))
    return row


def _worst_detail(sample: RestoreSample) -> tuple[int, int, int, int]:
    """Return (x0, y0, x1, y1) of the square of the detail's size with the largest squared error."""
    error = np.square(sample.restored.astype(np.float64) - sample.target).sum(axis=2)
    height, width = error.shape
    side = max(1, min(DETAIL, min(height, width) // 3))
    sums = np.pad(error, ((1, 0), (1, 0))).cumsum(axis=0).cumsum(axis=1)
    boxes = sums[side:, side:] - sums[:-side, side:] - sums[side:, :-side] + sums[:-side, :-side]
    y, x = np.unravel_index(int(boxes.argmax()), boxes.shape)
    return int(x), int(y), int(x) + side, int(y) + side


def draw_gain(input_psnr: np.ndarray, psnr: np.ndarray, path: Path) -> None:
    """Write a dot for each picture: its PSNR in dB before and after. [P] each, P at least 1. Above the line a picture was made better."""
    low = float(min(input_psnr.min(), psnr.min())) - 1
    high = float(max(input_psnr.max(), psnr.max())) + 1
    better = psnr > input_psnr
    with style.figure(path, 5.4, 5) as figure:
        axes = figure.subplots()
        axes.plot([low, high], [low, high], color=style.FAINT, linewidth=1.2, linestyle="--", label="as it was given")
        for chosen, color, word in ((better, style.PALETTE[0], "better"), (~better, style.PALETTE[1], "not better")):
            if chosen.any():
                label = f"{int(chosen.sum())} {word}"
                axes.scatter(input_psnr[chosen], psnr[chosen], s=18, color=color, alpha=0.75, edgecolors="none", label=label, zorder=3)
        axes.set(xlim=(low, high), ylim=(low, high), xlabel="PSNR of the input, dB", ylabel="PSNR of the restored picture, dB")
        axes.set_title(f"{len(psnr)} pictures, {input_psnr.mean():.2f} to {psnr.mean():.2f} dB on average")
        axes.legend(loc="best")
