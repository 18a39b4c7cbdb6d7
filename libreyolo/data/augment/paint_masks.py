"""Masks follow the pixels: each output pixel takes the class at its centre, by the same matrices that paint the picture.

B pictures, T tiles, H W the output.
"""

from __future__ import annotations

import torch
from torch import Tensor

from libreyolo.data.augment.compose import PlanBatch, coordinates
from libreyolo.ops.pixels import IGNORED


def paint_masks(tiles: Tensor, plans: PlanBatch, hw: tuple[int, int]) -> Tensor:
    """Return the output masks, uint8 [B, H, W]; 255 where the picture is not. Plans have one slot each.

    tiles: uint8 [T, h, w], each in the top left corner of the buffer and as large as the tile of its picture, on the device of `plans`.
    """
    x, y, _ = coordinates(plans, slice(0, len(plans.tile)), 0, (0, 0, hw[1], hw[0]))
    width, height = (plans.size[:, 0, side, None, None] for side in (0, 1))
    inside = (x >= 0) & (x < width) & (y >= 0) & (y < height)
    row = y.clamp(min=0).minimum(height - 1).long()
    column = x.clamp(min=0).minimum(width - 1).long()
    found = tiles[plans.source[:, 0, None, None], row, column]
    return torch.where(inside, found, torch.full_like(found, IGNORED))
