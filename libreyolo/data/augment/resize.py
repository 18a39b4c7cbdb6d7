"""Resizing of uint8 pictures: for evaluation and prediction to the bit as two libraries do it, for published weights were evaluated with one or the
other; for training in a fraction of the time.
"""

from __future__ import annotations

from typing import Literal

import numpy as np
from PIL import Image

_COEFFICIENT_BITS = 11
_ONE = np.float32(1 << _COEFFICIENT_BITS)


def resize_bilinear(image: np.ndarray, new_hw: tuple[int, int], filter: Literal["cv2", "pil"] = "cv2") -> np.ndarray:
    """Return the picture at new_hw, uint8 [H, W, 3]; the picture itself where it already has that size.

    image: uint8 [h, w, 3].
    filter: "cv2" equals OpenCV's INTER_LINEAR on uint8 (checked against 4.10 and 5.0: the same bits), which reads the four nearest pixels
        however much it shrinks; "pil" is Pillow's BILINEAR, which averages over the whole footprint when it shrinks.
    """
    if image.shape[:2] == tuple(new_hw):
        return image
    if filter == "pil":
        return np.asarray(Image.fromarray(image).resize((new_hw[1], new_hw[0]), Image.Resampling.BILINEAR))
    height, width = image.shape[:2]
    if (height, width) == (2 * new_hw[0], 2 * new_hw[1]):
        # OpenCV turns exact halving into the mean of 2x2 pixels.
        wide = image.astype(np.int32)
        return ((wide[0::2, 0::2] + wide[0::2, 1::2] + wide[1::2, 0::2] + wide[1::2, 1::2] + 2) >> 2).astype(np.uint8)
    return _fixed_point(image, new_hw)


def resize_for_training(image: np.ndarray, new_hw: tuple[int, int], filter: Literal["pil", "pil-bicubic"] = "pil") -> np.ndarray:
    """Return the picture at new_hw, uint8 [H, W, 3], contiguous; the picture itself where it already has that size.

    image: uint8 [h, w, 3], writable, of any strides; a part of a picture is resized as if nothing lay around it.
    filter: Pillow's BILINEAR or BICUBIC. Where a photograph shrinks, its weights are rounded otherwise and make a difference of 1 in a value now and
        then; the bits are the same on every processor.
    """
    if image.shape[:2] == tuple(new_hw):
        return np.ascontiguousarray(image)
    import torch  # seconds to import, for those who only look over a set

    # Four to eight times as fast as Pillow where the processor has AVX2, half as fast elsewhere: one way for all, or pixels would depend on it.
    # A batch of one whose channels come last, all strides told: that is the layout for which torch has its fast code.
    pixels = torch.from_numpy(image)[None].permute(0, 3, 1, 2)
    mode = {"pil": "bilinear", "pil-bicubic": "bicubic"}[filter]
    resized = torch.nn.functional.interpolate(pixels, size=tuple(new_hw), mode=mode, antialias=True)
    return np.ascontiguousarray(resized[0].permute(1, 2, 0).numpy())


def _fixed_point(image: np.ndarray, new_hw: tuple[int, int]) -> np.ndarray:
    left, right, weight_left, weight_right = _taps(image.shape[1], new_hw[1], fold_edges=True)
    top, bottom, weight_top, weight_bottom = _taps(image.shape[0], new_hw[0], fold_edges=False)
    # Only rows that are read, so that strong shrinking costs little.
    rows, place = np.unique(np.concatenate([top, bottom]), return_inverse=True)
    source = image[rows].astype(np.int32)
    across = source[:, left] * weight_left[:, None] + source[:, right] * weight_right[:, None]  # pixel * 2^11
    # 4 bits are dropped before, 16 after the second product, and the last 2 rounded: 11 + 11 = 4 + 16 + 2.
    across >>= 4
    upper = (across[place[: len(top)]] * weight_top[:, None, None]) >> 16
    lower = (across[place[len(top) :]] * weight_bottom[:, None, None]) >> 16
    return ((upper + lower + 2) >> 2).astype(np.uint8)


def _taps(size: int, new_size: int, *, fold_edges: bool) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Return for each output pixel the two source pixels along one axis (int64) and their weights in 1/2048 (int32).

    fold_edges: at the ends of the axis the whole weight goes to the one pixel there is; else both taps read it with their own weights,
        which the shifts after the product round differently.
    """
    at = ((np.arange(new_size) + 0.5) * (size / new_size) - 0.5).astype(np.float32)
    low = np.floor(at)
    fraction = at - low
    low = low.astype(np.int64)
    if fold_edges:
        fraction[(low < 0) | (low >= size - 1)] = 0
    weight_high = np.rint(fraction * _ONE).astype(np.int32)
    weight_low = np.rint((1 - fraction) * _ONE).astype(np.int32)
    return np.clip(low, 0, size - 1), np.clip(low + 1, 0, size - 1), weight_low, weight_high
