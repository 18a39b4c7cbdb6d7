"""How a run is told to the person in front of it: a live bar on a terminal, a few plain lines in a log file."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Iterable
from typing import Any

from rich.console import Console, RenderableType
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn
from rich.text import Text

from libreyolo.errors import counted
from libreyolo.interfaces.events import EpochEnd, Listener, StepEnd, TrainEnd, TrainFailed, TrainStart, ValidationEnd
from libreyolo.record.summary import best_text, end_text, headlines
from libreyolo.record.tables import read_results

log = logging.getLogger(__name__)

LINES_PER_EPOCH = 10
SECONDS_BETWEEN_LINES = 30.0


class ProgressListener(Listener):
    """On a terminal a bar for the current epoch; elsewhere at most ten lines an epoch, half a minute apart.

    Validation, epoch and end are log lines in both. `clock` tells seconds.
    """

    def __init__(self, console: Console | None = None, clock: Callable[[], float] = time.monotonic) -> None:
        self.console, self._clock = console or Console(stderr=True), clock
        self._bar: Progress | None = None
        self._task: TaskID | None = None
        self._epochs = 0
        self._shown = (0, 0)  # epoch, tenth of it
        self._said_at = -math.inf
        self._losses: dict[str, float] = {}
        self._best = ""
        self._start: TrainStart | None = None
        self._row: dict[str, Any] = {}

    def on_train_start(self, event: TrainStart) -> None:
        self._start, self._epochs = event, event.epochs
        self._shown, self._said_at, self._row, self._best = (0, 0), -math.inf, {}, ""
        where = f", resumed after epoch {event.start_epoch}" if event.start_epoch else ""
        ranks, epochs = counted(event.world_size, "rank"), counted(event.epochs, "epoch")
        log.info("Training %s of %d steps on %s%s; results go to %s", epochs, event.steps_per_epoch, ranks, where, event.run_dir)
        if self.console.is_terminal and not self.console.is_dumb_terminal:
            # Drawn only when something happened: no thread of its own beside the training.
            columns = (TextColumn("{task.description}"), BarColumn(bar_width=40), MofNCompleteColumn())
            self._bar = _EpochBar(*columns, console=self.console, auto_refresh=False, transient=True)
            self._task = self._bar.add_task(f"epoch {event.start_epoch + 1}/{event.epochs}", total=event.steps_per_epoch, told="")
            self._bar.start()

    def on_step_end(self, event: StepEnd) -> None:
        self._losses = event.losses
        if self._bar is not None and self._task is not None:
            title = f"epoch {event.epoch}/{self._epochs}"
            told = _step_text(event) + (f"  best {self._best}" if self._best else "")
            self._bar.update(self._task, description=title, completed=event.step, total=event.steps_per_epoch, told=told, refresh=True)
            return
        place = (event.epoch, event.step * LINES_PER_EPOCH // max(event.steps_per_epoch, 1))
        now = self._clock()
        if place[1] > 0 and place > self._shown and now >= self._said_at + SECONDS_BETWEEN_LINES:
            self._shown, self._said_at = place, now
            log.info("epoch %d/%d  step %d/%d  %s", event.epoch, self._epochs, event.step, event.steps_per_epoch, _step_text(event))

    def on_validation_end(self, event: ValidationEnd) -> None:
        shown = "  ".join(f"{name} {value:.4f}" for name, value in headlines(event.metrics).items())
        log.info("epoch %d/%d  validation  %s", event.epoch, self._epochs, shown)

    def on_epoch_end(self, event: EpochEnd) -> None:
        self._row = dict(event.row)
        self._best = best = best_text(self._row)
        losses = "  ".join(f"{name} {value:.4g}" for name, value in self._losses.items())
        log.info("epoch %d/%d  done  %s%s", event.epoch, self._epochs, losses, f"  (best {best})" if best else "")

    def on_train_end(self, event: TrainEnd) -> None:
        self._stop()
        if self._start is not None:
            rows = read_results(event.run_dir / "results.csv") or [row for row in [self._row] if row]
            log.info("%s", end_text(self._start, event, rows))

    def on_exception(self, event: TrainFailed) -> None:
        self._stop()
        if isinstance(event.error, SystemExit):
            return  # whoever ended this rank says so
        log.info("Training stopped by %s; what it left is in %s", type(event.error).__name__, event.run_dir)

    def _stop(self) -> None:
        if self._bar is not None:
            self._bar.stop()
            self._bar = None


class _EpochBar(Progress):
    """A bar with what is told about its task on the line below: beside it, a narrow terminal would leave room for neither."""

    def get_renderables(self) -> Iterable[RenderableType]:
        yield self.make_tasks_table(self.tasks)
        for task in self.tasks:
            yield Text(str(task.fields["told"]))


def _step_text(event: StepEnd) -> str:
    parts = [f"{name} {value:.4g}" for name, value in event.losses.items()]
    parts += [f"lr {event.lr:.3g}", f"{event.images_per_second:.0f} images/s", f"data wait {100 * event.waiting_share:.0f} %"]
    if event.gpu_memory_gb > 0:
        parts.append(f"{event.gpu_memory_gb:.1f} GB")
    return "  ".join([*parts, f"ETA {duration(event.eta_seconds)}"])


def duration(seconds: float) -> str:
    """Return "1:02:03", or "2 d 1:02:03" from a day on; "?" for what is not a finite time."""
    if not math.isfinite(seconds) or seconds < 0:
        return "?"
    minutes, second = divmod(round(seconds), 60)
    hours, minute = divmod(minutes, 60)
    days, hour = divmod(hours, 24)
    return (f"{days} d " if days else "") + f"{hour}:{minute:02d}:{second:02d}"
