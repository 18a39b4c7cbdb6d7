"""What happens in a run, told to listeners (records, pictures, progress, the user's callbacks) on rank 0 only."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class TrainStart:
    """Before the first step. `config` is the resolved configuration as plain builtins."""

    run_dir: Path
    config: dict[str, Any]
    epochs: int
    start_epoch: int  # zero-based; > 0 when resumed
    steps_per_epoch: int
    world_size: int
    names: dict[int, str]
    resumed: bool = False  # also where it goes on inside its first epoch


@dataclass(frozen=True)
class StepEnd:
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
class ValidationEnd:
    """After a validation. `curves` and `samples` hold what pictures are drawn from; their content belongs to the task."""

    epoch: int  # one-based
    metrics: dict[str, float]
    curves: dict[str, Any] = field(default_factory=dict)
    samples: list[Any] = field(default_factory=list)


@dataclass(frozen=True)
class EpochEnd:
    """After an epoch. `row` is the line of results.csv: column name to value, None where there is none."""

    epoch: int  # one-based
    row: dict[str, Any]
    is_best: bool


@dataclass(frozen=True)
class CheckpointSaved:
    """After a checkpoint is complete on disk."""

    path: Path
    epoch: int  # one-based
    is_best: bool


@dataclass(frozen=True)
class TrainEnd:
    """After the last epoch (or an early stop); `result` is what train() returns. completed: False where stop_after_epoch left some to train."""

    run_dir: Path
    result: dict[str, Any]
    completed: bool = True


@dataclass(frozen=True)
class TrainFailed:
    """When training ends by an exception, which is raised again after every listener has been told."""

    run_dir: Path
    error: BaseException


class Listener:
    """Base of everything that listens to a run; override what you need. Called on rank 0 only."""

    def on_train_start(self, event: TrainStart) -> None: ...

    def on_step_end(self, event: StepEnd) -> None: ...

    def on_validation_end(self, event: ValidationEnd) -> None: ...

    def on_epoch_end(self, event: EpochEnd) -> None: ...

    def on_checkpoint(self, event: CheckpointSaved) -> None: ...

    def on_train_end(self, event: TrainEnd) -> None: ...

    def on_exception(self, event: TrainFailed) -> None: ...
