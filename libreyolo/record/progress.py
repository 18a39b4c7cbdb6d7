"""How a run is told to the person in front of it: a live bar on a terminal, a few plain lines in a log file."""

from __future__ import annotations

import logging
import math
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from rich.console import Console, RenderableType
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn
from rich.text import Text

from libreyolo.interfaces.events import CheckpointSaved, EpochEnd, Listener, StepEnd, TrainEnd, TrainFailed, TrainStart, ValidationEnd

log = logging.getLogger(__name__)

LINES_PER_EPOCH = 10
# What the validation line shows, of what a task measures; a task with none of them shows its first five.
HEADLINES = (
    *("mAP50-95", "mAP50", "grid_F1", "precision", "recall"),
    *("accuracy_top1", "accuracy_top5", "f1", "mIoU", "pixel_accuracy", "PSNR", "SSIM"),
)


class ProgressListener(Listener):
    """On a terminal a bar for the current epoch; elsewhere at most ten lines an epoch. Validation, epoch and end are log lines in both."""

    def __init__(self, console: Console | None = None) -> None:
        self.console = console or Console(stderr=True)
        self._bar: Progress | None = None
        self._task: TaskID | None = None
        self._epochs = 0
        self._shown = (0, 0)  # epoch, tenth of it
        self._losses: dict[str, float] = {}
        self._row: dict[str, Any] = {}
        self._data: Any = None
        self._best_path: Path | None = None

    def on_train_start(self, event: TrainStart) -> None:
        self._epochs, self._data = event.epochs, event.config.get("data")
        self._shown, self._row, self._best_path = (0, 0), {}, None
        where = f", resumed after epoch {event.start_epoch}" if event.start_epoch else ""
        processes = "1 process" if event.world_size == 1 else f"{event.world_size} processes"
        log.info("Training %d epochs of %d steps on %s%s; results go to %s", event.epochs, event.steps_per_epoch, processes, where, event.run_dir)
        if self.console.is_terminal:
            # Drawn only when something happened: no thread of its own beside the training.
            columns = (TextColumn("{task.description}"), BarColumn(bar_width=40), MofNCompleteColumn())
            self._bar = _EpochBar(*columns, console=self.console, auto_refresh=False, transient=True)
            self._task = self._bar.add_task("", total=event.steps_per_epoch, told="")
            self._bar.start()

    def on_step_end(self, event: StepEnd) -> None:
        self._losses = event.losses
        if self._bar is not None and self._task is not None:
            title = f"epoch {event.epoch}/{self._epochs}"
            self._bar.update(self._task, description=title, completed=event.step, total=event.steps_per_epoch, told=_step_text(event), refresh=True)
            return
        place = (event.epoch, event.step * LINES_PER_EPOCH // max(event.steps_per_epoch, 1))
        if place[1] > 0 and place > self._shown:
            self._shown = place
            log.info("epoch %d/%d  step %d/%d  %s", event.epoch, self._epochs, event.step, event.steps_per_epoch, _step_text(event))

    def on_validation_end(self, event: ValidationEnd) -> None:
        shown = {name: event.metrics[f"metrics/{name}"] for name in HEADLINES if f"metrics/{name}" in event.metrics}
        shown = shown or {name.removeprefix("metrics/"): value for name, value in list(event.metrics.items())[:5]}
        log.info("epoch %d/%d  validation  %s", event.epoch, self._epochs, "  ".join(f"{k} {v:.4f}" for k, v in shown.items()))

    def on_epoch_end(self, event: EpochEnd) -> None:
        self._row = dict(event.row)
        best = _best_text(self._row)
        losses = "  ".join(f"{name} {value:.4g}" for name, value in self._losses.items())
        log.info("epoch %d/%d  done  %s%s", event.epoch, self._epochs, losses, f"  (best {best})" if best else "")

    def on_checkpoint(self, event: CheckpointSaved) -> None:
        if event.is_best:
            self._best_path = event.path

    def on_train_end(self, event: TrainEnd) -> None:
        self._stop()
        log.info("%s", _final_table(event, self._row, self._data, self._best_path))

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
    parts += [f"lr {event.lr:.3g}", f"{event.images_per_second:.0f} images/s", f"waiting {100 * event.waiting_share:.0f} %"]
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


def _best_text(row: dict[str, Any]) -> str:
    if row.get("best_metric") is None:
        return ""
    name = str(row.get("best_metric_name") or "metric").removeprefix("metrics/")
    return f"{name} {float(row['best_metric']):.4f} at epoch {row.get('best_epoch')}"


def _final_table(event: TrainEnd, row: dict[str, Any], data: Any, best_path: Path | None) -> str:
    best = event.result.get("best_checkpoint") or best_path
    last = event.result.get("last_checkpoint")
    weights = best or last
    lines = [
        ("best result", _best_text(row) or "none: no validation was run"),
        ("best weights", best),
        ("last weights", last),
        ("results", event.run_dir / "results.csv"),
        ("next", f"python -m libreyolo val {weights} --data {data}" if weights else None),
    ]
    return "Training is done.\n" + "\n".join(f"  {title:<14}{text}" for title, text in lines if text)
