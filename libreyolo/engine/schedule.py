"""Learning rate and momentum as pure functions of the optimiser step, so that a resumed run is on the same curve by construction."""

from __future__ import annotations

import math
from dataclasses import dataclass


@dataclass(frozen=True)
class Schedule:
    """A learning-rate curve over `total_steps` optimiser steps.

    kind: yoloxwarmcos (quadratic warm-up, cosine, constant tail), linear, cos, flat_cosine (flat, cosine over the tail), poly, constant or step.
    lr0, lr_start, min_ratio: peak, first value of the warm-up, last value over the peak.
    warmup_steps, tail_steps: length of the warm-up and of the last, no-augmentation part.
    momentum, warmup_momentum: SGD momentum, raised linearly over the warm-up where the second is not None.
    """

    kind: str
    lr0: float
    total_steps: int
    warmup_steps: int = 0
    lr_start: float = 0.0
    min_ratio: float = 0.0
    tail_steps: int = 0
    poly_power: float = 0.9
    drop_step: int = 0
    momentum: float = 0.9
    warmup_momentum: float | None = None

    def lr(self, step: int) -> float:
        """Return the learning rate of zero-based optimiser step `step`; past the end it stays at the last value."""
        step = min(step, self.total_steps)
        if step < self.warmup_steps:
            part = step / self.warmup_steps
            # The first warms up with the square of the progress (the released schedule of arXiv 2107.08430); all others in a line.
            return self.lr_start + (self.lr0 - self.lr_start) * (part**2 if self.kind == "yoloxwarmcos" else part)
        return self._after_warmup(step)

    def _after_warmup(self, step: int) -> float:
        low = self.lr0 * self.min_ratio
        if self.kind == "yoloxwarmcos":
            last = self.total_steps - self.tail_steps
            return low if step >= last else _cosine(self.lr0, low, step - self.warmup_steps, last - self.warmup_steps)
        if self.kind == "flat_cosine":
            first = max(self.total_steps - self.tail_steps, self.warmup_steps)
            return self.lr0 if step < first else _cosine(self.lr0, low, step - first, self.total_steps - first)
        if self.kind == "constant":
            return self.lr0
        if self.kind == "step":
            return self.lr0 * (0.1 if step >= self.drop_step else 1.0)
        part = _part(step - self.warmup_steps, self.total_steps - self.warmup_steps)
        if self.kind == "linear":
            return self.lr0 + (low - self.lr0) * part
        if self.kind == "cos":
            return _cosine(self.lr0, low, step - self.warmup_steps, self.total_steps - self.warmup_steps)
        if self.kind == "poly":
            return low + (self.lr0 - low) * (1 - part) ** self.poly_power
        raise ValueError(f"unknown schedule {self.kind!r}")

    def momentum_at(self, step: int) -> float:
        """Return the SGD momentum of zero-based optimiser step `step`."""
        if self.warmup_momentum is None or step >= self.warmup_steps:
            return self.momentum
        return self.warmup_momentum + (self.momentum - self.warmup_momentum) * step / self.warmup_steps


def _part(step: int, length: int) -> float:
    return min(max(step / length, 0.0), 1.0) if length > 0 else 1.0


def _cosine(high: float, low: float, step: int, length: int) -> float:
    return low + 0.5 * (high - low) * (1 + math.cos(math.pi * _part(step, length)))
