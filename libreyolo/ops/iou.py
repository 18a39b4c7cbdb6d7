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

from libreyolo.ops.boxes import in_planes

EPS = 1e-7  # on areas in squared pixels; negligible for any box that has an area


Corners = tuple[Tensor, Tensor]  # the lower and the upper corner of boxes, each [..., 2]: what is done along x and along y is one kernel


def area(boxes: Tensor) -> Tensor:
    """Return the area of xyxy boxes, [...]; 0 for a box whose corners are swapped."""
    low, high = _corners(boxes)
    return _area(high - low)


def iou(a: Tensor, b: Tensor) -> Tensor:
    """Return the aligned IoU, in [0, 1]."""
    inter, union, _ = _meeting(_corners(a), _corners(b))
    return inter / (union + EPS)


def giou(a: Tensor, b: Tensor) -> Tensor:
    """Return the aligned generalised IoU, in (-1, 1]; -1 is approached by distant boxes."""
    inter, union, hull_sides = _meeting(_corners(a), _corners(b))
    w, h = hull_sides.unbind(-1)
    hull = w * h
    return inter / (union + EPS) - (hull - union) / (hull + EPS)


def ciou(a: Tensor, b: Tensor) -> Tensor:
    """Return the aligned complete IoU of predictions `a` with targets `b`, at most 1, usually above -1.

    The weight alpha of the aspect-ratio term is a constant for the gradient, as the paper's section on CIoU loss intends (it balances, it
    is not to be optimised).
    """
    (low_a, high_a), (low_b, high_b) = corners_a, corners_b = _corners(a), _corners(b)
    inter, union, hull_sides = _meeting(corners_a, corners_b)
    overlap = inter / (union + EPS)
    shift = low_a + high_a - low_b - high_b  # twice the distance of the centres
    near = torch.addcdiv(overlap, _squared_length(shift), _squared_length(hull_sides) + EPS, value=-0.25)
    aspect = (4 / math.pi**2) * (_angle(high_b - low_b) - _angle(high_a - low_a)).square()
    with torch.no_grad():
        alpha = aspect / (1 - overlap + aspect + EPS)
    return torch.addcmul(near, alpha, aspect, value=-1)


def pairwise_iou(a: Tensor, b: Tensor) -> Tensor:
    """Return the IoU of every box of `a` [..., N, 4] with every box of `b` [..., M, 4]: [..., N, M], in [0, 1]; empty where N or M is 0."""
    return iou(in_planes(a).unsqueeze(-2), in_planes(b).unsqueeze(-3))


def pairwise_giou(a: Tensor, b: Tensor) -> Tensor:
    """Return the GIoU of every box of `a` [..., N, 4] with every box of `b` [..., M, 4]: [..., N, M], in (-1, 1]."""
    return giou(in_planes(a).unsqueeze(-2), in_planes(b).unsqueeze(-3))


def pairwise_ciou(a: Tensor, b: Tensor) -> Tensor:
    """Return the CIoU of every prediction of `a` [..., N, 4] with every target of `b` [..., M, 4]: [..., N, M], at most 1."""
    return ciou(in_planes(a).unsqueeze(-2), in_planes(b).unsqueeze(-3))


def _corners(boxes: Tensor) -> Corners:
    low, high = boxes.split(2, dim=-1)
    return low, high


def _area(sides: Tensor) -> Tensor:
    w, h = sides.clamp(min=0).unbind(-1)
    return w * h


def _meeting(a: Corners, b: Corners) -> tuple[Tensor, Tensor, Tensor]:
    """Return the areas of intersection and union, and the sides [..., 2] of the smallest box around both."""
    sides_a, sides_b = a[1] - a[0], b[1] - b[0]
    shared = torch.minimum(a[1], b[1]) - torch.maximum(a[0], b[0])  # below 0 where they are apart
    inter = _area(shared)
    return inter, _area(sides_a) + _area(sides_b) - inter, sides_a + sides_b - shared


def _squared_length(vectors: Tensor) -> Tensor:
    x, y = vectors.square().unbind(-1)
    return x + y


def _angle(sides: Tensor) -> Tensor:
    """Return arctan(width / height); the EPS gives a flat box an angle and its gradient a bound."""
    w, h = sides.unbind(-1)
    return torch.atan(w / (h + EPS))
