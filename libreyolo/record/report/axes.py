"""Where an axis puts its values and its numbers."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

MOST_POWERS = 9  # of ten along a logarithmic axis, each with its number


@dataclass(frozen=True)
class Axis:
    """An axis from `low` to `high` with numbers at `ticks`, all within it."""

    low: float
    high: float
    ticks: tuple[float, ...]
    log: bool = False

    def share(self, value: float) -> float:
        """Return where a value lies, 0 at `low` and 1 at `high`."""
        if self.log:
            return (math.log(value) - math.log(self.low)) / (math.log(self.high) - math.log(self.low))
        return (value - self.low) / (self.high - self.low)


def linear(values: Sequence[float], *, from_zero: bool = False, whole: bool = False) -> Axis:
    """Return an axis that holds all values (one or more) and ends at round numbers; `whole`: ends at the values, numbers at whole ones."""
    low, high = min(values), max(values)
    if from_zero or (not whole and 0 <= low < 0.5 * high):
        low = min(low, 0.0)
    if low == high:
        low, high = (low - 1, high + 1) if whole else (low - abs(low) * 0.1, high + (abs(high) * 0.1 or 1))
        low = 0.0 if from_zero and low < 0 else low
    step = _round_step((high - low) / 5)
    if whole:
        step = max(math.ceil(step), 1)
        first = math.ceil(low / step)
        return Axis(low, high, tuple(float(i * step) for i in range(first, math.floor(high / step) + 1)))
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    return Axis(first * step, last * step, tuple(round(i * step, 12) for i in range(first, last + 1)))


def logarithmic(values: Sequence[float]) -> Axis:
    """Return a logarithmic axis that holds all values (one or more, positive), numbers at 1, 2 and 5 times powers of ten, fewer over many powers."""
    low, high = min(values), max(values)
    first, last = math.floor(math.log10(low)), math.ceil(math.log10(high))
    factors = (1,) if last - first > 3 else (1, 2, 5)
    every = -(-(last - first) // MOST_POWERS)
    powers = range(first - 1, last + 1) if every <= 1 else range(first, last + every, every)
    all_ticks = [factor * 10.0**power for power in powers for factor in factors]
    lowest = max((t for t in all_ticks if t <= low * (1 + 1e-9)), default=low)
    highest = min((t for t in all_ticks if t >= high * (1 - 1e-9)), default=high)
    if lowest == highest:
        lowest, highest = lowest / 2, highest * 2
    return Axis(lowest, highest, tuple(t for t in all_ticks if lowest * (1 - 1e-9) <= t <= highest * (1 + 1e-9)), log=True)


def _round_step(rough: float) -> float:
    power = 10.0 ** math.floor(math.log10(rough))
    return power * next(factor for factor in (1, 2, 2.5, 5, 10) if factor * power >= rough * (1 - 1e-9))
