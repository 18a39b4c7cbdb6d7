"""Task-aligned assignment of anchors to targets (TOOD, arXiv 2108.07755, section 3.2), as the YOLO family uses it.

B batch, N targets (padded), A anchors, C classes, K anchors that a target may take.

The result is sparse, [B, N, K] slots instead of [B, A] rows, because a target takes at most K anchors while A is thousands: the loss
gathers the few predictions that it needs. Nothing here depends on the number of valid targets, so nothing waits for the device.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from libreyolo.ops.boxes import in_planes
from libreyolo.ops.iou import pairwise_ciou

EPS = 1e-9  # keeps 0 / 0 at 0 for a target that no prediction overlaps


class Assignment(NamedTuple):
    """Which anchors each target takes.

    anchors: [B, N, K] int64 in [0, A); every anchor is in use at most once per picture.
    used: [B, N, K] bool; the other slots are meaningless and have weight 0.
    weight: [B, N, K] float32 in [0, 1], the soft class target of the pair: metric / best metric of the target * best IoU of the target.
    """

    anchors: Tensor
    used: Tensor
    weight: Tensor


@torch.no_grad()
def task_aligned(
    boxes: Tensor,
    probabilities: Tensor,
    centres: Tensor,
    target_boxes: Tensor,
    target_labels: Tensor,
    target_valid: Tensor,
    *,
    reach: Tensor | None = None,
    topk: int = 10,
    class_power: float = 0.5,
    overlap_power: float = 6.0,
) -> Assignment:
    """Assign to every valid target the `topk` anchors with the best metric = overlap^6 * probability^0.5 among those that fit it.

    An anchor fits when its centre lies inside the box (the border counts) and no side is farther than its `reach`.

    boxes: [B, A, 4] float32 predicted xyxy; probabilities: [B, A, C] float32; centres: [A, 2]; all in the pixels of the targets.
    reach: [A] the largest distance that an anchor can predict, or None where there is no limit.
    target_boxes: [B, N, 4] xyxy; target_labels: [B, N] int64; target_valid: [B, N] bool.
    The overlap is CIoU, at least 0. A target without any fitting anchor of positive metric takes the one with the best metric anywhere. An
    anchor wanted by several targets goes to the one that it overlaps most, then to the first. Deterministic; N >= 1.
    """
    target_boxes = in_planes(target_boxes)
    overlap = pairwise_ciou(target_boxes, boxes).clamp_(min=0)  # [B, N, A]
    labels = target_labels.unsqueeze(2).expand(-1, -1, boxes.shape[1])
    metric = probabilities.transpose(1, 2).gather(1, labels).pow(class_power) * overlap.pow(overlap_power)
    metric = metric * target_valid.unsqueeze(-1)

    anchors, used = _best_fitting(metric, _fits(centres, target_boxes, reach), topk)
    slot_overlap = torch.where(used, overlap.gather(2, anchors), -1.0)
    used = used & _wins(anchors, slot_overlap, num_anchors=boxes.shape[1])
    slot_metric = metric.gather(2, anchors) * used
    best_metric = slot_metric.amax(dim=2, keepdim=True)
    best_overlap = (slot_overlap * used).amax(dim=2, keepdim=True)
    return Assignment(anchors, used, slot_metric / (best_metric + EPS) * best_overlap)


def _fits(centres: Tensor, boxes: Tensor, reach: Tensor | None) -> Tensor:
    """Return [B, N, A]: whether the centre lies inside the box, its border included, and no side is out of reach."""
    low, high = boxes.unsqueeze(-2).split(2, dim=-1)
    before, after = centres - low, high - centres  # [B, N, A, 2]
    fits = torch.minimum(*torch.minimum(before, after).unbind(-1)) >= 0
    return fits if reach is None else fits & (torch.maximum(*torch.maximum(before, after).unbind(-1)) <= reach)


def _best_fitting(metric: Tensor, fits: Tensor, topk: int) -> tuple[Tensor, Tensor]:
    """Return the slots [B, N, K] and whether they are taken, before conflicts; a target without any takes its best anchor in slot 0."""
    values, anchors = (metric * fits).topk(min(topk, metric.shape[2]), dim=2)
    used = values > 0
    best_value, best_anchor = metric.max(dim=2)
    # Slots are sorted: a target whose first one is empty has none.
    anchors[..., 0] = torch.where(used[..., 0], anchors[..., 0], best_anchor)
    used[..., 0] = best_value > 0
    return anchors, used


def _wins(anchors: Tensor, overlap: Tensor, num_anchors: int) -> Tensor:
    """Return [B, N, K]: whether the slot's target has the largest overlap among those that took its anchor, the first one of equals.

    overlap: [B, N, K], below 0 where the slot is not taken.
    """
    flat, overlap = anchors.flatten(1), overlap.flatten(1)
    best = overlap.new_full((len(flat), num_anchors), -1).scatter_reduce_(1, flat, overlap, "amax")
    largest = overlap == best.gather(1, flat)
    place = torch.arange(flat.shape[1], device=flat.device)  # slots of one target stand together, and none takes an anchor twice
    candidate = torch.where(largest, place, len(place))
    first = candidate.new_full((len(flat), num_anchors), len(place)).scatter_reduce_(1, flat, candidate, "amin")
    return (place == first.gather(1, flat)).view_as(anchors)
