"""How many pictures fit on a device: pure arithmetic over a function that measures a step. No device is touched here."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

FIRST_SIZES = (2, 4, 8)  # small steps that a line is drawn through; BatchNorm needs two pictures where the network ends in one pixel
TRIALS = 8
MULTIPLE = 8  # large batches are rounded down to it: tensor cores and picture-sized buffers like it


class OutOfMemoryError(Exception):
    """What a measurement raises when the device is full."""


@dataclass(frozen=True)
class Measured:
    """A step at a batch size. bytes: its peak, None where the device was full."""

    batch: int
    bytes: int | None


@dataclass(frozen=True)
class Capacity:
    """batch: the largest size found that was run and stayed within the budget. predicted, reached: its bytes by the line and in truth."""

    batch: int
    predicted: int
    reached: int
    measured: tuple[Measured, ...]


def fit(points: Sequence[Measured]) -> tuple[float, float]:
    """Return (bytes at no picture, bytes of a picture) of the least-squares line through two or more sizes that fitted."""
    fitted = [(p.batch, p.bytes) for p in points if p.bytes is not None]
    count = len(fitted)
    mean_x, mean_y = sum(b for b, _ in fitted) / count, sum(y for _, y in fitted) / count
    spread = sum((b - mean_x) ** 2 for b, _ in fitted)
    slope = sum((b - mean_x) * (y - mean_y) for b, y in fitted) / spread
    return mean_y - slope * mean_x, slope


def largest_batch(measure: Callable[[int], int], *, budget: int, most: int) -> Capacity | None:
    """Return the largest batch of at most `most` pictures whose step stays within `budget` bytes; None where not even one picture does.

    measure(batch): run a real step and return its peak in bytes; raises OutOfMemoryError. A line through a few small sizes says where to look, and
    the size that is returned was run.
    """
    tried: dict[int, int | None] = {}

    def look(batch: int) -> bool:
        """Measure a size once; return whether it fits."""
        if batch not in tried:
            try:
                tried[batch] = measure(batch)
            except OutOfMemoryError:
                tried[batch] = None
        found = tried[batch]
        return found is not None and found <= budget

    for size in _first_sizes(most):
        if not look(size):
            break
    for _ in range(TRIALS):
        wanted = _promising(tried, budget, most)
        if wanted is None or wanted in tried:
            break
        look(wanted)
    best = max(_fitting(tried, budget), default=0) or (1 if look(1) else 0)
    if best == 0:
        return None
    points = tuple(Measured(batch, found) for batch, found in sorted(tried.items()))
    return Capacity(best, _predicted([p for p in points if p.batch != best], best), tried[best] or 0, points)


def _fitting(tried: Mapping[int, int | None], budget: int) -> list[int]:
    return [batch for batch, found in tried.items() if found is not None and found <= budget]


def _first_sizes(most: int) -> list[int]:
    sizes = [size for size in FIRST_SIZES if size < most]
    return sizes or [most]


def _promising(tried: dict[int, int | None], budget: int, most: int) -> int | None:
    """Return the size to run next: where the line meets the budget, below every size that did not fit; None where nothing is left to try."""
    fitting = _fitting(tried, budget)
    failing = [batch for batch in tried if batch not in fitting]
    known = [Measured(batch, found) for batch, found in tried.items() if found is not None]
    if not fitting:
        return None
    ceiling = min([most, *(batch - 1 for batch in failing)])
    if len(known) < 2:
        return ceiling if not failing else None
    fixed, each = fit(known)
    guess = ceiling if each <= 0 else min(ceiling, int((budget - fixed) / each))
    if failing:  # the line was too hopeful: keep away from what did not fit
        guess = min(guess, int(0.9 * min(failing)))
    guess = guess if guess == most else _rounded(guess)
    return guess if guess > max(fitting) else None


def _rounded(batch: int) -> int:
    return batch // MULTIPLE * MULTIPLE if batch >= 2 * MULTIPLE else batch


def _predicted(points: Sequence[Measured], batch: int) -> int:
    usable = [p for p in points if p.bytes is not None]
    if len(usable) < 2:
        return 0
    fixed, each = fit(usable)
    return round(fixed + each * batch)


def global_batch(per_device: int, world_size: int, *, nbs: int | None, num_pictures: int) -> int:
    """Return the global batch that `world_size` devices train at: what they hold together, at most `nbs` and at most the training set.

    Rounded down to a multiple of `world_size`, and at least one picture for each. So adding devices makes fewer accumulation steps of the same
    nominal batch, not smaller batches for each.
    """
    together = min([per_device * world_size, num_pictures, *([nbs] if nbs else [])])
    return max(together // world_size, 1) * world_size
