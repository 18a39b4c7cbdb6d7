"""What a loss hands to the trainer: sums, what they depend on, and how to scale them.

No loss divides by a batch-wide number itself. It returns the SUM over the pictures of this rank; the trainer sums `stats` over all ranks in one
small all-reduce and multiplies `total` by `scale(global stats)`. So N ranks give the gradient of one process on the whole batch.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True)
class Term:
    """One named part of a loss.

    total: 0-dim, differentiable; the sum over this rank's pictures, already weighted by the term's constant factor (7.5 for a box loss, say).
    stats: 1-dim, detached, float32; the sums over this rank's pictures that the multiplier depends on.
    scale: a pure function from the stats summed over ranks (and over the accumulation window, where the trainer can) to a 0-dim multiplier.
        A floor belongs here and clamps the global sum.
    normaliser: a name. Terms with one name have the same stats and scale (constants belong into total); when all terms of a loss share one,
        accumulation is exact.
    from_targets: whether stats depend on targets alone, never on the network's output.
    report: the name under which records show the term; terms with one name are added up. None: the term's own name.
    """

    total: Tensor
    stats: Tensor
    scale: Callable[[Tensor], Tensor]
    normaliser: str
    from_targets: bool = False
    report: str | None = None


def per_count(total: Tensor, count: Tensor, *, normaliser: str, floor: float = 1.0, from_targets: bool = False, report: str | None = None) -> Term:
    """Return the usual term: total / max(global count, floor). `count` is 0-dim, detached."""
    stats = count.detach().float().reshape(1)
    return Term(total, stats, lambda summed: summed[0].clamp(min=floor).reciprocal(), normaliser, from_targets, report)
