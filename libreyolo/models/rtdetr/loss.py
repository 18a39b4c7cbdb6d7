"""The loss of rtdetr: varifocal, L1 and GIoU on every layer, over matched and over denoising queries (arXiv 2304.08069, as published).

L levels (decoder layers and the encoder), B batch, Q queries, N targets, K classes. Always in float32 or wider. Boxes are cxcywh in fractions of
the input; overlaps are taken in pixels.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import torch
from torch import Tensor

from libreyolo.interfaces.batch import DetectionBatch
from libreyolo.interfaces.term import Term, per_count
from libreyolo.models.rtdetr.decoder import Layers
from libreyolo.models.rtdetr.network import RTDETROutput
from libreyolo.nn import denoising
from libreyolo.nn.denoising import Denoising
from libreyolo.ops.boxes import cxcywh_to_xyxy, xyxy_to_cxcywh
from libreyolo.ops.hungarian import Matches, box_cost, focal_cost, match
from libreyolo.ops.iou import giou, iou
from libreyolo.ops.varifocal import varifocal_sums

GAINS = {"vfl": 1.0, "bbox": 5.0, "giou": 2.0}
COST_CLASS, COST_L1, COST_GIOU = 2.0, 5.0, 2.0


class Targets(NamedTuple):
    """labels [B, N], boxes [B, N, 4], valid [B, N]; size [4] is (W, H, W, H) in pixels."""

    labels: Tensor
    boxes: Tensor
    valid: Tensor
    size: Tensor


class RTDETRLoss:
    """The terms of a batch: sums over this rank's pictures, to be divided by the boxes of all ranks, at least 1.

    nc: number of classes. seed: of the denoising draws. num_denoising: queries of each kind that a picture gets, about; 0: none.
    class_weights: [nc] factors of the classes in the "vfl" term, None for 1.
    """

    def __init__(
        self,
        nc: int,
        *,
        seed: int = 0,
        num_denoising: int = 100,
        label_noise: float = 0.5,
        box_noise: float = 1.0,
        class_weights: Tensor | None = None,
    ) -> None:
        self.nc, self.seed, self.num_denoising = nc, seed, num_denoising
        self.label_noise, self.box_noise = label_noise, box_noise
        self.class_weights = class_weights

    def facts(self, batch: DetectionBatch) -> dict[str, int]:
        """Return the objects of the fullest picture, of which the number of denoising groups is a function."""
        return {"objects": int(batch.num_boxes.max())}

    def inputs(self, batch: DetectionBatch, facts: Mapping[str, int]) -> tuple[Tensor, Denoising]:
        """Return the arguments of the network's forward; `facts` are those of all ranks."""
        targets = targets_of(batch, batch.images.dtype)
        if self.num_denoising == 0:
            return batch.images, denoising.no_queries(targets.labels, targets.boxes)
        slots = max(facts["objects"], 1)
        groups = max(self.num_denoising // slots, 1)
        noise = denoising.draw(self.seed, batch.key.tolist(), 2 * groups * slots, self.nc)
        queries = denoising.denoising_queries(
            targets.labels,
            targets.boxes,
            targets.valid,
            denoising.Noise(*(t.to(batch.images.device, non_blocking=True) for t in noise)),
            num_objects=facts["objects"],
            groups=groups,
            num_classes=self.nc,
            label_noise=self.label_noise,
            box_noise=self.box_noise,
        )
        return batch.images, queries

    def target_stats(self, batch: DetectionBatch) -> dict[str, Tensor]:
        """Return the one normaliser: boxes of pictures that count."""
        return {"boxes": _count(batch).reshape(1)}

    def terms(self, output: RTDETROutput, batch: DetectionBatch) -> dict[str, Term]:
        """Return "vfl", "bbox" and "giou", each summed over all layers and over the denoising queries.

        A batch without any object gives zero "bbox" and "giou", and the background part of the matching queries' "vfl"; every parameter still
        gets a gradient. A picture of weight 0 adds nothing to any sum.
        """
        with torch.autocast(output.matching.logits.device.type, enabled=False):
            sums = self.matching_sums(output, batch).sum(dim=1)
            if output.denoised is not None and output.denoising is not None:
                sums = sums + self.denoising_sums(output, batch).sum(dim=1)
        count = _count(batch)
        return {name: per_count(total, count, normaliser="boxes") for name, total in zip(GAINS, sums, strict=True)}

    def matching_sums(self, output: RTDETROutput, batch: DetectionBatch) -> Tensor:
        """Return the weighted sums [3, L] (in the order of GAINS) of the decoder layers and the encoder, last."""
        layers = _wide(output.matching)
        targets = targets_of(batch, layers.boxes.dtype)
        matches = match(matching_cost(layers, targets), batch.num_boxes)
        return self._level_sums(layers, targets, matches, batch.weight)

    def denoising_sums(self, output: RTDETROutput, batch: DetectionBatch) -> Tensor:
        """Return the weighted sums [3, L] of the denoising queries of the decoder layers, per group."""
        assert output.denoised is not None and output.denoising is not None
        layers, queries = _wide(output.denoised), output.denoising
        if queries.groups == 0:  # none were asked for; the empty sum keeps their embedding in the graph
            return (layers.logits.sum() + layers.boxes.sum()) * layers.logits.new_zeros(3, 1)
        one = targets_of(batch, layers.boxes.dtype)
        labels, boxes, valid = (denoising.rows_of(t, queries.slots) for t in (one.labels, one.boxes, one.valid))
        targets = Targets(labels.repeat(1, queries.groups), boxes.repeat(1, queries.groups, 1), valid.repeat(1, queries.groups), one.size)
        places = queries.positive().expand(layers.logits.shape[0], labels.shape[0], -1)
        matches = Matches(places, targets.valid.expand(places.shape))
        return queries.share * self._level_sums(layers, targets, matches, batch.weight)

    def _level_sums(self, layers: Layers, targets: Targets, matches: Matches, weight_B: Tensor) -> Tensor:
        """Return the weighted sums [3, L] over pictures, each picture times its weight."""
        queries, found = matches
        boxes = layers.boxes.gather(2, queries.unsqueeze(-1).expand(-1, -1, -1, 4))  # [L, B, N, 4]
        counted = found.to(boxes.dtype)
        pixels, true_pixels = cxcywh_to_xyxy(boxes * targets.size), cxcywh_to_xyxy(targets.boxes * targets.size)
        scores = iou(pixels, true_pixels).detach()
        labels = targets.labels.expand(queries.shape)
        sums = {
            "vfl": varifocal_sums(layers.logits, queries, labels, scores, found, class_weights=self.class_weights),
            "bbox": ((boxes - targets.boxes).abs().sum(-1) * counted).sum(-1),
            "giou": ((1 - giou(pixels, true_pixels)) * counted).sum(-1),
        }
        return torch.stack([gain * (sums[name] * weight_B.to(boxes.dtype)).sum(1) for name, gain in GAINS.items()])


def matching_cost(layers: Layers, targets: Targets) -> Tensor:
    """Return what it costs to give a target to a query, [L, B, Q, N]; no gradient."""
    with torch.no_grad():
        classes = focal_cost(layers.logits, targets.labels.expand(layers.logits.shape[0], -1, -1))
        return COST_CLASS * classes + box_cost(layers.boxes, targets.boxes, targets.size, l1=COST_L1, giou=COST_GIOU)


def targets_of(batch: DetectionBatch, dtype: torch.dtype) -> Targets:
    """Return a batch's targets, in float32 or wider."""
    height, width = batch.images.shape[2:]
    wide = torch.promote_types(dtype, torch.float32)
    size = torch.tensor([width, height, width, height], dtype=wide).to(batch.boxes.device, non_blocking=True)
    return Targets(batch.labels, xyxy_to_cxcywh(batch.boxes.to(wide)) / size, batch.valid, size)


def _count(batch: DetectionBatch) -> Tensor:
    """Return the number of boxes in pictures that count, 0-dim on the device."""
    return (batch.valid.sum(dim=1) * batch.weight).sum()


def _wide(layers: Layers) -> Layers:
    return Layers(*(t.to(torch.promote_types(t.dtype, torch.float32)) for t in layers))


build = RTDETRLoss
