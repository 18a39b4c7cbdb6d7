"""Box formats and the grid that dense heads predict on. Every box is a last dimension of 4; leading dimensions are free.

A anchors (grid cells of all levels, level by level, each row-major). xyxy is (x1, y1, x2, y2), cxcywh is (centre x, y, width, height).
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


def xyxy_to_cxcywh(boxes: Tensor) -> Tensor:
    """Return centre-size boxes of corner boxes, same shape and unit."""
    x1, y1, x2, y2 = boxes.unbind(-1)
    return torch.stack(((x1 + x2) / 2, (y1 + y2) / 2, x2 - x1, y2 - y1), dim=-1)


def cxcywh_to_xyxy(boxes: Tensor) -> Tensor:
    """Return corner boxes of centre-size boxes, same shape and unit."""
    cx, cy, w, h = boxes.unbind(-1)
    return torch.stack((cx - w / 2, cy - h / 2, cx + w / 2, cy + h / 2), dim=-1)


def clip_boxes(boxes: Tensor, height: float, width: float) -> Tensor:
    """Return xyxy boxes clipped to [0, width] x [0, height]; a box wholly outside becomes one of no area on the border."""
    x1, y1, x2, y2 = boxes.unbind(-1)
    return torch.stack((x1.clamp(0, width), y1.clamp(0, height), x2.clamp(0, width), y2.clamp(0, height)), dim=-1)


def clip_boxes_to(boxes: Tensor, regions: Tensor) -> Tensor:
    """Return xyxy boxes [B, N, 4] clipped to one xyxy region per picture, [B, 4]; a box wholly outside becomes one of no area."""
    low = regions[:, None, :2].repeat(1, 1, 2)
    high = regions[:, None, 2:].repeat(1, 1, 2)
    return boxes.clamp(min=low, max=high)


def in_planes(points: Tensor) -> Tensor:
    """Return the same boxes or points [..., D], stored coordinate by coordinate: many with many are then worked on along whole rows of memory."""
    return points.movedim(-1, 0).contiguous().movedim(0, -1)


def grid_centres(shapes: Sequence[tuple[int, int]], strides: Sequence[int], device: torch.device | None = None) -> tuple[Tensor, Tensor]:
    """Return the centres [A, 2] (x, y in input pixels) and strides [A, 1] of all cells of the given levels, float32.

    shapes: (height, width) of each level in cells; a level of no cells contributes none.
    """
    centres, steps = [], []
    for (height, width), stride in zip(shapes, strides, strict=True):
        y, x = (torch.arange(0.5 * stride, (cells + 0.5) * stride, stride, device=device, dtype=torch.float32) for cells in (height, width))
        grid_y, grid_x = torch.meshgrid(y, x, indexing="ij")
        centres.append(torch.stack((grid_x, grid_y), dim=-1).reshape(-1, 2))
        steps.append(torch.full((height * width, 1), float(stride), device=device))
    return torch.cat(centres), torch.cat(steps)
