"""Maps at another height and width, however large."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

LARGEST = 2**31 - 2  # numbers of a map that torch's kernels for channels_last make at once: they count them in 32 bits


def resize(x: Tensor, hw: tuple[int, int], mode: str) -> Tensor:
    """Return maps [B, C, h, w] at height and width hw, "nearest" or "bilinear" (pixels are areas, the corners not aligned).

    More than LARGEST numbers, which eight pictures of 1024 x 2048 pixels with 128 channels have, are made in parts: of the batch, or of the channels
    of a picture.
    """
    per_channel = max(hw[0] * hw[1], x.shape[2] * x.shape[3])
    if x.shape[0] * x.shape[1] * per_channel <= LARGEST:
        return _at_once(x, hw, mode)
    pictures = LARGEST // (x.shape[1] * per_channel)
    if pictures:
        return torch.cat([_at_once(part, hw, mode) for part in x.split(pictures)])
    channels = max(LARGEST // per_channel, 1)
    return torch.cat([torch.cat([_at_once(part, hw, mode) for part in picture.split(channels, dim=1)], dim=1) for picture in x.split(1)])


def twice(x: Tensor, mode: str = "nearest") -> Tensor:
    """Return maps at twice the height and width; see `resize`."""
    return resize(x, (2 * x.shape[2], 2 * x.shape[3]), mode)


def _at_once(x: Tensor, hw: tuple[int, int], mode: str) -> Tensor:
    return F.interpolate(x, size=hw, mode=mode, align_corners=False if mode == "bilinear" else None)
