"""Crops of a whole picture: the middle for evaluation and prediction, a random part for training. h w the picture, H W the network input."""

from __future__ import annotations

import math

import numpy as np
import torch
from PIL import Image

from libreyolo.data.augment.resize import resize_for_training
from libreyolo.interfaces.input import InputSpec

Part = tuple[float, float, float, float]
"""(x0, y0, x1, y1) in fractions of a picture's sides."""

# Ratio of width to height of a random crop, relative to the input's (arXiv 1409.4842, section 6).
RATIOS = (3 / 4, 4 / 3)
TRIES = 10
# A picture that is longer than this many times its shorter side is cut to it before it is resized: a line of 1 x 20000 pixels would fill the memory.
LONGEST = 32


def centre_crop(image: np.ndarray, imgsz: tuple[int, int], spec: InputSpec) -> np.ndarray:
    """Return the middle of the picture, uint8 [H, W, 3]: resized, aspect kept, to cover imgsz / crop_pct, then cut.

    image: uint8 [h, w, 3] at its original size. For a square input the shorter side becomes floor(imgsz / crop_pct), as published weights are
    evaluated; a longer side loses its fraction of a pixel, and an odd margin is rounded to even.
    """
    cover_h, cover_w = (math.floor(side / spec.crop_pct) for side in imgsz)
    image = _without_ends(image)
    h, w = image.shape[:2]
    # The side that is covered exactly is not left to rounding: 131 * (100 / 131) may be 99.99999999999999.
    new_h, new_w = (cover_h, max(cover_w, int(cover_h * w / h))) if h * cover_w <= w * cover_h else (max(cover_h, int(cover_w * h / w)), cover_w)
    resized = np.asarray(Image.fromarray(image).resize((new_w, new_h), resampling(spec)))
    top, left = round((new_h - imgsz[0]) / 2), round((new_w - imgsz[1]) / 2)
    return np.ascontiguousarray(resized[top : top + imgsz[0], left : left + imgsz[1]])


def draw_part(rng: np.random.Generator, hw: tuple[int, int], imgsz: tuple[int, int], scale: tuple[float, float]) -> Part:
    """Draw what part of a picture of size hw a training crop shows (arXiv 1409.4842): its area in `scale`, its shape near the input's.

    Of ten draws the first that fits; where none does, the largest middle part of an allowed shape. Always takes the same number of draws.
    """
    h, w = hw
    shape = imgsz[1] / imgsz[0]
    areas = h * w * rng.uniform(*scale, TRIES)
    ratios = shape * np.exp(rng.uniform(math.log(RATIOS[0]), math.log(RATIOS[1]), TRIES))
    along_x, along_y = rng.random(2)
    for area, ratio in zip(areas.tolist(), ratios.tolist(), strict=True):
        part_w, part_h = math.sqrt(area * ratio), math.sqrt(area / ratio)
        if part_w <= w and part_h <= h:
            return _placed(part_w / w, part_h / h, along_x, along_y)
    allowed = min(max(w / h, shape * RATIOS[0]), shape * RATIOS[1])
    part_w, part_h = (w, w / allowed) if w / h < allowed else (h * allowed, h)
    return _placed(min(part_w / w, 1.0), min(part_h / h, 1.0), 0.5, 0.5)


def show_part(image: np.ndarray, part: Part, imgsz: tuple[int, int], spec: InputSpec) -> np.ndarray:
    """Return a part of the picture uint8 [h, w, 3], writable, at the network input's size: uint8 [H, W, 3].

    The part ends at whole pixels, as published trainers cut it, and has at least one.
    """
    assert spec.filter != "cv2", "a family that crops was evaluated with one of Pillow's filters"
    (top, bottom), (left, right) = (_whole_pixels(part[1 - axis], part[3 - axis], image.shape[axis]) for axis in (0, 1))
    return resize_for_training(image[top:bottom, left:right], imgsz, spec.filter)


def mirror(image: np.ndarray, *, left_right: bool, upside_down: bool) -> np.ndarray:
    """Return the picture uint8 [h, w, 3], mirrored as asked, contiguous."""
    dims = [dim for dim, wanted in ((2, left_right), (1, upside_down)) if wanted]
    if not dims:
        return image
    return torch.from_numpy(image).permute(2, 0, 1).flip(dims).permute(1, 2, 0).contiguous().numpy()


def enough_hw(imgsz: tuple[int, int], scale: tuple[float, float]) -> tuple[int, int]:
    """Return the (h, w) within which a picture is decoded for training: even the smallest crop of a 4:3 picture then has about the input's pixels.

    A function of the recipe alone, so that one copy in a cache serves every draw.
    """
    zoom = (RATIOS[1] / math.sqrt(scale[0])) * math.sqrt(RATIOS[1])
    side = math.ceil(zoom * max(imgsz))
    return side, side


def resampling(spec: InputSpec) -> Image.Resampling:
    """Return Pillow's filter for a family that crops."""
    return {"pil": Image.Resampling.BILINEAR, "pil-bicubic": Image.Resampling.BICUBIC}[spec.filter]


def _whole_pixels(low: float, high: float, length: int) -> tuple[int, int]:
    first = min(round(low * length), length - 1)
    return first, max(round(high * length), first + 1)


def _without_ends(image: np.ndarray) -> np.ndarray:
    """Return the middle of a picture that is a thin line, any other one as it is."""
    for axis in (0, 1):
        over = image.shape[axis] - LONGEST * image.shape[1 - axis]
        if over > 0:
            image = np.take(image, range(over // 2, over // 2 + LONGEST * image.shape[1 - axis]), axis=axis)
    return image


def _placed(part_w: float, part_h: float, along_x: float, along_y: float) -> Part:
    x0, y0 = along_x * (1.0 - part_w), along_y * (1.0 - part_h)
    return x0, y0, x0 + part_w, y0 + part_h
