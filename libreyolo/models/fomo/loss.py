"""The loss of fomo: cross-entropy of every cell, in which a cell with an object weighs more. B batch, C classes, h w cells."""

from __future__ import annotations

from collections.abc import Mapping

import torch
import torch.nn.functional as F
from torch import Tensor

from libreyolo.interfaces.batch import DetectionBatch
from libreyolo.interfaces.term import Term, per_count
from libreyolo.models.fomo.network import STRIDE
from libreyolo.ops.cells import target_grid


class FOMOLoss:
    """One term, "ce": the weighted mean over the cells of all ranks, as torch's `cross_entropy(weight=...)` takes it.

    nc: number of classes. fg_weight: weight of a cell with an object; one of background has 1.
    """

    def __init__(self, nc: int, *, fg_weight: float) -> None:
        self.nc = nc
        self.fg_weight = fg_weight

    def inputs(self, batch: DetectionBatch, facts: Mapping[str, int]) -> tuple[Tensor]:
        """Return the arguments of the network's forward; `facts` are those of all ranks."""
        return (batch.images,)

    def facts(self, batch: DetectionBatch) -> dict[str, int]:
        """Return the numbers that ranks agree on (by maximum) before the forward: none here."""
        return {}

    def target_stats(self, batch: DetectionBatch) -> dict[str, Tensor]:
        """Return "cells": the summed weight of this rank's cells, 0-dim; the targets alone decide it."""
        height, width = batch.images.shape[-2:]
        _, weights = self._targets(batch, (height // STRIDE, width // STRIDE))
        return {"cells": weights.sum()}

    def terms(self, output: Tensor, batch: DetectionBatch) -> dict[str, Term]:
        """Return the term "ce" for logits [B, 1 + C, h, w]. Pictures without an object are background; one of weight 0 adds to no sum."""
        classes, weights = self._targets(batch, (output.shape[2], output.shape[3]))
        with torch.autocast(output.device.type, enabled=False):
            logits = output.float() if output.dtype in (torch.float16, torch.bfloat16) else output
            losses = F.cross_entropy(logits, classes, reduction="none")
            return {"ce": per_count((losses * weights).sum(), weights.sum(), normaliser="cells")}

    def _targets(self, batch: DetectionBatch, hw: tuple[int, int]) -> tuple[Tensor, Tensor]:
        """Return every cell's class (0 background, else 1 + class id), int64 [B, h, w], and its weight in the loss, at least float32."""
        classes = target_grid(batch.boxes, batch.labels, batch.valid, hw, STRIDE)
        weights = torch.where(classes > 0, self.fg_weight, 1.0).to(torch.promote_types(batch.images.dtype, torch.float32))
        return classes, weights * batch.weight[:, None, None]


build = FOMOLoss
