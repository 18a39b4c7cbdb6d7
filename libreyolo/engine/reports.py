"""What the trainer tells of its steps and epochs."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

from libreyolo.engine.loss_log import Reading
from libreyolo.engine.progress import Progress
from libreyolo.engine.validate import Validation
from libreyolo.interfaces.events import StepEnd


@dataclass(frozen=True)
class EpochSummary:
    """What happened in an epoch, for records and checkpoints. `validation` is None where none was due.

    losses: what records show by name; those in `shown_only` are no part of the loss.
    """

    epoch: int  # zero-based
    losses: dict[str, float]
    lrs: list[float]
    validation: Validation | None
    is_best: bool
    seconds: float
    system: dict[str, float] = field(default_factory=dict)  # speed, waiting and memory, by column name
    shown_only: frozenset[str] = frozenset()

    @property
    def loss(self) -> float | None:
        """The mean of the whole loss; None where no step was taken."""
        parts = [value for name, value in self.losses.items() if name not in self.shown_only]
        return sum(parts) if parts else None


def epoch_row(summary: EpochSummary, progress: Progress, metric: str) -> dict[str, Any]:
    """Return the line of results.csv for an epoch; `metric` is the column that decides which epoch is best."""
    metrics = summary.validation.metrics if summary.validation else {}
    row: dict[str, Any] = {
        "epoch": summary.epoch + 1,
        "time": round(summary.seconds, 3),
        "train/loss": summary.loss,
        "validated": summary.validation is not None,
        "is_best": summary.is_best,
        "current_metric": metrics.get(metric),
        "current_metric_name": metric,
        "best_metric": progress.best_value,
        "best_metric_name": metric,
        "best_epoch": progress.best_epoch or None,
    }
    row |= {f"train/{part}_loss": value for part, value in summary.losses.items()}
    row |= metrics
    row |= {f"lr/group{i}": lr for i, lr in enumerate(summary.lrs)}
    return row | summary.system | (summary.validation.classes if summary.validation else {})


class StepReports:
    """Step events that wait for their losses to arrive on the host; told in order, never making the device wait within an epoch."""

    def __init__(self, tell: Callable[[str, Any], None]) -> None:
        self.tell = tell
        self.waiting: deque[tuple[StepEnd, Reading]] = deque()

    def add(self, event: StepEnd, reading: Reading) -> None:
        self.waiting.append((event, reading))

    def tell_ready(self) -> None:
        while self.waiting and self.waiting[0][1].ready():
            self._tell_first()

    def tell_all(self) -> None:
        while self.waiting:
            self._tell_first()

    def _tell_first(self) -> None:
        event, reading = self.waiting.popleft()
        self.tell("on_step_end", replace(event, losses=reading.wait()))
