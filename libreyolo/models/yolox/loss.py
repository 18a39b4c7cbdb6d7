"""The loss of yolox: squared IoU, objectness and class cross-entropy over SimOTA's pairs, and L1 in the last epochs (arXiv 2107.08430).

B batch, N targets, A anchors, C classes, P slots of pairs per picture. Always in float32 or wider.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from libreyolo.interfaces.batch import DetectionBatch
from libreyolo.interfaces.term import Term, per_count
from libreyolo.models.yolox.decode import Rows, anchors_of, flatten, shifted_boxes
from libreyolo.models.yolox.network import STRIDES
from libreyolo.ops.boxes import xyxy_to_cxcywh
from libreyolo.ops.iou import iou
from libreyolo.ops.simota import SlotAssignment, simota

IOU_GAIN = 5.0
EPS = 1e-8  # keeps the logarithm of a target without width or height finite


class YOLOXLoss:
    """The terms of a batch: sums over this rank's pictures, to be divided by the positive anchors of all ranks, at least 1.

    nc: number of classes.
    epochs, no_aug_epochs: the L1 term counts in the last `no_aug_epochs` of `epochs`, those whose boxes no mosaic has cut.
    class_weights: [C] factors of the classes in the "cls" term, None for 1.
    strides: of the raw maps.
    """

    def __init__(self, nc: int, *, epochs: int, no_aug_epochs: int, class_weights: Tensor | None = None, strides: Sequence[int] = STRIDES) -> None:
        self.nc = nc
        self.first_l1_epoch = epochs - no_aug_epochs
        self.class_weights = class_weights
        self.strides = tuple(strides)

    def inputs(self, batch: DetectionBatch, facts: Mapping[str, int]) -> tuple[Tensor]:
        """Return the arguments of the network's forward; `facts` are those of all ranks."""
        return (batch.images,)

    def facts(self, batch: DetectionBatch) -> dict[str, int]:
        """Return the numbers that ranks agree on (by maximum) before the forward: none here."""
        return {}

    def target_stats(self, batch: DetectionBatch) -> dict[str, Tensor]:
        """Return the normalisers that targets alone decide: none here, the number of positives follows the network's output."""
        return {}

    def terms(self, output: Sequence[Tensor], batch: DetectionBatch) -> dict[str, Term]:
        """Return the terms "iou", "obj" and "cls", and "l1" in its epochs, all with the normaliser "positives".

        A batch without any object gives zero "iou", "cls" and "l1" and the background part of "obj"; every parameter still gets a gradient.
        A picture of weight 0 adds nothing to any sum.
        """
        with torch.autocast(output[0].device.type, enabled=False):
            sums, count = pair_sums(output, batch, self.strides, self.class_weights)
        if batch.epoch < self.first_l1_epoch:
            del sums["l1"]
        return {name: per_count(total, count, normaliser="positives") for name, total in sums.items()}


def pair_sums(
    maps: Sequence[Tensor], batch: DetectionBatch, strides: Sequence[int] = STRIDES, class_weights: Tensor | None = None
) -> tuple[dict[str, Tensor], Tensor]:
    """Return the weighted sums "iou", "obj", "cls" and "l1" (0-dim, differentiable) and the number of positive anchors (0-dim)."""
    rows = flatten(maps)
    centres, steps = anchors_of(maps, strides)
    boxes = shifted_boxes(rows.shifts, centres, steps)
    found = simota(boxes, rows.objectness, rows.classes, centres, steps, batch.boxes, batch.labels, batch.valid)
    counts_BP = found.used * batch.weight.unsqueeze(1).to(rows.shifts.dtype)
    target_boxes = _rows_at(batch.boxes, found.targets)
    labels_BP = batch.labels.gather(1, found.targets)
    wanted = shifts_to(target_boxes, centres[found.anchors], steps[found.anchors])
    background_B = F.softplus(rows.objectness).sum(dim=1)  # BCE(x, t) = softplus(x) - t x, and t is 0 but for the positives
    sums = {
        "iou": IOU_GAIN * (counts_BP * (1 - iou(_rows_at(boxes, found.anchors), target_boxes).square())).sum(),
        "obj": (batch.weight * background_B).sum() - (counts_BP * rows.objectness.gather(1, found.anchors)).sum(),
        "cls": _class_sum(rows, found, labels_BP, counts_BP, class_weights),
        "l1": (counts_BP * (_rows_at(rows.shifts, found.anchors) - wanted).abs().sum(dim=2)).sum(),
    }
    return sums, counts_BP.sum()


def shifts_to(boxes: Tensor, centres: Tensor, strides: Tensor) -> Tensor:
    """Return the shifts [..., 4] that anchors (centres [..., 2], strides [..., 1]) must predict to give these xyxy boxes."""
    cxcywh = xyxy_to_cxcywh(boxes)
    # The shift is counted from the cell's top left corner, half a stride before its centre.
    return torch.cat(((cxcywh[..., :2] - centres) / strides + 0.5, (cxcywh[..., 2:] / strides + EPS).log()), dim=-1)


def _class_sum(rows: Rows, found: SlotAssignment, labels_BP: Tensor, counts_BP: Tensor, class_weights: Tensor | None) -> Tensor:
    """Return the binary cross-entropy of the positives with their class, worth the pair's IoU, summed over classes."""
    logits_BPC = _rows_at(rows.classes, found.anchors)
    against_BPC = F.softplus(logits_BPC)
    overlap_BP = found.overlap
    if class_weights is not None:
        class_weights = class_weights.to(logits_BPC, non_blocking=True)
        against_BPC = against_BPC * class_weights
        overlap_BP = overlap_BP * class_weights[labels_BP]
    own_BP = logits_BPC.gather(2, labels_BP.unsqueeze(2)).squeeze(2)
    return (counts_BP * (against_BPC.sum(dim=2) - overlap_BP * own_BP)).sum()


def _rows_at(table: Tensor, index: Tensor) -> Tensor:
    """Return rows [B, P, D] of a table [B, M, D] by index [B, P]."""
    return table.gather(1, index.unsqueeze(2).expand(-1, -1, table.shape[2]))


build = YOLOXLoss
