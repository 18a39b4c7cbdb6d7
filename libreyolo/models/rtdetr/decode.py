"""From rtdetr's output to detections. B batch, Q queries, K classes, D detections of a picture."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from libreyolo.models.rtdetr.network import RTDETROutput
from libreyolo.ops.boxes import cxcywh_to_xyxy


def decode(output: RTDETROutput) -> tuple[Tensor, Tensor]:
    """Return boxes [B, Q, 4] (xyxy in input pixels, not clipped) and class probabilities [B, Q, K] of an evaluation, at least float32."""
    logits, boxes = (t[0].to(torch.promote_types(t.dtype, torch.float32)) for t in output.matching)
    height, width = output.hw
    return cxcywh_to_xyxy(boxes) * boxes.new_tensor([width, height, width, height]), logits.sigmoid()


def detect(
    output: RTDETROutput,
    *,
    conf: float,
    max_det: int,
    iou: float = 1.0,
    classes: Sequence[int] | None = None,
    content: Tensor | None = None,
) -> list[tuple[Tensor, Tensor, Tensor]]:
    """Return per picture boxes [D, 4] (xyxy in input pixels), scores [D] and labels [D], best first, D <= max_det, possibly 0.

    The best `max_det` pairs of query and class, of those the ones above `conf`; a query may appear with several classes. Matching has taught the
    network to say each object once, so nothing is suppressed: `iou` and `content` are not looked at. `classes` keeps these labels only.
    """
    boxes_BQ4, scores_BQK = decode(output)
    num_classes = scores_BQK.shape[2]
    if classes is not None:
        asked = torch.zeros(num_classes, dtype=torch.bool, device=scores_BQK.device)
        asked[[c for c in classes if c < num_classes]] = True
        scores_BQK = scores_BQK * asked
    scores_BD, pairs_BD = scores_BQK.flatten(1).topk(min(max_det, scores_BQK[0].numel()), dim=1)
    labels_BD = pairs_BD % num_classes
    picked_BD4 = boxes_BQ4.gather(1, (pairs_BD // num_classes).unsqueeze(-1).expand(-1, -1, 4))
    detections = []
    for boxes, scores, labels in zip(picked_BD4, scores_BD, labels_BD, strict=True):
        kept = scores > conf
        if classes is not None:
            kept &= asked[labels]
        detections.append((boxes[kept], scores[kept], labels[kept]))
    return detections
