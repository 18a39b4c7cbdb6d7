"""The loss of yolo9: complete IoU, distribution focal and class cross-entropy over task-aligned targets (arXiv 2402.13616, as published).

B batch, N targets, A anchors, C classes, K slots per target, P = N * K slots per picture. Always in float32 or wider.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from libreyolo.interfaces.batch import DetectionBatch
from libreyolo.interfaces.term import Term, per_count
from libreyolo.models.yolo9.decode import anchors_of, expected_boxes, flatten
from libreyolo.models.yolo9.network import REG_MAX, STRIDES, YOLO9Output
from libreyolo.ops.assign import task_aligned
from libreyolo.ops.boxes import xyxy_to_distances
from libreyolo.ops.iou import ciou

# The largest distance, in strides, that lies between two bins of the distribution: 15, less a margin that
# keeps the index of the upper bin at 15.
REACH = REG_MAX - 1 - 0.01


class YOLO9Loss:
    """The terms of a batch: sums over this rank's pictures, to be divided by the soft targets of all ranks, at least 1.

    nc: number of classes. The gains are factors of the three terms.
    class_weights: [C] factors of the classes in the "cls" term, None for 1; the normaliser stays the plain sum of soft targets.
    aux_weight: factor of the PGI branch's terms. 0 leaves them out, and the network should then be built without the branch.
    strides: of the raw maps.
    """

    def __init__(
        self,
        nc: int,
        *,
        aux_weight: float = 0.25,
        box_gain: float = 7.5,
        dfl_gain: float = 1.5,
        cls_gain: float = 0.5,
        class_weights: Tensor | None = None,
        strides: Sequence[int] = STRIDES,
    ) -> None:
        self.nc = nc
        self.aux_weight = aux_weight
        self.gains = {"box": box_gain, "cls": cls_gain, "dfl": dfl_gain}
        self.class_weights = class_weights
        self.strides = tuple(strides)

    def inputs(self, batch: DetectionBatch, facts: Mapping[str, int]) -> tuple[Tensor]:
        """Return the arguments of the network's forward; `facts` are those of all ranks."""
        return (batch.images,)

    def facts(self, batch: DetectionBatch) -> dict[str, int]:
        """Return the numbers that ranks agree on (by maximum) before the forward: none here."""
        return {}

    def target_stats(self, batch: DetectionBatch) -> dict[str, Tensor]:
        """Return the normalisers that targets alone decide: none here, soft targets follow the network's output."""
        return {}

    def terms(self, output: YOLO9Output, batch: DetectionBatch) -> dict[str, Term]:
        """Return the terms "box", "cls" and "dfl" and, where the output has a PGI branch that counts, "aux_box", "aux_cls" and "aux_dfl".

        The two branches assign on their own and so have a normaliser each, "targets" and "aux_targets": the soft targets of a branch, which
        depend on the network's output. A batch without any object gives zero "box" and "dfl" and the background part of "cls"; every
        parameter still gets a gradient. A picture of weight 0 adds nothing to any sum.
        """
        terms = self._branch(output.main, batch, prefix="", weight=1.0)
        if output.aux is not None and self.aux_weight != 0:
            terms |= self._branch(output.aux, batch, prefix="aux_", weight=self.aux_weight)
        return terms

    def _branch(self, maps: list[Tensor], batch: DetectionBatch, *, prefix: str, weight: float) -> dict[str, Term]:
        with torch.autocast(maps[0].device.type, enabled=False):
            sums, count = branch_sums(maps, batch, self.strides, self.class_weights)
        return {
            prefix + name: per_count(weight * gain * sums[name], count, normaliser=f"{prefix}targets", report=name)
            for name, gain in self.gains.items()
        }


def branch_sums(
    maps: list[Tensor], batch: DetectionBatch, strides: Sequence[int] = STRIDES, class_weights: Tensor | None = None
) -> tuple[dict[str, Tensor], Tensor]:
    """Return the unweighted sums "box", "cls", "dfl" of one branch (0-dim, differentiable) and its sum of soft targets (0-dim)."""
    side_logits, class_logits = flatten(maps)
    centres, steps = anchors_of(maps, strides)
    boxes = expected_boxes(side_logits, centres, steps)
    found = task_aligned(
        boxes,
        class_logits.sigmoid(),
        centres,
        batch.boxes,
        batch.labels,
        batch.valid,
        reach=steps.squeeze(1) * REACH,
    )
    anchors_BP = found.anchors.flatten(1)
    soft_BP = (found.weight * batch.weight.view(-1, 1, 1)).flatten(1)
    count = soft_BP.sum()

    num_slots = found.anchors.shape[2]
    target_boxes = batch.boxes.unsqueeze(2).expand(-1, -1, num_slots, -1).flatten(1, 2)
    target_labels = batch.labels.unsqueeze(2).expand(-1, -1, num_slots).flatten(1)
    target_sides = xyxy_to_distances(centres[anchors_BP], target_boxes) / steps[anchors_BP]
    picked_boxes = boxes.gather(1, anchors_BP.unsqueeze(-1).expand(-1, -1, 4))
    picked_sides = side_logits.gather(1, anchors_BP[..., None, None].expand(-1, -1, 4, REG_MAX))
    sums = {
        "box": (soft_BP * (1 - ciou(picked_boxes, target_boxes))).sum(),
        "dfl": (soft_BP * distribution_focal(picked_sides, target_sides)).sum(),
        "cls": _class_sum(class_logits, anchors_BP, target_labels, soft_BP, batch.weight, class_weights),
    }
    return sums, count


def distribution_focal(side_logits: Tensor, target_sides: Tensor) -> Tensor:
    """Return the distribution focal loss [...] of logits [..., 4, 16] for distances [..., 4] in strides, mean of the four sides.

    Cross-entropy with the two bins next to the target, weighted by nearness: eq. 6 of arXiv 2006.04388. Targets are clamped
    into [0, REACH].
    """
    target = target_sides.clamp(0, REACH)
    lower = target.floor()
    share = (target - lower).unsqueeze(-1)  # of the upper bin
    log_p = F.log_softmax(side_logits, dim=-1)
    index = lower.long().unsqueeze(-1)
    return -(log_p.gather(-1, index) * (1 - share) + log_p.gather(-1, index + 1) * share).squeeze(-1).mean(dim=-1)


def _class_sum(
    class_logits: Tensor, anchors_BP: Tensor, labels_BP: Tensor, soft_BP: Tensor, weight_B: Tensor, class_weights: Tensor | None
) -> Tensor:
    """Return the binary cross-entropy with the soft targets, summed over anchors, classes and pictures of weight 1.

    BCE(x, t) = softplus(x) - t x, and t is 0 but for one class of a few anchors, so no [B, A, C] target is made.
    """
    background_BC = F.softplus(class_logits).sum(dim=1)
    if class_weights is not None:
        class_weights = class_weights.to(class_logits, non_blocking=True)
        background_BC = background_BC * class_weights
        soft_BP = soft_BP * class_weights[labels_BP]
    logits_BCA = class_logits.transpose(1, 2)  # how `flatten` stores them, so the next line copies nothing
    picked = logits_BCA.flatten(1).gather(1, labels_BP * class_logits.shape[1] + anchors_BP)
    return (weight_B * background_BC.sum(dim=1)).sum() - (soft_BP * picked).sum()


build = YOLO9Loss
