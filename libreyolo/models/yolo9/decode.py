"""From yolo9's raw maps to boxes and probabilities, and to detections. B batch, A anchors, C classes, D detections of a picture."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from libreyolo.models.yolo9.network import REG_MAX, STRIDES, YOLO9Output
from libreyolo.ops.boxes import clip_boxes_to, grid_centres
from libreyolo.ops.nms import detections_of


class Anchors(NamedTuple):
    """The cells of raw maps, as boxes are read from them: place + distance in strides * step is a box's side.

    places: [A, 4] float32, a centre twice (x, y, x, y), in input pixels. steps: [A, 4] float32, (-s, -s, s, s), s the stride. bins: [16] float32,
    the distances that a distribution is over.
    """

    places: Tensor
    steps: Tensor
    bins: Tensor

    def at(self, index: Tensor) -> Anchors:
        """Return the anchors of an index [...], places and steps [..., 4]."""
        return Anchors(self.places[index], self.steps[index], self.bins)


def flatten(maps: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
    """Return side logits [B, A, 4, 16] and class logits [B, A, C] of raw maps; at least float32, anchors level by level and row-major."""
    rows = torch.cat([level.flatten(2) for level in maps], dim=2).transpose(1, 2)
    if rows.dtype in (torch.float16, torch.bfloat16):
        rows = rows.float()
    sides, classes = rows.split((4 * REG_MAX, rows.shape[2] - 4 * REG_MAX), dim=2)
    return sides.unflatten(2, (4, REG_MAX)), classes


def anchors_of(maps: Sequence[Tensor], strides: Sequence[int] = STRIDES) -> Anchors:
    """Return the anchors of raw maps."""
    centres, steps = grid_centres([(level.shape[2], level.shape[3]) for level in maps], strides, maps[0].device)
    bins = torch.arange(REG_MAX, device=centres.device, dtype=centres.dtype)
    return Anchors(centres.repeat(1, 2), torch.cat((-steps, -steps, steps, steps), dim=1), bins)


def expected_boxes(side_logits: Tensor, anchors: Anchors) -> Tensor:
    """Return xyxy boxes [..., 4] in pixels of logits [..., 4, 16] and their anchors: a side's distance is the mean of its distribution over the bins
    (arXiv 2006.04388, eq. 4)."""
    # A sum of products and no matmul, which autocast would do in half precision.
    distances = (side_logits.softmax(dim=-1) * anchors.bins).sum(dim=-1)
    return torch.addcmul(anchors.places, distances, anchors.steps)


def decode(output: YOLO9Output | Sequence[Tensor], strides: Sequence[int] = STRIDES) -> tuple[Tensor, Tensor]:
    """Return boxes [B, A, 4] (xyxy in input pixels, not clipped) and class probabilities [B, A, C], at least float32.

    output: the network's output, of which the main maps are read, or a list of raw maps.
    """
    maps = output.main if isinstance(output, YOLO9Output) else output
    side_logits, class_logits = flatten(maps)
    return expected_boxes(side_logits, anchors_of(maps, strides)), class_logits.sigmoid()


def detect(
    output: YOLO9Output | Sequence[Tensor],
    *,
    conf: float,
    iou: float,
    max_det: int,
    multi_label: bool = True,
    classes: Sequence[int] | None = None,
    content: Tensor | None = None,
) -> list[tuple[Tensor, Tensor, Tensor]]:
    """Return per picture boxes [D, 4] (xyxy in input pixels), scores [D] and labels [D], best first, D <= max_det, possibly 0.

    Every class with a probability above `conf` is a candidate of its own (or only an anchor's best class, if not `multi_label`); boxes that
    overlap a better one of their class by more than `iou` are dropped. `classes` keeps these labels only.
    content: [B, 4], the part of each input that holds the picture (xyxy in input pixels). Boxes are clipped to it before they are compared,
        as the published predictions are: two boxes that differ only outside the picture are one.
    """
    boxes_BA4, scores_BAC = decode(output)
    if content is not None:
        boxes_BA4 = clip_boxes_to(boxes_BA4, content.to(boxes_BA4))
    return detections_of(boxes_BA4, scores_BAC, conf=conf, iou=iou, max_det=max_det, multi_label=multi_label, classes=classes)
