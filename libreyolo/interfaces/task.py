"""What a task does for the trainer: three verbs (terms; predict, which is forward and decode; metric), and facts needed before the forward."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from torch import Tensor, nn

from libreyolo.interfaces.batch import Batch
from libreyolo.interfaces.metric import Metric
from libreyolo.interfaces.term import Term


class Task(Protocol):
    """One per run; built with a family's criterion and decode, and the data's names and truth."""

    best_metric: str  # column that says which checkpoint is best; higher is better

    def facts(self, batch: Any) -> dict[str, int]:
        """Return numbers that the forward needs and all ranks must agree on (by their maximum); {} where there are none."""

    def target_stats(self, batch: Any) -> dict[str, Tensor]:
        """Return, by normaliser, the stats that targets alone decide; used to normalise an accumulation window as one batch."""

    def terms(self, net: nn.Module, batch: Any, facts: dict[str, int]) -> dict[str, Term]:
        """Run the forward and return the loss as named sums over this rank's pictures."""

    def forward(self, net: nn.Module, batch: Any) -> Any:
        """Return the network's raw output for an evaluation batch; the first half of predicting."""

    def decode(self, output: Any, batch: Any) -> list[Any]:
        """Return one prediction for each picture on the host, in coordinates of the original picture; the second half."""

    def metric(self) -> Metric:
        """Return a fresh accumulator."""


class Loader(Protocol):
    """Yields prepared batches on the device."""

    def start(self, epoch: int, start_step: int = 0, until: int | None = None) -> None:
        """Begin to read what `epoch` with the same arguments will yield."""

    def epoch(self, epoch: int, start_step: int = 0, until: int | None = None) -> Any:
        """Iterate over the epoch's batches of this rank from micro-batch `start_step` on; those up to `until` will follow and may be read ahead."""

    def steps(self, epoch: int) -> int:
        """Return the number of batches of an epoch, the same on every rank."""

    def real_pictures(self, epoch: int, step: int) -> int:
        """Return how many pictures over all ranks batch `step` holds, padded repeats left out."""

    def pictures_of(self, batch: Any) -> Callable[[], list[str]]:
        """Return what names the pictures that a batch of this rank shows (for messages), holding none of its pixels."""

    @property
    def waiting_seconds(self) -> float:
        """Host time spent waiting for the workers since `reset_waiting`."""

    def reset_waiting(self) -> None:
        """Start counting `waiting_seconds` anew."""

    def close(self) -> None:
        """End the workers."""


__all__ = ["Batch", "Loader", "Task"]
