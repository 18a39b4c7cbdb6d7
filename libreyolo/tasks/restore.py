"""Restoration: a picture in, the same picture better out; judged by PSNR and SSIM.

B batch, H W the largest input of a batch, h w each picture's own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import torch
from torch import Tensor, nn

from libreyolo.interfaces.batch import RestoreBatch, Restored
from libreyolo.interfaces.input import InputSpec
from libreyolo.interfaces.term import Term
from libreyolo.metrics.restore import RestoreMetric
from libreyolo.ops.input import apply_input_spec
from libreyolo.tasks.passes import pictures_per_pass

# Output [3, H, W] and the picture's (h, w) -> the restored picture [3, h, w] in [0, 1].
Restore = Callable[[Tensor, tuple[int, int]], Tensor]


@dataclass
class RestoreTask:
    """Three verbs for one restorer.

    criterion: the family's loss, None where nothing is trained; restore: the family's decode. keep_worst: how many of the worst pictures a validation
    keeps to be drawn.
    """

    criterion: Any
    restore: Restore
    spec: InputSpec
    keep_worst: int = 0
    best_metric = "metrics/PSNR"

    def facts(self, batch: RestoreBatch) -> dict[str, int]:
        """Return what the forward needs to know of the whole batch: nothing."""
        return {}

    def target_stats(self, batch: RestoreBatch) -> dict[str, Tensor]:
        """Return the number of values that count, which crops alone decide."""
        counts = batch.picture_hw.prod(dim=1).float() * 3
        return dict(self.criterion.target_stats(counts.to(batch.weight.device, non_blocking=True), batch.weight))

    def terms(self, net: nn.Module, batch: RestoreBatch, facts: dict[str, int]) -> dict[str, Term]:
        """Run the forward and the family's loss; what lies beside a picture, and a picture of weight 0, adds nothing."""
        found: dict[str, Term] = {}
        # Training crops are of one size, and must go through the network at once: DDP counts its forwards.
        for part in [batch] if net.training else _passes(batch):
            for name, term in self.criterion.terms(net(self._inputs(part)), part.targets, _counted(part)).items():
                earlier = found.get(name)
                found[name] = term if earlier is None else replace(term, total=earlier.total + term.total, stats=earlier.stats + term.stats)
        return found

    def forward(self, net: nn.Module, batch: RestoreBatch) -> list[Tensor]:
        """Return the network's output for each picture, [3, h, w] of its own size: what a picture becomes does not depend on its batch."""
        return [output for part in _passes(batch) for output in net(self._inputs(part))]

    def decode(self, output: Sequence[Tensor], batch: RestoreBatch) -> list[Restored]:
        """Return the restored pictures at their own sizes."""
        by_row = dict(zip(_rows_in_passes(batch), output, strict=True))
        sizes = batch.picture_hw.tolist()
        return [Restored(self.restore(by_row[row], (h, w)).cpu()) for row, (h, w) in enumerate(sizes)]

    def metric(self) -> RestoreMetric:
        """Return a fresh accumulator."""
        return RestoreMetric(keep_worst=self.keep_worst)

    def _inputs(self, batch: RestoreBatch) -> Tensor:
        return apply_input_spec(batch.images, self.spec)


def _groups(batch: RestoreBatch) -> Iterator[tuple[tuple[int, int], list[int]]]:
    """Yield ((h, w), rows) of pictures of one size, as many as one pass takes, in the order of their first rows."""
    by_size: dict[tuple[int, int], list[int]] = {}
    for row, (h, w) in enumerate(batch.input_hw.tolist()):
        by_size.setdefault((h, w), []).append(row)
    for (h, w), rows in by_size.items():
        most = pictures_per_pass(h, w)
        for first in range(0, len(rows), most):
            yield (h, w), rows[first : first + most]


def _rows_in_passes(batch: RestoreBatch) -> list[int]:
    return [row for _, rows in _groups(batch) for row in rows]


def _passes(batch: RestoreBatch) -> Iterator[RestoreBatch]:
    """Yield the batch in parts of one size, each no more than a pass takes."""
    for (h, w), rows in _groups(batch):
        part: dict[str, Any] = {f.name: getattr(batch, f.name)[rows] for f in fields(batch) if isinstance(getattr(batch, f.name), Tensor)}
        yield replace(batch, **{**part, "images": part["images"][..., :h, :w], "targets": part["targets"][..., :h, :w]})


def _counted(batch: RestoreBatch) -> Tensor:
    """Return [B, 1, H, W], or [B, 1, 1, 1] where the pictures fill their inputs: the weight of a picture inside it, 0 beside it."""
    weight = batch.weight[:, None, None, None]
    if bool((batch.picture_hw == batch.input_hw).all()):
        return weight
    height, width = batch.images.shape[2:]
    h, w = (side.to(batch.images.device)[:, None, None, None] for side in batch.picture_hw.unbind(1))
    rows = torch.arange(height, device=batch.images.device)[:, None] < h
    columns = torch.arange(width, device=batch.images.device) < w
    return weight * (rows & columns)
