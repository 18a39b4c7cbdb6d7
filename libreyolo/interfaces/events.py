"""What happens in a run, told to listeners (records, pictures, progress, the user's callbacks) on rank 0 only.

Every event can be asked to end the run: `event.stop("reason")`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any


@dataclass
class _StopWish:
    reason: str | None = None


@dataclass(frozen=True)
class Event:
    """What every event has."""

    _wish: _StopWish = field(default_factory=_StopWish, init=False, repr=False, compare=False)

    def stop(self, reason: str = "") -> None:
        """Ask for the end of the run: every rank leaves after the epoch in progress, once its checkpoint is on disk.

        The run counts as completed; log, status.json and the result say who asked, and the reason. Going on with `resume` is possible. Without
        effect in `TrainEnd` and `TrainFailed`, where nothing is left to stop.
        """
        self._wish.reason = reason

    @property
    def stop_reason(self) -> str | None:
        """What was given to `stop`; None where nobody asked."""
        return self._wish.reason


@dataclass(frozen=True)
class TrainStart(Event):
    """Before the first step. `config` is the resolved configuration as plain builtins; `example` a picture of the data, where the task names one."""

    run_dir: Path
    config: dict[str, Any]
    epochs: int
    start_epoch: int  # zero-based; > 0 when resumed
    steps_per_epoch: int
    world_size: int
    names: dict[int, str]
    resumed: bool = False  # also where it goes on inside its first epoch
    example: Path | None = None


@dataclass(frozen=True)
class StepEnd(Event):
    """Every `log_interval` optimiser steps and at each epoch's last. Losses are means since the epoch began, normalised as trained."""

    epoch: int  # one-based
    step: int  # one-based step of the epoch
    steps_per_epoch: int
    global_step: int
    losses: dict[str, float]
    lr: float
    images_per_second: float
    waiting_share: float  # part of the time spent waiting for data, 0..1
    eta_seconds: float
    gpu_memory_gb: float  # peak reserved; 0 on the CPU


@dataclass(frozen=True)
class ValidationEnd(Event):
    """After a validation. `classes` holds the metrics of single classes ("class/cat/mAP50"), {} where the task has none.

    `curves` and `samples` hold what pictures are drawn from; their content belongs to the task.
    """

    epoch: int  # one-based
    metrics: dict[str, float]
    curves: dict[str, Any] = field(default_factory=dict)
    samples: list[Any] = field(default_factory=list)
    classes: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class EpochEnd(Event):
    """After an epoch. `row` is the line of results.csv: column name to value, None where there is none."""

    epoch: int  # one-based
    row: dict[str, Any]
    is_best: bool


@dataclass(frozen=True)
class CheckpointSaved(Event):
    """After a checkpoint is complete on disk."""

    path: Path
    epoch: int  # one-based
    is_best: bool

    @property
    def resumable(self) -> bool:
        """Whether this is the file that a resumed run goes on from."""
        return self.path.name == "last.pt"


@dataclass(frozen=True)
class TrainEnd(Event):
    """After the last epoch (or an early stop); `result` is what train() returns, `result["stopped_by"]` who or what ended it before its last step.

    completed: False where stop_after_epoch left some to train.
    """

    run_dir: Path
    result: dict[str, Any]
    completed: bool = True


@dataclass(frozen=True)
class TrainFailed(Event):
    """When training ends by an exception, which is raised again after every listener has been told."""

    run_dir: Path
    error: BaseException


class Listener:
    """Base of everything that listens to a run; override what you need. Called on rank 0 only, in its process.

    What a listener raises ends the run on every rank, and the log names the listener. `event.stop()` ends it well.
    """

    def on_train_start(self, event: TrainStart) -> None: ...

    def on_step_end(self, event: StepEnd) -> None: ...

    def on_validation_end(self, event: ValidationEnd) -> None: ...

    def on_epoch_end(self, event: EpochEnd) -> None: ...

    def on_checkpoint(self, event: CheckpointSaved) -> None: ...

    def on_train_end(self, event: TrainEnd) -> None: ...

    def on_exception(self, event: TrainFailed) -> None: ...
