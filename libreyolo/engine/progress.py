"""Where a run stands: everything that a resumed run must know beside tensors. Plain numbers, so a checkpoint can hold it."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any


@dataclass
class Progress:
    """epoch, step_in_epoch: the next micro-batch to train on (zero-based). global_step: applied optimiser steps, which drive the schedule.

    skipped_steps: optimiser steps that were refused because loss or gradient was not finite. ended_by: the patience
    that ended the run, 0 where none did; with a longer one it goes on. best_value None: nothing validated yet; a best of exactly 0 is still a best.
    best_metrics: every metric of the best epoch.
    """

    epoch: int = 0
    step_in_epoch: int = 0
    global_step: int = 0
    skipped_steps: int = 0
    best_value: float | None = None
    best_epoch: int = 0  # one-based, 0: none
    best_metrics: dict[str, float] = field(default_factory=dict)
    ended_by: int = 0
    seconds: float = 0.0  # training time before this process

    def better(self, value: float) -> bool:
        """Return whether a metric value beats the best so far; NaN never does."""
        return value == value and (self.best_value is None or value > self.best_value)

    def as_dict(self) -> dict[str, Any]:
        """Return plain builtins."""
        return asdict(self)

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> Progress:
        """Return the progress that `as_dict` wrote. Raises ValueError for anything else."""
        try:
            found = cls(**values)
        except TypeError as error:
            raise ValueError(str(error)) from error
        counts = (found.epoch, found.step_in_epoch, found.global_step, found.skipped_steps, found.best_epoch, found.ended_by)
        if not all(isinstance(count, int) and count >= 0 for count in counts) or not isinstance(found.best_metrics, dict):
            raise ValueError(f"{values} counts no epochs and steps")
        return found
