"""The loss of yolo9: complete IoU, distribution focal and class cross-entropy over task-aligned targets (arXiv 2402.13616, as published).

B pictures (those of the PGI branch come after those of the main one, as pictures of their own), R branches, N targets, A anchors, C classes,
K slots per target, P = N * K slots per picture. Always in float32 or wider.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from libreyolo.interfaces.batch import DetectionBatch
from libreyolo.interfaces.term import Term, per_count
from libreyolo.models.yolo9.decode import Anchors, anchors_of, expected_boxes, flatten
from libreyolo.models.yolo9.network import REG_MAX, STRIDES, YOLO9Output
from libreyolo.ops.assign import task_aligned
from libreyolo.ops.boxes import in_planes
from libreyolo.ops.iou import ciou

# The largest distance, in strides, that lies between two bins of the distribution: 15, less a margin that
# keeps the index of the upper bin at 15.
REACH = REG_MAX - 1 - 0.01

PREFIXES = ("", "aux_")  # of the terms of the main branch and of PGI's


class _Constants(NamedTuple):
    """What a loss takes with it from step to step, while the maps keep their sizes. factors: [R, 3], of the sums of each branch."""

    made_for: tuple[object, ...]
    anchors: Anchors
    centres: Tensor
    reach: Tensor
    factors: Tensor


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
        self._constants: _Constants | None = None

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
        branches = [output.main] if output.aux is None or self.aux_weight == 0 else [output.main, output.aux]
        maps = [torch.cat(levels) for levels in zip(*branches, strict=True)] if len(branches) > 1 else output.main
        with torch.autocast(maps[0].device.type, enabled=False):
            side_logits, class_logits = flatten(maps)
            constants = self._constants_for(maps, len(branches), side_logits.dtype)
            sums, counts = _sums(side_logits, class_logits, _Targets.of(batch, len(branches)), constants, self.class_weights)
            totals = sums * constants.factors
        terms: dict[str, Term] = {}
        for prefix, row, count in zip(PREFIXES, totals.unbind(), counts.unbind(), strict=False):
            for name, total in zip(self.gains, row.unbind(), strict=True):
                terms[prefix + name] = per_count(total, count, normaliser=f"{prefix}targets", report=name)
        return terms

    def _constants_for(self, maps: Sequence[Tensor], num_branches: int, dtype: torch.dtype) -> _Constants:
        made_for = (*(level.shape[2:] for level in maps), maps[0].device, num_branches, dtype)
        if self._constants is None or self._constants.made_for != made_for:
            anchors = anchors_of(maps, self.strides)
            factors = [[weight * gain for gain in self.gains.values()] for weight in (1.0, self.aux_weight)[:num_branches]]
            on_device = torch.tensor(factors, dtype=dtype).to(maps[0].device, non_blocking=True)
            self._constants = _Constants(made_for, anchors, in_planes(anchors.places[:, :2]), anchors.steps[:, 2] * REACH, on_device)
        return self._constants


class _Targets(NamedTuple):
    """The targets of B pictures, as in `DetectionBatch`."""

    boxes: Tensor
    labels: Tensor
    valid: Tensor
    weight: Tensor

    @classmethod
    def of(cls, batch: DetectionBatch, num_branches: int) -> _Targets:
        """Return a batch's targets once for each branch."""
        targets = cls(batch.boxes, batch.labels, batch.valid, batch.weight)
        return targets if num_branches == 1 else cls(*(torch.cat([rows] * num_branches) for rows in targets))


def _sums(side_logits: Tensor, class_logits: Tensor, targets: _Targets, constants: _Constants, class_weights: Tensor | None) -> tuple[Tensor, Tensor]:
    """Return the unweighted sums "box", "cls" and "dfl" of the branches [R, 3], differentiable, and their sums of soft targets [R]."""
    anchors, num_branches = constants.anchors, len(constants.factors)
    with torch.no_grad():
        found = task_aligned(
            expected_boxes(side_logits, anchors),
            class_logits.sigmoid(),
            constants.centres,
            targets.boxes,
            targets.labels,
            targets.valid,
            reach=constants.reach,
        )
    soft_BNK = found.weight * targets.weight[:, None, None]
    picked = anchors.at(found.anchors)
    # Boxes are read once more from the few that count, so that a gradient goes back to them alone.
    index = found.anchors.flatten(1)[..., None, None].expand(-1, -1, 4, REG_MAX)
    sides_BNK = side_logits.gather(1, index).view(*found.anchors.shape, 4, REG_MAX)
    boxes_BN1 = targets.boxes.unsqueeze(2)
    box = soft_BNK * (1 - ciou(expected_boxes(sides_BNK, picked), boxes_BN1))
    dfl = soft_BNK * distribution_focal(sides_BNK, (boxes_BN1 - picked.places) / picked.steps)
    labels_BN1 = targets.labels.unsqueeze(2)
    background_BC, chosen_BNK = _class_losses(class_logits, found.anchors, labels_BN1, soft_BNK, class_weights)

    def of_branches(per_picture: Tensor) -> Tensor:
        return per_picture.reshape(num_branches, -1).sum(dim=1)

    cls = of_branches(targets.weight.unsqueeze(1) * background_BC) - of_branches(chosen_BNK)
    return torch.stack((of_branches(box), cls, of_branches(dfl)), dim=1), of_branches(soft_BNK)


def distribution_focal(side_logits: Tensor, target_sides: Tensor) -> Tensor:
    """Return the distribution focal loss [...] of logits [..., 4, 16] for distances [..., 4] in strides, mean of the four sides.

    Cross-entropy with the two bins next to the target, weighted by nearness: eq. 6 of arXiv 2006.04388. Targets are clamped
    into [0, REACH].
    """
    bins = torch.arange(side_logits.shape[-1], device=side_logits.device)
    nearness = (1 - (target_sides.clamp(0, REACH).unsqueeze(-1) - bins).abs_()).clamp_(min=0)
    return (nearness * F.log_softmax(side_logits, dim=-1)).sum(dim=(-2, -1)) / -target_sides.shape[-1]


def _class_losses(
    class_logits: Tensor, anchors_BNK: Tensor, labels_BN1: Tensor, soft_BNK: Tensor, class_weights: Tensor | None
) -> tuple[Tensor, Tensor]:
    """Return the binary cross-entropy with 0 summed over anchors [B, C], and what the soft targets take off it [B, N, K].

    BCE(x, t) = softplus(x) - t x, and t is 0 but for one class of a few anchors, so no [B, A, C] target is made.
    """
    background_BC = F.softplus(class_logits).sum(dim=1)
    if class_weights is not None:
        class_weights = class_weights.to(class_logits, non_blocking=True)
        background_BC = background_BC * class_weights
        soft_BNK = soft_BNK * class_weights[labels_BN1]
    logits_BCA = class_logits.transpose(1, 2)  # how `flatten` stores them, so the next line copies nothing
    picked = logits_BCA.flatten(1).gather(1, (labels_BN1 * class_logits.shape[1] + anchors_BNK).flatten(1))
    return background_BC, soft_BNK * picked.view_as(soft_BNK)


build = YOLO9Loss
