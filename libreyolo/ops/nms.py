"""From dense boxes and class probabilities of one picture to its detections. A anchors, C classes, K candidates, D detections."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

MAX_CANDIDATES = 30_000  # NMS compares pairs: beyond this the time is felt and the low scores never matter


class Candidates(NamedTuple):
    """Boxes [K, 4], scores [K] and labels [K] (int64), best first."""

    boxes: Tensor
    scores: Tensor
    labels: Tensor


def select_candidates(
    boxes: Tensor,
    scores: Tensor,
    *,
    conf: float,
    multi_label: bool = True,
    classes: Sequence[int] | None = None,
    max_candidates: int = MAX_CANDIDATES,
) -> Candidates:
    """Return the candidates with a score above `conf`, best first, at most `max_candidates`; ties keep anchor-then-class order.

    boxes: [A, 4]; scores: [A, C] probabilities.
    multi_label: every class of an anchor is a candidate of its own, else its best class only.
    classes: when given, only these labels are kept, before the cut to `max_candidates`.
    """
    if multi_label:
        chosen = scores > conf
    else:
        best = scores.argmax(dim=1, keepdim=True)
        chosen = torch.zeros_like(scores, dtype=torch.bool).scatter_(1, best, scores.gather(1, best) > conf)
    if classes is not None:
        allowed = torch.zeros(scores.shape[1], dtype=torch.bool, device=scores.device)
        allowed[torch.as_tensor(list(classes), dtype=torch.int64, device=scores.device)] = True
        chosen = chosen & allowed
    anchor, label = chosen.nonzero(as_tuple=True)
    score = scores[anchor, label]
    order = score.argsort(descending=True, stable=True)[:max_candidates]
    return Candidates(boxes[anchor[order]], score[order], label[order])


def detections_of(
    boxes_BA4: Tensor,
    scores_BAC: Tensor,
    *,
    conf: float,
    iou: float,
    max_det: int,
    multi_label: bool = True,
    classes: Sequence[int] | None = None,
) -> list[tuple[Tensor, Tensor, Tensor]]:
    """Return what `select_candidates` and then `class_wise_nms` leave of each picture: boxes [D, 4], scores [D], labels [D], D <= max_det."""
    found = []
    for boxes, scores in zip(boxes_BA4, scores_BAC, strict=True):
        candidates = select_candidates(boxes, scores, conf=conf, multi_label=multi_label, classes=classes)
        kept = class_wise_nms(candidates, iou=iou, max_det=max_det)
        found.append((kept.boxes, kept.scores, kept.labels))
    return found


def class_wise_nms(candidates: Candidates, *, iou: float, max_det: int) -> Candidates:
    """Return what is left, best first and at most `max_det`, after dropping boxes that overlap a better one of their class by more
    than `iou`.

    In float64, because torchvision tells classes apart by shifting their boxes: in float32 the shift costs up to 0.01 px.
    """
    import torchvision  # seconds to import, and training begins without it

    boxes, scores, labels = candidates
    kept = torchvision.ops.batched_nms(boxes.double(), scores.double(), labels, iou)
    kept = kept.sort().values[:max_det]  # the candidates come best first, so their order is the order of scores, ties included
    return Candidates(boxes[kept], scores[kept], labels[kept])
