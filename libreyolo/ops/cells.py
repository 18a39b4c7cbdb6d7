"""Objects as cells of a coarse grid. B batch, N boxes of a picture, h w cells."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor


def cells_of(boxes: Tensor, hw: tuple[int, int], stride: int) -> Tensor:
    """Return the cell that holds each box's centre, int64 [..., 2] (column, row); a centre on the far edge lies in the last cell.

    boxes: [..., 4] xyxy in pixels of the network input. hw: rows and columns of the grid. stride: side of a cell in pixels.
    """
    centres = (boxes[..., :2] + boxes[..., 2:]) / 2
    cells = (centres / stride).floor().long()
    return torch.stack([cells[..., 0].clamp(0, hw[1] - 1), cells[..., 1].clamp(0, hw[0] - 1)], dim=-1)


def target_grid(boxes: Tensor, labels: Tensor, valid: Tensor, hw: tuple[int, int], stride: int) -> Tensor:
    """Return the class of every cell, int64 [B, h, w]: 0 for background, else 1 + the class of the box whose centre it holds.

    Where a cell holds several centres, the last box in the order of the labels decides. boxes [B, N, 4] xyxy in pixels of the network
    input, labels and valid [B, N].
    """
    cells = cells_of(boxes, hw, stride)
    places = cells[..., 1] * hw[1] + cells[..., 0]
    # The largest row number of each cell, 0 where there is none: unlike writing one after the other, it is defined on every device.
    numbers = torch.arange(1, labels.shape[1] + 1, device=labels.device) * valid
    last = numbers.new_zeros(len(labels), hw[0] * hw[1]).scatter_reduce(1, places, numbers, "amax")
    classes = torch.where(last > 0, labels.gather(1, (last - 1).clamp(min=0)) + 1, 0)
    return classes.reshape(-1, *hw)


def peaks(scores: Tensor, candidates: Tensor, radius: int) -> Tensor:
    """Return which candidates stay, bool [B, h, w]: greedy suppression, best first, within a square of 2 * radius + 1 cells.

    Equal scores go by row, then column. All pictures at once: a candidate that is better than every undecided one around it would be taken
    by the greedy order too, so each round takes all of those and strikes what lies around them. scores, candidates (bool): [B, h, w].
    """
    if radius == 0:
        return candidates.clone()
    batch, height, width = scores.shape
    flat = scores.reshape(batch, -1)
    # Ranks without ties, the best the highest; exact in float32 up to 2^24 cells.
    order = flat.argsort(dim=1, descending=True, stable=True)
    ranks = torch.empty_like(flat, dtype=torch.float32)
    steps = torch.arange(flat.shape[1], 0, -1, dtype=torch.float32, device=flat.device).expand_as(flat)
    ranks = ranks.scatter_(1, order, steps).reshape(batch, 1, height, width)
    undecided, kept = candidates.unsqueeze(1).clone(), torch.zeros_like(candidates).unsqueeze(1)
    while bool(undecided.any()):
        waiting = torch.where(undecided, ranks, 0.0)
        taken = undecided & (waiting == _around(waiting, radius))
        kept |= taken
        undecided &= _around(taken.float(), radius) == 0
    return kept.squeeze(1)


def _around(values: Tensor, radius: int) -> Tensor:
    """Return the largest value in the square around each cell."""
    return F.max_pool2d(values, 2 * radius + 1, stride=1, padding=radius)
