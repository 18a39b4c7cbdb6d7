"""Cross-entropy of every cell's classes, and the sides of the cells that hold an object's centre; both per object."""

from __future__ import annotations

from collections.abc import Mapping

import torch
import torch.nn.functional as F
from torch import Tensor

from libreyolo.interfaces.batch import DetectionBatch
from libreyolo.interfaces.term import Term, per_count
from libreyolo.models.standin.decode import centres_of
from libreyolo.models.standin.network import STRIDE
from libreyolo.ops.cells import cells_of, target_grid


class StandInLoss:
    """Sums over this rank's pictures, divided by the objects of all ranks."""

    def __init__(self, nc: int, *, side_gain: float, class_weights: Tensor | None = None) -> None:
        self.nc, self.side_gain = nc, side_gain

    def inputs(self, batch: DetectionBatch, facts: Mapping[str, int]) -> tuple[Tensor]:
        return (batch.images,)

    def facts(self, batch: DetectionBatch) -> dict[str, int]:
        return {}

    def target_stats(self, batch: DetectionBatch) -> dict[str, Tensor]:
        return {"objects": (batch.valid * batch.weight[:, None]).sum()}

    def terms(self, output: Tensor, batch: DetectionBatch) -> dict[str, Term]:
        hw = (output.shape[2], output.shape[3])
        grid = target_grid(batch.boxes, batch.labels, batch.valid, hw, STRIDE)
        wanted = F.one_hot(grid, self.nc + 1)[..., 1:].permute(0, 3, 1, 2).to(output.dtype)
        weight = batch.weight.to(output.dtype)
        against = F.binary_cross_entropy_with_logits(output[:, 4:], wanted, reduction="none").flatten(1).sum(dim=1)
        cells = cells_of(batch.boxes, hw, STRIDE)
        at = (cells[..., 1] * hw[1] + cells[..., 0]).unsqueeze(1).expand(-1, 4, -1)
        sides = output[:, :4].flatten(2).gather(2, at).transpose(1, 2)
        centres = centres_of(hw, output.device).reshape(-1, 2)[at[:, 0]]
        true = torch.cat([centres - batch.boxes[..., :2], batch.boxes[..., 2:] - centres], dim=-1) / STRIDE
        apart = (sides - true.clamp(min=0.1).log()).abs().sum(dim=-1)
        count = self.target_stats(batch)["objects"]
        totals = {
            "cls": (weight * against).sum(),
            "side": self.side_gain * (apart * batch.valid * weight[:, None]).sum(),
        }
        return {name: per_count(total, count, normaliser="objects") for name, total in totals.items()}


build = StandInLoss
