"""Validation on all ranks: each evaluates its share of the pictures and of the metric, rank 0 computes, everyone learns the numbers."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import nn

from libreyolo.engine import collectives
from libreyolo.interfaces.metric import ClassMetric, Metric, SharedMetric
from libreyolo.interfaces.task import Loader, Task
from libreyolo.interfaces.term import Term


@dataclass(frozen=True)
class Validation:
    """metrics: by column name, known to all ranks. metric, classes: the merged accumulator and its metrics of single classes ("class/cat/f1"),
    on rank 0 only (else None and {}).
    """

    metrics: dict[str, float]
    metric: Metric | None = field(default=None, compare=False)
    classes: dict[str, float] = field(default_factory=dict, compare=False)


class AbandonedError(Exception):
    """Raised on every rank: one of them was asked to leave, and the validation has no result."""


@torch.no_grad()
def validate(
    net: nn.Module,
    task: Task,
    loader: Loader,
    *,
    device: torch.device,
    amp_dtype: torch.dtype | None,
    with_loss: bool = False,
    leaving: Callable[[], bool] = lambda: False,
) -> Validation:
    """Evaluate `net`, which is only read: it is put into eval mode and back, and no tensor of it changes.

    The picture share of a rank may be empty. Half precision happens by autocast, never by casting the weights. leaving: asked before each batch;
    a rank that gets True leaves the rest out, and all ranks raise AbandonedError where they meet.
    """
    was_training = net.training
    net.eval()
    metric, clock = task.metric(), _Clock(device)
    losses: dict[str, _Sums] = {}
    try:
        clock.lap("preprocess")
        left = leaving()
        for batch in () if left else loader.epoch(0):
            left = leaving()
            if left:
                break
            clock.lap("preprocess")
            with torch.autocast(device.type, dtype=amp_dtype, enabled=amp_dtype is not None):
                output = task.forward(net, batch)
            clock.lap("inference")
            predictions = task.decode(output, batch)
            clock.lap("postprocess", images=len(predictions))
            metric.update(batch, predictions)
            if with_loss:
                _add_losses(losses, task, net, batch)
            clock.lap("metric")
    finally:
        net.train(was_training)
    every = collectives.all_objects(None if left else (metric.state(), clock.seconds, clock.images))
    if any(one is None for one in every):
        raise AbandonedError
    states, seconds, images = zip(*every, strict=True)
    metric.merge(list(states))
    if isinstance(metric, SharedMetric):
        parts = collectives.gather_objects(metric.part(collectives.rank(), collectives.world_size()))
        if parts is not None:
            metric.take_parts(parts)
    first = collectives.rank() == 0
    metrics = collectives.broadcast_object(metric.compute() | _speed(list(seconds), sum(images)) if first else {})
    if with_loss:
        metrics |= _global_losses(losses, device)
    return Validation(metrics, metric, class_columns(metric)) if first else Validation(metrics)


def class_columns(metric: Metric) -> dict[str, float]:
    """Return the metrics of single classes by column name; {} where the metric knows no classes. Classes of one name are told apart by their ids."""
    classes = metric.class_metrics() if isinstance(metric, ClassMetric) else []
    seen = Counter(name for name, _ in classes)
    columns: dict[str, float] = {}
    for i, (name, values) in enumerate(classes):
        title = name if name and seen[name] == 1 else f"{name} {i}".strip()
        columns |= {f"class/{title}/{key}": value for key, value in values.items()}
    return columns


@dataclass(frozen=True)
class _Sums:
    """A term's sums [K] and stats over the pictures so far, in one tensor, and the term that says how to put them together."""

    sums: torch.Tensor
    term: Term


class _Clock:
    """Wall time by phase, the device's work included."""

    def __init__(self, device: torch.device) -> None:
        self.device, self.images = device, 0
        self.seconds = dict.fromkeys(("preprocess", "inference", "postprocess", "metric"), 0.0)
        self._since = time.perf_counter()

    def lap(self, phase: str, images: int = 0) -> None:
        """Give the time since the last lap to `phase`."""
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
        now = time.perf_counter()
        self.seconds[phase] += now - self._since
        self.images += images
        self._since = now


def _speed(seconds: list[dict[str, float]], images: int) -> dict[str, float]:
    """Return the speed columns: milliseconds of one rank for each picture, and the seconds of the slowest rank."""
    phases = ("preprocess", "inference", "postprocess")
    row = {f"speed/{p}_ms": 1000 * sum(s[p] for s in seconds) / max(images, 1) for p in phases}
    total = max(sum(s[p] for p in phases) for s in seconds)
    return row | {"speed/total_ms": sum(row.values()), "speed/total_s": total, "speed/images_seen": float(images)}


def _add_losses(losses: dict[str, _Sums], task: Task, net: nn.Module, batch: Any) -> None:
    """Add up each term's sums and its stats; they are put together once, at the end, over all pictures."""
    for name, term in task.terms(net, batch, task.facts(batch)).items():
        found = _Sums(torch.cat([term.total.detach().reshape(-1).to(term.stats.dtype), term.stats]), term)
        losses[name] = replace(found, sums=losses[name].sums + found.sums) if name in losses else found


def _global_losses(losses: dict[str, _Sums], device: torch.device) -> dict[str, float]:
    """Return `val/<report>_loss`: every value over all pictures and ranks, terms of one report added. Rank 0 has a picture if any rank has."""
    lengths = collectives.broadcast_object([(name, losses[name].sums.numel()) for name in sorted(losses)])
    if not lengths:
        return {}
    mine = [losses[n].sums.to(device) if n in losses else torch.zeros(length, device=device) for n, length in lengths]
    sums = collectives.sum_(torch.cat(mine)).split([length for _, length in lengths])
    found: dict[str, float] = {}
    for (name, _), summed in zip(lengths, sums, strict=True) if losses else ():
        term = losses[name].term
        column = f"val/{term.report or name}_loss"
        found[column] = found.get(column, 0.0) + _value(term, summed)
    return collectives.broadcast_object(found)


def _value(term: Term, sums: torch.Tensor) -> float:
    totals, stats = sums.split([term.total.numel(), term.stats.numel()])
    return float(term.value(stats)) if term.value else float((totals * term.scale(stats).reshape(-1)).sum())
