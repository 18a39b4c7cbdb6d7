"""One training of a few steps, described so that any number of ranks can run it, and what is compared of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from libreyolo import build, schema
from libreyolo.assembly.parts import Seat
from libreyolo.engine import collectives
from libreyolo.engine.progress import Progress
from tests.dist.equality.synthetic import FACTORIES, NC, SyntheticAssembly, rows_of

MIXED = (3, 0, 1, 4, 2, 0, 1, 1, 0, 2, 3, 1, 1, 0, 0, 4, 2, 1, 1, 3)  # 20 pictures in eights: the third batch is half padding
ONE_RANK_ONLY = (5, 0, 3, 0, 4, 0, 1, 0)  # rank 0 of 2 has every object, rank 1 none
NO_OBJECT = (0, 0, 0, 0)

# Options of `network.build` for families whose smallest size would cost minutes here.
NARROW: dict[str, dict[str, int]] = {"unet": {"width": 4}}
# Fast and free of curves: a step moves weights by lr0 times what the optimiser says. A small rate: a fresh network with BatchNorm is chaotic, and
# at 0.01 three steps make a difference of 1e-12 into one of 1e-7.
PLAIN = {
    "lr0": 0.001,
    "optimizer": "sgd", "momentum": 0.0, "nesterov": False, "warmup_momentum": None, "scheduler": "constant", "warmup_epochs": 0.0, "epochs": 1,
    "no_aug_epochs": 0, "val": False, "batch": 8, "sync_bn": True, "ema": True, "data": "synthetic", "device": "cpu",
}  # fmt: skip
# One step whose movement is the gradient itself.
GRADIENT = {"lr0": 1.0, "weight_decay": 0.0, "max_steps": 1}


@dataclass(frozen=True)
class Check:
    """family: its name. objects: per picture of the epoch. part: the rows of them that are trained on, None for all. keys: recipe keys over
    PLAIN. frozen_norms: BatchNorm stands still. network: what the network is built with beside its size. poisoned: a picture whose pixels are
    infinite, so that its step is refused.
    """

    family: str
    objects: Sequence[int] = MIXED
    part: tuple[int, int] | None = None
    keys: Mapping[str, Any] = field(default_factory=dict)
    frozen_norms: bool = False
    poisoned: int | None = None
    double: bool = True
    network: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Outcome:
    """Tensors by name after training, and the same before; `norms` are floating buffers, `average` the EMA's tensors."""

    before: dict[str, Tensor]
    after: dict[str, Tensor]
    norms: dict[str, Tensor]
    average: dict[str, Tensor]
    losses: dict[str, float]
    steps: int


def run(check: Check) -> Outcome:
    """Train as the check says on this rank, through the real `build` and trainer."""
    family = schema.family(check.family)
    size = next(iter(family.sizes))
    imgsz = max(64, 2 * family.input.stride)
    recipe = schema.resolve(family, size, {"imgsz": imgsz, **PLAIN, **check.keys})
    dtype = torch.float64 if check.double else torch.float32
    options = {**NARROW.get(check.family, {}), **check.network}
    net = build.training_network(family, recipe, NC, build.Start(None, options, "random weights")).to(dtype)
    without_dropout(net)
    if check.frozen_norms:
        recipe = replace(recipe, freeze=[name for name, module in net.named_modules() if isinstance(module, _BatchNorm)])
    made = FACTORIES[family.task](family, recipe, check.objects, dtype)
    if check.part:
        made = replace(made, pictures=rows_of(made.pictures, range(*check.part)))
    if check.poisoned is not None:
        made.pictures.images[check.poisoned] = float("inf")
    before = parameters(net)
    seat = Seat(collectives.rank(), collectives.world_size(), collectives.world_size(), torch.device("cpu"))
    training = build.training(
        family, recipe, SyntheticAssembly(made), net, seat, progress=Progress(), save=lambda summary: None, tell=lambda name, event: None
    )
    (summary,) = training.trainer.fit()
    norms = {n: sample(b) for n, b in training.bare.named_buffers() if b.is_floating_point()}
    average = {n: sample(t) for n, t in training.ema.average.state_dict().items()} if training.ema else {}
    return Outcome(before, parameters(training.bare), norms, average, summary.losses, training.trainer.progress.global_step)


def parameters(net: nn.Module) -> dict[str, Tensor]:
    return {name: sample(p) for name, p in net.named_parameters()}


def sample(tensor: Tensor, most: int = 2048) -> Tensor:
    """Return at most that many numbers of a tensor, evenly spread: whole outcomes of every check of every family would fill the memory."""
    flat = tensor.detach().reshape(-1)
    return flat[:: max(1, -(-flat.numel() // most))].clone()


def without_dropout(net: nn.Module) -> None:
    """What a rank drops is drawn for that rank: the one thing that N ranks do not repeat."""
    for module in net.modules():
        if isinstance(module, nn.modules.dropout._DropoutNd):
            module.p = 0.0
        if hasattr(module, "drop_prob"):
            module.drop_prob = 0.0


def difference(one: Outcome, other: Outcome, *, may_stand_still: bool = False) -> float:
    """Return the largest difference of where a tensor went, relative to how far it moved.

    A tensor that hardly moved is held against a thousandth of the typical movement instead: its own may be nothing but rounding.
    may_stand_still: that nothing moves is right, for a task that learns from objects alone; then the other must stand still, too.
    """
    moved = {n: one.after[n] - one.before[n] for n in one.after}
    typical = float(torch.stack([m.norm() for m in moved.values()]).square().mean().sqrt())
    if typical == 0 and may_stand_still:
        return max(float((other.after[n] - other.before[n]).norm()) for n in moved)
    assert typical > 0, "nothing moved"
    gaps = [float((one.after[n] - other.after[n]).norm() / max(float(moved[n].norm()), 1e-3 * typical)) for n in moved]
    return max(gaps)


def buffer_difference(one: Mapping[str, Tensor], other: Mapping[str, Tensor]) -> float:
    """Return the largest absolute difference of tensors of the same names, relative to 1 plus their size."""
    assert one.keys() == other.keys()
    return max((float(((one[n].double() - other[n].double()).abs() / (1 + one[n].double().abs())).max()) for n in one), default=0.0)
