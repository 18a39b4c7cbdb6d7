"""Masks follow the pixels: each output pixel takes the class at its centre, by the same matrices that paint the picture.

B pictures, T tiles, H W the output.
"""

from __future__ import annotations

import torch
from torch import Tensor

from libreyolo.data.augment.compose import PlanBatch, coordinates, pixel_centres
from libreyolo.ops.pixels import IGNORED


def paint_masks(tiles: Tensor, plans: PlanBatch, hw: tuple[int, int]) -> Tensor:
    """Return the output masks, uint8 [B, H, W]; 255 where the picture is not. Plans have one slot each.

    tiles: uint8 [T, h, w], each in the top left corner of the buffer and as large as the tile of its picture, on the device of `plans`.
    """
    slot = plans.slot(0, slice(None))
    xy, _ = coordinates(slot, pixel_centres(hw, tiles.device), projective=plans.projective)
    inside = (xy >= 0) & (xy < slot.last + 0.5)
    column, row = torch.minimum(xy.clamp(min=0), slot.last - 0.5).long().unbind(dim=1)
    found = tiles[plans.source[0, :, None, None], row, column]
    return torch.where(inside.all(dim=1), found, torch.full_like(found, IGNORED))
