"""Small losses of every kind that the interface must carry, written twice: as terms, and as one process would write them.

Eight "pictures" of 4 numbers; targets per picture. A rank takes rows rank::world_size of each micro-batch.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from libreyolo.engine import collectives, data_parallel
from libreyolo.engine.step import TrainStep
from libreyolo.interfaces.term import Term, balanced_means, of_sums, per_count

Loss = Callable[[Tensor, Tensor], Tensor]


@dataclass(frozen=True)
class Rows:
    """A toy's batch: x [B, 4], y [B], weight [B]."""

    x: Tensor
    y: Tensor
    weight: Tensor

    def of_rank(self, rank: int, world_size: int) -> Rows:
        return Rows(*(t[rank::world_size] for t in (self.x, self.y, self.weight)))


def data(count: int = 8) -> Rows:
    """Return pictures whose targets are uneven: those of rank 0 of 2 hold nearly everything."""
    draw = torch.Generator().manual_seed(1)
    x = torch.randn(count, 4, generator=draw, dtype=torch.float64)
    y = torch.tensor([5.0, 0, 7, 0, 3, 1, 9, 0, 0, 2] * 2, dtype=torch.float64)[:count]
    return Rows(x, y, torch.ones(count, dtype=torch.float64))


def model() -> nn.Module:
    torch.manual_seed(3)
    return nn.Sequential(nn.Linear(4, 3), nn.Tanh(), nn.Linear(3, 1)).double()


class Toy:
    """A task of one or more terms."""

    best_metric = ""

    def __init__(self, terms: Callable[[Tensor, Rows], dict[str, Term]], stats: Callable[[Rows], dict[str, Tensor]] = lambda rows: {}) -> None:
        self.make, self.stats = terms, stats

    def facts(self, batch: Rows) -> dict[str, int]:
        return {}

    def target_stats(self, batch: Rows) -> dict[str, Tensor]:
        return self.stats(batch)

    def terms(self, net: nn.Module, batch: Rows, facts: dict[str, int]) -> dict[str, Term]:
        return self.make(net(batch.x)[:, 0], batch)


def _square(p: Tensor, rows: Rows) -> Tensor:
    return (rows.y * (p - 1).square()).sum()


def mean_terms(p: Tensor, rows: Rows) -> dict[str, Term]:
    return {"mean": per_count(2.0 * _square(p, rows), rows.y.sum(), normaliser="objects")}


def mean_loss(p: Tensor, rows: Rows) -> Tensor:
    return 2.0 * _square(p, rows) / rows.y.sum().clamp(min=1)


def two_terms(p: Tensor, rows: Rows) -> dict[str, Term]:
    """Two normalisers: objects, which targets decide, and the outputs themselves, which they don't."""
    soft = p.detach().sigmoid()
    return {
        "mean": per_count(_square(p, rows), rows.y.sum(), normaliser="objects"),
        "soft": per_count((soft * p.cos()).sum(), soft.sum(), normaliser="soft"),
    }


def two_losses(p: Tensor, rows: Rows) -> Tensor:
    return mean_loss(p, rows) / 2 + soft_loss(p, rows)


def soft_loss(p: Tensor, rows: Rows) -> Tensor:
    soft = p.detach().sigmoid()
    return (soft * p.cos()).sum() / soft.sum().clamp(min=1)


def dice(sums: Tensor) -> Tensor:
    """1 - (2 I + 1) / (A + B + 1) of sums over the whole batch."""
    return 1 - (2 * sums[0] + 1) / (sums[1] + sums[2] + 1)


def dice_sums(p: Tensor, rows: Rows) -> Tensor:
    mask, truth = p.sigmoid(), (rows.y > 0).to(p.dtype)
    return torch.stack([(mask * truth).sum(), mask.sum(), truth.sum()])


def dice_terms(p: Tensor, rows: Rows) -> dict[str, Term]:
    return {"dice": of_sums(dice_sums(p, rows), dice, normaliser="dice")}


def dice_loss(p: Tensor, rows: Rows) -> Tensor:
    return dice(dice_sums(p, rows))


def decoupled_terms(p: Tensor, rows: Rows) -> dict[str, Term]:
    positive = rows.y > 0
    error = (p - 0.3).square()
    groups = [error[positive].sum(), error[~positive].sum()]
    return {"ddf": balanced_means(groups, [positive.sum(), (~positive).sum()], normaliser="groups")}


def decoupled_loss(p: Tensor, rows: Rows) -> Tensor:
    """As the paper writes it: each group's mean weighted by the root of its count."""
    positive = rows.y > 0
    error = (p - 0.3).square()
    roots = [positive.sum().double().sqrt(), (~positive).sum().double().sqrt()]
    means = [error[g].mean() if g.any() else error.sum() * 0 for g in (positive, ~positive)]
    return (roots[0] * means[0] + roots[1] * means[1]) / (roots[0] + roots[1])


KINDS: dict[str, tuple[Any, Loss]] = {
    "mean": (mean_terms, mean_loss),
    "two normalisers": (two_terms, two_losses),
    "dice": (dice_terms, dice_loss),
    "decoupled": (decoupled_terms, decoupled_loss),
}


def gradients(task: Any, window: Sequence[Rows], pictures: Sequence[int] | None = None, **options: Any) -> tuple[list[Tensor], dict[str, float]]:
    """Return the gradient of one step over the window on all ranks (an SGD step of rate 1 undone), and the loss parts summed over ranks."""
    net = model()
    before = [p.detach().clone() for p in net.parameters()]
    rank, world_size = collectives.rank(), collectives.world_size()
    optimizer = torch.optim.SGD(net.parameters(), lr=1.0)
    step = TrainStep(data_parallel.data_parallel(net, torch.device("cpu")), task, optimizer, device=torch.device("cpu"), amp_dtype=None, **options)
    parts, moved = step([rows.of_rank(rank, world_size) for rows in window], pictures or [int(rows.weight.sum()) for rows in window])
    assert moved
    shown = {name: float(collectives.sum_(part.clone())) for name, part in parts.items()}
    return [b - p.detach() for b, p in zip(before, net.parameters(), strict=True)], shown


def by_hand(loss: Loss, rows: Rows) -> tuple[list[Tensor], float]:
    """Return gradient and value of a loss on the whole batch in one process."""
    net = model()
    value = loss(net(rows.x)[:, 0], rows)
    return list(torch.autograd.grad(value, list(net.parameters()))), float(value.detach())


def cut(rows: Rows, sizes: Sequence[int]) -> list[Rows]:
    pieces = [t.split(list(sizes)) for t in (rows.x, rows.y, rows.weight)]
    return [Rows(*parts) for parts in zip(*pieces, strict=True)]


def largest_gap(one: Sequence[Tensor], other: Sequence[Tensor]) -> float:
    return max(float((a - b).abs().max()) for a, b in zip(one, other, strict=True))


def no_positive(rows: Rows) -> Rows:
    return replace(rows, y=torch.zeros_like(rows.y))
