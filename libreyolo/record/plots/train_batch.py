"""A training batch as the network sees it. B pictures, N most boxes of any, H W network input."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
from PIL import Image
from torch import Tensor

from libreyolo.record.plots.boxes import Mark, class_color, draw_marks, fit, save

MAX_PICTURES = 16
SHEET = 1280  # pixels, width of the whole sheet
GAP = 4


def draw_batch(images: Tensor, boxes: Tensor, labels: Tensor, valid: Tensor, names: dict[int, str], path: Path) -> None:
    """Write a sheet of up to 16 pictures with their boxes and class names.

    images: [B, 3, H, W] RGB in [0, 1]. boxes: [B, N, 4] xyxy in pixels of the input. labels: [B, N]. valid: [B, N] bool. All on the CPU.
    """
    num = min(len(images), MAX_PICTURES)
    columns = max(math.ceil(math.sqrt(num)), 1)
    height, width = images.shape[-2:]
    tile_w = (SHEET - (columns - 1) * GAP) // columns
    tile_h = max(round(tile_w * height / width), 1)
    rows = max(math.ceil(num / columns), 1)
    sheet = Image.new("RGB", (columns * (tile_w + GAP) - GAP, rows * (tile_h + GAP) - GAP), "white")
    for i in range(num):
        pixels = (images[i].float().clamp(0, 1) * 255).round().byte().permute(1, 2, 0).contiguous().numpy()
        tile, scale = fit(Image.fromarray(pixels), tile_w, tile_h)
        kept = valid[i].numpy().astype(bool)
        scaled = boxes[i].float().numpy()[kept] * scale
        draw_marks(tile, _marks(scaled, labels[i].numpy()[kept], names))
        sheet.paste(tile, ((i % columns) * (tile_w + GAP), (i // columns) * (tile_h + GAP)))
    save(sheet, Path(path))


def _marks(boxes: np.ndarray, labels: np.ndarray, names: dict[int, str]) -> list[Mark]:
    return [
        Mark((box[0], box[1], box[2], box[3]), names[label], class_color(label)) for box, label in zip(boxes.tolist(), labels.tolist(), strict=True)
    ]
