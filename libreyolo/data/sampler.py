"""Which pictures make up each step, as a function of (seed, epoch): the same global batches for every number of ranks.

n pictures of an epoch after repeats, P the length of one step's global batch (padding included), R ranks.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from libreyolo.errors import UserError
from libreyolo.ops.keyed import generator


@dataclass(frozen=True)
class Item:
    """One picture of one step.

    index: its place in the dataset.
    place: its place in the epoch's global list, unique in the epoch (padding continues the count): with `epoch`, the key of every draw.
    epoch: zero-based.
    weight: 1.0, or 0.0 for a padded repeat, which must not count in any sum.
    """

    index: int
    place: int
    epoch: int
    weight: float


class Sampler(Protocol):
    """What a loader needs to know about an order of pictures."""

    @property
    def num_pictures(self) -> int:
        """How many pictures the dataset holds."""

    def steps(self, epoch: int = 0) -> int:
        """Return how many lists `batches` yields for a whole epoch on this rank."""

    def batches(self, epoch: int, start_step: int = 0) -> Iterator[list[Item]]:
        """Yield this rank's pictures of each step from `start_step` on."""

    def real_pictures(self, epoch: int, step: int) -> int:
        """Return how many pictures step `step` holds over all ranks, padded repeats left out."""


def repeat_factors(offsets: np.ndarray, labels: np.ndarray, num_pictures: int, threshold: float = 0.1) -> np.ndarray:
    """Return how often each picture should be seen per epoch so that rare classes are seen more often, float64 [num_pictures], >= 1.

    Repeat-factor sampling (LVIS, arXiv 1908.03195): r(c) = max(1, sqrt(threshold / f(c))), r(picture) = max over its classes, where f(c) is
    the share of pictures that hold class c. 1 for a picture without boxes.

    offsets: int64 [num_pictures + 1]; the labels of picture i are labels[offsets[i]:offsets[i + 1]].
    labels: int64 class ids of all boxes.
    threshold: a class in a smaller share of the pictures is repeated. The paper's 0.001 suits its 1203 classes; with the few classes of
        most sets it would change nothing. At 0.1 a class in 1 % of the pictures is seen sqrt(10) = 3.2 times as often.
    """
    factors = np.ones(num_pictures, dtype=np.float64)
    if labels.size == 0:
        return factors
    picture_of_box = np.repeat(np.arange(num_pictures), np.diff(offsets))
    pairs = np.unique(np.stack([picture_of_box, labels]), axis=1)  # a class counts once per picture
    share = np.bincount(pairs[1]) / num_pictures
    per_class = np.maximum(1.0, np.sqrt(threshold / np.maximum(share, 1e-12)))
    np.maximum.at(factors, pairs[0], per_class[pairs[1]])
    return factors


class EpochSampler:
    """Cuts one permutation per (seed, epoch) into global batches; rank r takes places r::world_size of each.

    Every rank has the same number of steps, ceil(n / batch), in every epoch. A short last batch is filled with repeats from the start of
    the epoch's own order, each of weight 0: to a whole batch where the epoch has that many pictures (shapes stay static, BatchNorm never
    sees one picture), else to max(2, n) rounded up to a multiple of world_size (no rank is ever without a picture).

    batch: pictures per step over all ranks; a multiple of world_size.
    repeats: float [num_pictures], >= 1, how often each picture is seen per epoch on average (class balance). Every epoch has
        ceil(sum(repeats)) pictures; each appears floor or ceil of its factor times, decided by a keyed draw per epoch (for a fractional sum
        one picture may appear once more).
    min_samples: an epoch is made at least this long by whole repeats of the set; each pass has its own order.
    """

    def __init__(
        self,
        num_pictures: int,
        *,
        batch: int,
        rank: int = 0,
        world_size: int = 1,
        seed: int,
        shuffle: bool = True,
        repeats: np.ndarray | None = None,
        min_samples: int = 0,
    ) -> None:
        if num_pictures < 1:
            raise UserError(f"There is no picture to train on (0 pictures, batch={batch}, world_size={world_size}); check the dataset's paths.")
        if batch < 1 or batch % world_size:
            lower = batch // world_size * world_size
            choice = f"batch={lower} or batch={lower + world_size}" if lower > 0 else f"batch={world_size}"
            raise UserError(f"batch={batch} is the global batch and must be divisible by world_size={world_size}; use {choice}.")
        if not 0 <= rank < world_size:
            raise ValueError(f"rank {rank} is not in 0..{world_size - 1}")
        if repeats is not None and (repeats.shape != (num_pictures,) or not np.all(np.isfinite(repeats)) or repeats.min() < 1):
            raise ValueError(f"repeats must be finite, at least 1 and of length {num_pictures}")
        self.num_pictures = num_pictures
        self.batch = batch
        self.rank = rank
        self.world_size = world_size
        self.seed = seed
        self.shuffle = shuffle
        self.repeats = repeats
        # A sum of factors that is whole up to rounding must not grow by one.
        self._pass_length = num_pictures if repeats is None else math.ceil(float(repeats.sum()) - 1e-9)
        self._num_passes = max(1, math.ceil(min_samples / self._pass_length))

    @property
    def epoch_length(self) -> int:
        """How many pictures of weight 1 an epoch has over all ranks."""
        return self._pass_length * self._num_passes

    def steps(self, epoch: int = 0) -> int:
        """Return the steps per epoch: the same for every epoch and rank."""
        return math.ceil(self.epoch_length / self.batch)

    def batches(self, epoch: int, start_step: int = 0) -> Iterator[list[Item]]:
        """Yield this rank's pictures of each step from `start_step` on; what a step holds does not depend on where one starts."""
        order = self.order(epoch)
        length = len(order)
        for step in range(start_step, self.steps(epoch)):
            first = step * self.batch
            size = self.batch if length >= self.batch else self._small_batch(length)
            places = range(first + self.rank, first + size, self.world_size)
            yield [Item(int(order[p % length]), p, epoch, 1.0 if p < length else 0.0) for p in places]

    def real_pictures(self, epoch: int, step: int) -> int:
        """Return how many pictures of weight 1 step `step` holds over all ranks."""
        return max(0, min(self.batch, self.epoch_length - step * self.batch))

    def order(self, epoch: int) -> np.ndarray:
        """Return the epoch's global list of dataset indices, int64 [epoch_length], before padding."""
        return np.concatenate([self._one_pass(epoch, number) for number in range(self._num_passes)])

    def _small_batch(self, length: int) -> int:
        return math.ceil(max(2, length) / self.world_size) * self.world_size

    def _one_pass(self, epoch: int, number: int) -> np.ndarray:
        indices = np.arange(self.num_pictures)
        if self.repeats is not None:
            indices = np.repeat(indices, self._counts(epoch, number))
        if not self.shuffle:
            return indices
        return generator(self.seed, "order", epoch, number).permutation(indices)

    def _counts(self, epoch: int, number: int) -> np.ndarray:
        # Systematic sampling: walk the pictures in a random order along a line on which each takes its factor's length, and count the grid
        # points (one per unit, one random shift) that fall on it. Each count is floor or ceil of its factor with the factor as its mean,
        # and their sum is fixed, so that an epoch's length, and with it the schedule, never depends on luck.
        assert self.repeats is not None
        rng = generator(self.seed, "repeats", epoch, number)
        walk = rng.permutation(self.num_pictures)
        ends = np.floor(np.cumsum(self.repeats[walk]) + rng.random())
        counts = np.empty(self.num_pictures, dtype=np.int64)
        counts[walk] = np.diff(ends, prepend=0.0).astype(np.int64)
        # The last point falls past the end for a fractional sum (or on it by rounding); the first picture of the walk takes what is
        # missing.
        counts[walk[0]] += self._pass_length - counts.sum()
        return counts


class EvaluationSampler:
    """Every picture exactly once over all ranks, in order: rank r takes r::world_size, without padding or repeats (perhaps nothing).

    batch: pictures per list on this rank; the last may be shorter.
    """

    def __init__(self, num_pictures: int, *, batch: int, rank: int = 0, world_size: int = 1) -> None:
        if batch < 1:
            raise UserError(f"batch={batch} of an evaluation must be at least 1.")
        self.num_pictures = num_pictures
        self.batch = batch
        self.world_size = world_size
        self._mine = range(rank, num_pictures, world_size)

    def steps(self, epoch: int = 0) -> int:
        """Return how many lists this rank has; 0 where it has no picture."""
        return math.ceil(len(self._mine) / self.batch)

    def batches(self, epoch: int, start_step: int = 0) -> Iterator[list[Item]]:
        """Yield this rank's pictures in order."""
        for first in range(start_step * self.batch, len(self._mine), self.batch):
            yield [Item(i, i, epoch, 1.0) for i in self._mine[first : first + self.batch]]

    def real_pictures(self, epoch: int, step: int) -> int:
        """Return how many pictures all ranks together evaluate in their list `step`; every one is real."""
        return max(0, min(self.batch * self.world_size, self.num_pictures - step * self.batch * self.world_size))
