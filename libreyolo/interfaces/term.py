"""What a loss hands to the trainer: sums, what they depend on, and how to scale them.

No loss divides by a batch-wide number itself. It returns SUMS over the pictures of this rank; the trainer adds up `stats` over all ranks in one
small all-reduce and multiplies `total` by `scale(global stats)`. So N ranks give the gradient of one process on the whole batch
(docs/adr/0002-terms-and-normalisers.md).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor


@dataclass(frozen=True)
class Term:
    """One named part of a loss. K sums, nearly always one.

    total: 0-dim or [K], differentiable; the sums over this rank's pictures, already weighted by the term's constant factor (7.5 for a box loss,
        say).
    stats: 1-dim, detached, float32 or wider; the sums over this rank's pictures that the multiplier depends on.
    scale: a pure function from the stats summed over ranks (and over the accumulation window, where the trainer can) to a multiplier of total's
        shape; the trained loss is the sum of total * multiplier. A floor belongs here and clamps the global sum.
    normaliser: a name. Terms with one name have the same stats and scale (constants belong into total); when all terms of a loss share one and
        their totals are 0-dim, accumulation is exact.
    report: the name under which records show the term; terms with one name are added up. None: the term's own name.
    value: from the global stats to the number that records show, for a term whose total * scale is right in its gradient only. None: that
        product, summed over ranks, is the value.
    trained: False for a number that records show beside the loss (it needs `value`): it is no part of the loss, nor of its sum.
    """

    total: Tensor
    stats: Tensor
    scale: Callable[[Tensor], Tensor]
    normaliser: str
    report: str | None = None
    value: Callable[[Tensor], Tensor] | None = None
    trained: bool = True


def per_count(total: Tensor, count: Tensor, *, normaliser: str, floor: float = 1.0, report: str | None = None) -> Term:
    """Return the usual term: total / max(global count, floor). `count` is 0-dim."""
    return Term(total, _wide(count).reshape(1), lambda summed: summed[0].clamp(min=floor).reciprocal(), normaliser, report)


def of_sums(sums: Tensor, loss: Callable[[Tensor], Tensor], *, normaliser: str, report: str | None = None) -> Term:
    """Return the term whose value is `loss(S)`, S [K] being `sums` [K] over all ranks: a ratio of batch sums, say (Dice).

    loss: differentiable, from [K] to a 0-dim value; pure, the same on every rank. The term is linear in this rank's sums with the coefficients
    dloss/dS at the global ones, so the gradient over all ranks is that of `loss(S)` itself.
    """

    def coefficients(summed: Tensor) -> Tensor:
        with torch.enable_grad():
            point = summed.detach().requires_grad_()
            (gradient,) = torch.autograd.grad(loss(point), point)
        return gradient

    return Term(sums, _wide(sums), coefficients, normaliser, report, value=lambda summed: loss(summed).detach())


def shown(sums: Tensor, value: Callable[[Tensor], Tensor], *, normaliser: str, report: str | None = None) -> Term:
    """Return a term that is only shown: `value(S)`, S [K] being `sums` [K] over all ranks. It has no gradient."""
    stats = _wide(sums)
    return Term(stats.new_zeros(()), stats, lambda summed: summed.new_ones(()), normaliser, report, value, trained=False)


def balanced_means(totals: Sequence[Tensor], counts: Sequence[Any], *, normaliser: str, report: str | None = None) -> Term:
    """Return the mean of group means, each weighted by the square root of its global count: D-FINE's decoupled distillation (arXiv 2410.13842).

    totals: each group's 0-dim sum over this rank; counts: how many summands it has here. With T and n the global ones the value is
    (sum of sqrt(n_g) * T_g / n_g) / (sum of sqrt(n_g)), in which an empty group counts nothing; 0 where all are empty.
    """
    total = torch.stack(list(totals))
    stats = torch.stack([torch.as_tensor(count, device=total.device).to(_wide(total).dtype) for count in counts])

    def scale(summed: Tensor) -> Tensor:
        roots = summed.sqrt()
        # sqrt(n) / n; the clamp stands for an empty group, whose T is 0.
        return roots / summed.clamp(min=1.0) / roots.sum().clamp(min=1.0)

    return Term(total, stats, scale, normaliser, report)


def _wide(sums: Tensor) -> Tensor:
    """Return detached sums in float32, or in float64 where they are; half precision cannot count past 2048."""
    return sums.detach().to(torch.promote_types(sums.dtype, torch.float32))
