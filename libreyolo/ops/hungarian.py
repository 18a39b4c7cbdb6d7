"""One-to-one assignment of targets to predictions. L levels, B batch, Q queries, N targets, C classes."""

from __future__ import annotations

from typing import NamedTuple

import torch
from scipy.optimize import linear_sum_assignment
from torch import Tensor

from libreyolo.ops.boxes import cxcywh_to_xyxy
from libreyolo.ops.iou import pairwise_giou


class Matches(NamedTuple):
    """Per target the query that it was given, [L, B, N], and whether it was given one (else the query is 0)."""

    queries: Tensor
    found: Tensor


def focal_cost(logits: Tensor, labels: Tensor, *, alpha: float = 0.25, gamma: float = 2.0) -> Tensor:
    """Return the focal loss of giving a query a target's class, less that of not giving it, [..., Q, N].

    logits: [..., Q, C]; labels: [..., N].
    """
    p = logits.sigmoid()
    no = (1 - alpha) * p.pow(gamma) * -(1 - p + 1e-8).log()
    yes = alpha * (1 - p).pow(gamma) * -(p + 1e-8).log()
    index = labels.unsqueeze(-2).expand(*logits.shape[:-1], labels.shape[-1])
    return (yes - no).gather(-1, index)


def box_cost(boxes: Tensor, targets: Tensor, size: Tensor, *, l1: float, giou: float) -> Tensor:
    """Return l1 * |difference| - giou * GIoU, [..., Q, N], of boxes [..., Q, 4] and targets [..., N, 4], cxcywh in fractions of `size` [4]."""
    distance = (boxes.unsqueeze(-2) - targets.unsqueeze(-3)).abs().sum(-1)
    overlap = pairwise_giou(cxcywh_to_xyxy(boxes * size), cxcywh_to_xyxy(targets * size))
    return l1 * distance - giou * overlap


@torch.no_grad()
def match(cost: Tensor, counts: Tensor) -> Matches:
    """Return the cheapest one-to-one assignment for every level and picture from costs [L, B, Q, N].

    counts: [B] on the CPU, how many of a picture's N targets are real (they come first); with more targets than queries some stay without. The
    costs cross to the host in one copy, and the answer back in another. A cost that is not a number counts as the dearest.
    """
    host = torch.nan_to_num(cost, nan=1e6, posinf=1e6, neginf=-1e6).cpu().numpy()
    levels, batch, _, most = host.shape
    queries = torch.full((levels, batch, most), -1, dtype=torch.int64)
    for level in range(levels):
        for picture, count in enumerate(counts.tolist()):
            rows, columns = linear_sum_assignment(host[level, picture, :, :count])
            queries[level, picture, torch.from_numpy(columns)] = torch.from_numpy(rows)
    on_device = queries.to(cost.device, non_blocking=True)
    return Matches(on_device.clamp(min=0), on_device >= 0)
