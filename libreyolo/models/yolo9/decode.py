"""From yolo9's raw maps to boxes and probabilities, and to detections. B batch, A anchors, C classes, D detections of a picture."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from libreyolo.models.yolo9.network import REG_MAX, STRIDES, YOLO9Output
from libreyolo.ops.boxes import clip_boxes_to, distances_to_xyxy, grid_centres
from libreyolo.ops.nms import detections_of


def flatten(maps: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
    """Return side logits [B, A, 4, 16] and class logits [B, A, C] of raw maps; at least float32, anchors level by level and row-major."""
    rows = torch.cat([level.flatten(2) for level in maps], dim=2).transpose(1, 2)
    if rows.dtype in (torch.float16, torch.bfloat16):
        rows = rows.float()
    sides, classes = rows.split((4 * REG_MAX, rows.shape[2] - 4 * REG_MAX), dim=2)
    return sides.unflatten(2, (4, REG_MAX)), classes


def anchors_of(maps: Sequence[Tensor], strides: Sequence[int] = STRIDES) -> tuple[Tensor, Tensor]:
    """Return the centres [A, 2] in input pixels and the strides [A, 1] of the cells of raw maps."""
    return grid_centres([(level.shape[2], level.shape[3]) for level in maps], strides, maps[0].device)


def expected_boxes(side_logits: Tensor, centres: Tensor, strides: Tensor) -> Tensor:
    """Return xyxy boxes [B, A, 4] in pixels: a side's distance is the mean of its distribution over the bins (arXiv 2006.04388, eq. 4)."""
    # A sum of products and no matmul, which autocast would do in half precision.
    bins = torch.arange(REG_MAX, device=side_logits.device, dtype=side_logits.dtype)
    distances = (side_logits.softmax(dim=-1) * bins).sum(dim=-1)
    return distances_to_xyxy(centres, distances * strides)


def decode(output: YOLO9Output | Sequence[Tensor], strides: Sequence[int] = STRIDES) -> tuple[Tensor, Tensor]:
    """Return boxes [B, A, 4] (xyxy in input pixels, not clipped) and class probabilities [B, A, C], at least float32.

    output: the network's output, of which the main maps are read, or a list of raw maps.
    """
    maps = output.main if isinstance(output, YOLO9Output) else output
    side_logits, class_logits = flatten(maps)
    return expected_boxes(side_logits, *anchors_of(maps, strides)), class_logits.sigmoid()


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
