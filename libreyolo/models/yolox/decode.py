"""From yolox's raw maps to boxes and probabilities, and to detections. B batch, A anchors, C classes, D detections of a picture."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from libreyolo.models.yolox.network import STRIDES
from libreyolo.ops.boxes import clip_boxes_to, cxcywh_to_xyxy, grid_centres
from libreyolo.ops.iou import area
from libreyolo.ops.nms import detections_of


class Rows(NamedTuple):
    """What the maps say of every anchor: shifts [B, A, 4], objectness logits [B, A] and class logits [B, A, C]."""

    shifts: Tensor
    objectness: Tensor
    classes: Tensor


def flatten(maps: Sequence[Tensor]) -> Rows:
    """Return the rows of raw maps, at least float32, anchors level by level and row-major."""
    rows = torch.cat([level.flatten(2) for level in maps], dim=2).transpose(1, 2)
    if rows.dtype in (torch.float16, torch.bfloat16):
        rows = rows.float()
    shifts, objectness, classes = rows.split((4, 1, rows.shape[2] - 5), dim=2)
    return Rows(shifts, objectness.squeeze(2), classes)


def anchors_of(maps: Sequence[Tensor], strides: Sequence[int] = STRIDES) -> tuple[Tensor, Tensor]:
    """Return the centres [A, 2] in input pixels and the strides [A, 1] of the cells of raw maps."""
    return grid_centres([(level.shape[2], level.shape[3]) for level in maps], strides, maps[0].device)


def shifted_boxes(shifts: Tensor, centres: Tensor, strides: Tensor) -> Tensor:
    """Return xyxy boxes [B, A, 4] in pixels: centre = cell's top left corner + shift * stride, size = exp(shift) * stride."""
    corners = centres - strides / 2
    return cxcywh_to_xyxy(torch.cat((corners + shifts[..., :2] * strides, shifts[..., 2:].exp() * strides), dim=-1))


def decode(maps: Sequence[Tensor], strides: Sequence[int] = STRIDES) -> tuple[Tensor, Tensor]:
    """Return boxes [B, A, 4] (xyxy in input pixels, not clipped) and scores [B, A, C], objectness times class probability."""
    shifts, objectness, classes = flatten(maps)
    return shifted_boxes(shifts, *anchors_of(maps, strides)), objectness.sigmoid().unsqueeze(2) * classes.sigmoid()


def detect(
    output: Sequence[Tensor],
    *,
    conf: float,
    iou: float,
    max_det: int,
    multi_label: bool = False,
    classes: Sequence[int] | None = None,
    content: Tensor | None = None,
) -> list[tuple[Tensor, Tensor, Tensor]]:
    """Return per picture boxes [D, 4] (xyxy in input pixels), scores [D] and labels [D], best first, D <= max_det, possibly 0.

    An anchor's best class with a score above `conf` is a candidate (every such class, if `multi_label`); boxes that overlap a better one of
    their class by more than `iou` are dropped. `classes` keeps these labels only.
    content: [B, 4], the part of each input that holds the picture (xyxy in input pixels). Boxes are clipped to it before they are compared, and
        those of which nothing is left are dropped, as in the published predictions.
    """
    boxes_BA4, scores_BAC = decode(output)
    if content is not None:
        boxes_BA4 = clip_boxes_to(boxes_BA4, content.to(boxes_BA4))
        scores_BAC = scores_BAC * (area(boxes_BA4) > 0).unsqueeze(2)  # a score of 0 is above no threshold
    return detections_of(boxes_BA4, scores_BAC, conf=conf, iou=iou, max_det=max_det, multi_label=multi_label, classes=classes)
