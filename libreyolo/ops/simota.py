"""SimOTA: each target takes as many of the cheapest anchors around its centre as its overlaps add up to (arXiv 2107.08430, section 2.1).

B batch, N targets (padded), A anchors, C classes, K anchors that a target may take, P = N * K slots per picture.

The result is sparse, [B, P] slots instead of [B, A] rows, because a target takes few anchors while A is thousands: the loss gathers the few
predictions that it needs. Nothing here depends on the number of valid targets, so nothing waits for the device.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from libreyolo.ops.iou import pairwise_iou

EPS = 1e-8  # keeps the logarithm of no overlap finite
FAR = 1e6  # cost of a cell outside the target's own region: taken only where the region has too few cells
# Pairs of target and anchor that are worked on at once, 32 MiB for each float32 table: 16 pictures of 640 pixels with 300 targets each are
# cut into pieces of 3, which then need 0.4 GiB instead of 2.
MAX_PAIRS = 2**23


class SlotAssignment(NamedTuple):
    """Which anchor belongs to which target.

    anchors: [B, P] int64 in [0, A); every anchor is in use at most once per picture.
    targets: [B, P] int64 in [0, N).
    used: [B, P] bool; the other slots are meaningless.
    overlap: [B, P] IoU of the anchor's predicted box with its target, 0 where not used.
    """

    anchors: Tensor
    targets: Tensor
    used: Tensor
    overlap: Tensor


@torch.no_grad()
def simota(
    boxes: Tensor,
    objectness: Tensor,
    class_logits: Tensor,
    centres: Tensor,
    strides: Tensor,
    target_boxes: Tensor,
    target_labels: Tensor,
    target_valid: Tensor,
    *,
    radius: float = 1.5,
    topk: int = 10,
    overlap_weight: float = 3.0,
) -> SlotAssignment:
    """Assign to every valid target its k cheapest candidates, k being the sum of its `topk` best overlaps, rounded down and at least 1.

    A picture's candidates are the anchors whose centre lies less than `radius` strides, in x and in y, from the centre of any of its targets.
    Cost of a pair: cross-entropy of sqrt(objectness * class) with the target's class - `overlap_weight` * log IoU, and FAR where the anchor
    does not lie around this very target. An anchor that several targets take goes to the one it is cheapest for, whether that one took it or
    not, as published. Deterministic; a target without candidates takes none; N >= 1.

    boxes: [B, A, 4] float32 predicted xyxy; objectness: [B, A] and class_logits: [B, A, C] float32 logits; centres: [A, 2]; strides: [A, 1].
    target_boxes: [B, N, 4] xyxy; target_labels: [B, N] int64; target_valid: [B, N] bool; all in the pixels of the boxes.
    """
    rows = max(1, MAX_PAIRS // (target_boxes.shape[1] * boxes.shape[1]))
    pieces = [tensor.split(rows) for tensor in (boxes, objectness, class_logits, target_boxes, target_labels, target_valid)]
    found = [
        _assign(*piece, centres=centres, reach=radius * strides, topk=min(topk, boxes.shape[1]), overlap_weight=overlap_weight)
        for piece in zip(*pieces, strict=True)
    ]
    return SlotAssignment(*(torch.cat(parts) for parts in zip(*found, strict=True)))


def _assign(
    boxes: Tensor,
    objectness: Tensor,
    class_logits: Tensor,
    target_boxes: Tensor,
    target_labels: Tensor,
    target_valid: Tensor,
    *,
    centres: Tensor,
    reach: Tensor,
    topk: int,
    overlap_weight: float,
) -> SlotAssignment:
    """Assign some pictures; `reach` [A, 1] in pixels."""
    around = _around(centres, reach, target_boxes) & target_valid.unsqueeze(2)  # [B, N, A]
    possible = around.any(dim=1, keepdim=True) & target_valid.unsqueeze(2)
    overlap = pairwise_iou(target_boxes, boxes) * possible
    cost = class_cost(objectness, class_logits, target_labels) - overlap_weight * (overlap + EPS).log()
    cost = (cost + FAR * ~around).masked_fill(~possible, torch.inf)
    wanted = overlap.topk(topk, dim=2).values.sum(dim=2).int().clamp(min=1)
    values, anchors = cost.topk(topk, dim=2, largest=False)
    used = (torch.arange(topk, device=boxes.device) < wanted.unsqueeze(2)) & values.isfinite()
    return _settle(anchors, used, cost, overlap)


def class_cost(objectness: Tensor, class_logits: Tensor, labels: Tensor) -> Tensor:
    """Return [B, N, A]: binary cross-entropy of p = sqrt(objectness * class), summed over classes, with each target's class.

    A logarithm is at least -100, as in torch's own cross-entropy of probabilities. No [B, N, A, C] table is made: but for the target's class
    every class wants 0, whose sum belongs to the anchor alone.
    """
    log_p = (F.logsigmoid(objectness).unsqueeze(2) + F.logsigmoid(class_logits)) / 2
    log_q = torch.log1p(-log_p.exp()).clamp(min=-100)
    extra = log_q - log_p.clamp(min=-100)
    picked = extra.gather(2, labels.unsqueeze(1).expand(-1, objectness.shape[1], -1))
    return picked.transpose(1, 2) - log_q.sum(dim=2).unsqueeze(1)


def _around(centres: Tensor, reach: Tensor, target_boxes: Tensor) -> Tensor:
    """Return [B, N, A]: whether the anchor's centre is nearer than its reach to the target's centre, in x and in y."""
    middle = (target_boxes[..., :2] + target_boxes[..., 2:]) / 2
    gaps = (centres - middle.unsqueeze(2)).abs()  # [B, N, A, 2]
    return (gaps < reach).all(dim=3)


def _settle(anchors: Tensor, used: Tensor, cost: Tensor, overlap: Tensor) -> SlotAssignment:
    """Give every anchor that several targets took to the one with the smallest cost, in the first of their slots.

    anchors, used: [B, N, K]; cost, overlap: [B, N, A].
    """
    batch, num_targets, num_slots = anchors.shape
    num_anchors = cost.shape[2]
    anchors, used = anchors.flatten(1), used.flatten(1)
    slot = torch.arange(num_targets * num_slots, device=anchors.device).expand(batch, -1)
    claims = torch.zeros(batch, num_anchors, dtype=torch.int64, device=anchors.device).scatter_add(1, anchors, used.long())
    first = slot.new_full((batch, num_anchors), slot.shape[1]).scatter_reduce(1, anchors, slot.masked_fill(~used, slot.shape[1]), "amin")
    contested = claims.gather(1, anchors) > 1
    targets = torch.where(contested, cost.argmin(dim=1).gather(1, anchors), slot // num_slots)
    used = used & (slot == first.gather(1, anchors))
    picked = overlap.flatten(1).gather(1, targets * num_anchors + anchors)
    return SlotAssignment(anchors, targets, used, picked * used)
