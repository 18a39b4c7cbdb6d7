"""Overlap of xyxy boxes: IoU, GIoU and CIoU, each aligned (broadcasting, [..., 4] with [..., 4] -> [...]) or pairwise (N with M).

IoU   = |A and B| / |A or B|
GIoU  = IoU - |C minus (A or B)| / |C|, C the smallest box around both; eq. of algorithm 1 in arXiv 1902.09630
CIoU  = IoU - rho^2 / c^2 - alpha v; eqs. 6 to 11 of arXiv 1911.08287 (rho: distance of the centres, c: diagonal of C, v: aspect ratios)

Degenerate boxes (width or height 0 or negative) have area 0; `EPS` keeps every ratio and every gradient finite, so two boxes without area
have IoU 0. Compute in float32: the functions keep the dtype they are given.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

EPS = 1e-7  # on areas in squared pixels; negligible for any box that has an area


Sides = tuple[Tensor, ...]  # x1, y1, x2, y2 of boxes, each [...]: taken apart once, since each of many slices would cost kernels in the backward


def area(boxes: Tensor) -> Tensor:
    """Return the area of xyxy boxes, [...]; 0 for a box whose corners are swapped."""
    return _area(boxes.unbind(-1))


def iou(a: Tensor, b: Tensor) -> Tensor:
    """Return the aligned IoU, in [0, 1]."""
    inter, union = _intersection_union(a.unbind(-1), b.unbind(-1))
    return inter / (union + EPS)


def giou(a: Tensor, b: Tensor) -> Tensor:
    """Return the aligned generalised IoU, in (-1, 1]; -1 is approached by distant boxes."""
    sides_a, sides_b = a.unbind(-1), b.unbind(-1)
    inter, union = _intersection_union(sides_a, sides_b)
    w, h = _enclosing(sides_a, sides_b)
    hull = w * h
    return inter / (union + EPS) - (hull - union) / (hull + EPS)


def ciou(a: Tensor, b: Tensor) -> Tensor:
    """Return the aligned complete IoU of predictions `a` with targets `b`, at most 1, usually above -1.

    The weight alpha of the aspect-ratio term is a constant for the gradient, as the paper's section on CIoU loss intends (it balances, it
    is not to be optimised).
    """
    sides_a, sides_b = a.unbind(-1), b.unbind(-1)
    inter, union = _intersection_union(sides_a, sides_b)
    overlap = inter / (union + EPS)
    hull_w, hull_h = _enclosing(sides_a, sides_b)
    dx = sides_a[0] + sides_a[2] - sides_b[0] - sides_b[2]
    dy = sides_a[1] + sides_a[3] - sides_b[1] - sides_b[3]
    distance = (dx.square() + dy.square()) / 4 / (hull_w.square() + hull_h.square() + EPS)
    aspect = (4 / math.pi**2) * (_angle(sides_b) - _angle(sides_a)).square()
    with torch.no_grad():
        alpha = aspect / (1 - overlap + aspect + EPS)
    return overlap - distance - alpha * aspect


def pairwise_iou(a: Tensor, b: Tensor) -> Tensor:
    """Return the IoU of every box of `a` [..., N, 4] with every box of `b` [..., M, 4]: [..., N, M], in [0, 1]; empty where N or M is 0."""
    return iou(a.unsqueeze(-2), b.unsqueeze(-3))


def pairwise_giou(a: Tensor, b: Tensor) -> Tensor:
    """Return the GIoU of every box of `a` [..., N, 4] with every box of `b` [..., M, 4]: [..., N, M], in (-1, 1]."""
    return giou(a.unsqueeze(-2), b.unsqueeze(-3))


def pairwise_ciou(a: Tensor, b: Tensor) -> Tensor:
    """Return the CIoU of every prediction of `a` [..., N, 4] with every target of `b` [..., M, 4]: [..., N, M], at most 1."""
    return ciou(a.unsqueeze(-2), b.unsqueeze(-3))


def _area(boxes: Sides) -> Tensor:
    x1, y1, x2, y2 = boxes
    return (x2 - x1).clamp(min=0) * (y2 - y1).clamp(min=0)


def _intersection_union(a: Sides, b: Sides) -> tuple[Tensor, Tensor]:
    w = torch.minimum(a[2], b[2]) - torch.maximum(a[0], b[0])
    h = torch.minimum(a[3], b[3]) - torch.maximum(a[1], b[1])
    inter = w.clamp(min=0) * h.clamp(min=0)
    return inter, _area(a) + _area(b) - inter


def _enclosing(a: Sides, b: Sides) -> tuple[Tensor, Tensor]:
    w = torch.maximum(a[2], b[2]) - torch.minimum(a[0], b[0])
    h = torch.maximum(a[3], b[3]) - torch.minimum(a[1], b[1])
    return w, h


def _angle(boxes: Sides) -> Tensor:
    """Return arctan(width / height); the EPS gives a flat box an angle and its gradient a bound."""
    x1, y1, x2, y2 = boxes
    return torch.atan((x2 - x1) / (y2 - y1 + EPS))
