"""Validation on all ranks: each evaluates its share, rank 0 merges and computes, everyone learns the numbers."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

from libreyolo.engine import collectives
from libreyolo.interfaces.metric import Metric
from libreyolo.interfaces.task import Loader, Task

_Losses = dict[tuple[str, str], torch.Tensor]  # (term, report) -> [sum of totals, sum of normalisers]


@dataclass(frozen=True)
class Validation:
    """metrics: by column name, known to all ranks. metric: the merged accumulator, on rank 0 only (else None)."""

    metrics: dict[str, float]
    metric: Metric | None = field(default=None, compare=False)


@torch.no_grad()
def validate(
    net: nn.Module, task: Task, loader: Loader, *, device: torch.device, amp_dtype: torch.dtype | None, with_loss: bool = False
) -> Validation:
    """Evaluate `net`, which is only read: it is put into eval mode and back, and no tensor of it changes.

    The picture share of a rank may be empty. Half precision happens by autocast, never by casting the weights.
    """
    was_training = net.training
    net.eval()
    metric, clock = task.metric(), _Clock(device)
    losses: _Losses = {}
    try:
        clock.lap("preprocess")
        for batch in loader.epoch(0):
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
    states = collectives.gather_objects((metric.state(), clock.seconds, clock.images))
    found: dict[str, float] | None = None
    if states is not None:
        metric.merge([s[0] for s in states])
        found = metric.compute() | _speed([s[1] for s in states], sum(s[2] for s in states))
    metrics = collectives.broadcast_object(found)
    assert metrics is not None
    if with_loss:
        metrics |= _global_losses(losses, device)
    return Validation(metrics, metric if states is not None else None)


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


def _add_losses(losses: _Losses, task: Task, net: nn.Module, batch: Any) -> None:
    """Add up each term's sum and its normaliser; they are divided once, at the end, over all pictures."""
    for name, term in task.terms(net, batch, task.facts(batch)).items():
        value = torch.cat([term.total.detach().float().reshape(1), term.scale(term.stats).reshape(1).reciprocal()])
        key = (name, term.report or name)
        losses[key] = losses[key] + value if key in losses else value


def _global_losses(losses: _Losses, device: torch.device) -> dict[str, float]:
    """Return `val/<report>_loss`: each term's sum of totals over its sum of normalisers, over all ranks; terms of one report are added."""
    every = collectives.broadcast_object(sorted(losses))
    if not every:
        return {}
    table = torch.stack([losses.get(key, torch.zeros(2, device=device)).to(device) for key in every])
    found: dict[str, float] = {}
    for (_, report), (total, count) in zip(every, collectives.sum_(table).tolist(), strict=True):
        found[f"val/{report}_loss"] = found.get(f"val/{report}_loss", 0.0) + (total / count if count > 0 else 0.0)
    return found
