"""The trainer: epochs and steps, validation, checkpoints, early stopping. It knows no task and no family."""

from __future__ import annotations

import logging
import math
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import nn
from torch.autograd.profiler import record_function

from libreyolo.engine import collectives
from libreyolo.engine.ema import EMA
from libreyolo.engine.freeze import keep_frozen_norms_still
from libreyolo.engine.generators import seed_process
from libreyolo.engine.loss_log import LossLog, Reading
from libreyolo.engine.profiler import StepProfiler
from libreyolo.engine.progress import Progress
from libreyolo.engine.schedule import Schedule
from libreyolo.engine.step import TrainStep
from libreyolo.engine.validate import Validation, validate
from libreyolo.errors import UserError
from libreyolo.interfaces.events import EpochEnd, StepEnd, ValidationEnd
from libreyolo.interfaces.phases import AVERAGE
from libreyolo.interfaces.task import Loader, Task
from libreyolo.ops.keyed import derive

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Plan:
    """How long to train and how often to look."""

    epochs: int
    accumulate: int  # micro-batches in an optimiser step
    seed: int
    eval_interval: int  # 0: never
    patience: int  # 0: off
    log_interval: int
    val_loss: bool = False
    max_steps: int | None = None
    stop_after_epoch: int | None = None


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
    shown_only: frozenset[str] = frozenset()

    @property
    def loss(self) -> float | None:
        """The mean of the whole loss; None where no step was taken."""
        parts = [value for name, value in self.losses.items() if name not in self.shown_only]
        return sum(parts) if parts else None


class Trainer:
    """Trains `net` and leaves the averaged weights in `ema` (None: no average).

    net: the network as the step sees it (wrapped when distributed); bare: the same network unwrapped. The trainer owns `progress` and nothing on
    disk: `save` is called after every epoch, with the summary, on every rank; `tell` passes events to listeners and does nothing on ranks other
    than 0.
    """

    def __init__(
        self,
        *,
        net: nn.Module,
        bare: nn.Module,
        ema: EMA | None,
        task: Task,
        step: TrainStep,
        schedule: Schedule,
        train_loader: Loader,
        val_loader: Loader | None,
        plan: Plan,
        progress: Progress,
        save: Callable[[EpochSummary], None],
        tell: Callable[[str, Any], None],
        before_last_validation: Callable[[nn.Module, int], None] | None = None,
    ) -> None:
        self.net, self.bare, self.ema, self.task, self.step, self.schedule = net, bare, ema, task, step, schedule
        self.train_loader, self.val_loader, self.plan, self.progress = train_loader, val_loader, plan, progress
        self.save, self.tell, self.before_last_validation = save, tell, before_last_validation
        self.profiler: StepProfiler | None = None
        self.history: list[EpochSummary] = []

    def fit(self) -> list[EpochSummary]:
        """Train from `progress` to the end of the plan; return the epochs of this process."""
        while not self._finished():
            self.history.append(self._epoch())
        if self._out_of_patience():
            waited = self.progress.epoch - self.progress.best_epoch
            log.info("No better %s for %d epochs: stopped after epoch %d.", self.task.best_metric, waited, self.progress.epoch)
        return self.history

    @property
    def judged(self) -> nn.Module:
        """The network that is validated and saved: the average where there is one."""
        return self.ema.average if self.ema else self.bare

    def _epoch(self) -> EpochSummary:
        epoch, started = self.progress.epoch, time.perf_counter()
        losses = self._train_epoch(epoch)
        # From here on the epoch counts as done: a checkpoint must lead to the next one.
        self.progress.epoch, self.progress.step_in_epoch = epoch + 1, 0
        collectives.average_buffers([self.bare, *([self.ema.average] if self.ema else [])])
        last = self._at_end()
        if last and self.before_last_validation:
            self.before_last_validation(self.judged, epoch)
        validation = self._validate(epoch, last)
        is_best = self._judge(epoch, validation)
        self.progress.seconds += time.perf_counter() - started
        lrs = [float(group["lr"]) for group in self.step.optimizer.param_groups]
        summary = EpochSummary(epoch, losses, lrs, validation, is_best, self.progress.seconds, self.step.shown_only)
        self._record(summary)
        self.save(summary)
        return replace(summary, validation=validation and Validation(validation.metrics))

    def _train_epoch(self, epoch: int) -> dict[str, float]:
        self.net.train()
        keep_frozen_norms_still(self.bare)
        losses, reports = LossLog(self.step.device), _StepReports(self.tell)
        earlier: Reading | None = None
        num_batches = self.train_loader.steps(epoch)
        self.train_loader.reset_waiting()
        started = time.perf_counter()
        for first, window in self._windows(epoch):
            pictures = [self.train_loader.real_pictures(epoch, first + i) for i in range(len(window))]
            self._set_rates()
            parts, moved = self.step(window, pictures)
            self._count(moved)
            if self.profiler is not None:
                self.profiler.step()
            if moved:  # the loss of a step that float16 refused may be infinite
                losses.add(parts, sum(pictures))
            self.progress.step_in_epoch = done = first + len(window)
            reports.tell_ready()
            if moved and self.progress.global_step % self.plan.log_interval == 0:
                if earlier is not None:  # long on the host by now: reading it makes nobody wait
                    self._refuse_infinite(earlier, epoch)
                earlier = losses.read()
                reports.add(self._step_event(epoch, done, num_batches, losses, started), earlier)
            if self._out_of_steps():
                break
        final = losses.read()
        reports.add(self._step_event(epoch, self.progress.step_in_epoch, num_batches, losses, started), final)
        reports.tell_all()
        self._refuse_infinite(final, epoch)
        return final.wait()

    def _refuse_infinite(self, reading: Reading, epoch: int) -> None:
        """Raise where a loss is not finite. The means are those over all ranks, so they leave together; the last checkpoint stays as it is."""
        bad = {name: value for name, value in reading.wait().items() if not math.isfinite(value)}
        if bad:
            shown = ", ".join(f"{name} {value}" for name, value in bad.items())
            raise UserError(
                f"The loss is not finite in epoch {epoch + 1}, by optimiser step {self.progress.global_step} ({shown}); the checkpoints hold the "
                "epochs before it: try a lower lr0, clip_max_norm=10, or amp=false."
            )

    def _windows(self, epoch: int) -> Iterator[tuple[int, Sequence[Any]]]:
        """Yield (index of the first micro-batch, micro-batches) for every optimiser step; the last window may be short."""
        first = self.progress.step_in_epoch
        window: list[Any] = []
        for batch in self.train_loader.epoch(epoch, start_step=first):
            if not window:
                # Dropout and the like draw from generators that are a function of the place, so a resumed run repeats them; no two ranks share them.
                seed_process(derive(self.plan.seed, "step", epoch, first, collectives.rank()))
            window.append(batch)
            if len(window) == self.plan.accumulate:
                yield first, window
                first, window = first + len(window), []
        if window:
            yield first, window

    def _set_rates(self) -> None:
        lr, momentum = self.schedule.lr(self.progress.global_step), self.schedule.momentum_at(self.progress.global_step)
        for group in self.step.optimizer.param_groups:
            group["lr"] = lr * group["lr_scale"]
            if "momentum" in group:
                group["momentum"] = momentum

    def _count(self, moved: bool) -> None:
        """Schedule, average and counters move only with applied steps."""
        if not moved:
            self.progress.skipped_steps += 1
            return
        self.progress.global_step += 1
        if self.ema:
            with record_function(AVERAGE):
                self.ema.update(self.bare)

    def _validate(self, epoch: int, last: bool) -> Validation | None:
        due = self.plan.eval_interval and ((epoch + 1) % self.plan.eval_interval == 0 or last)
        if self.val_loader is None or not due:
            return None
        step = self.step
        return validate(self.judged, self.task, self.val_loader, device=step.device, amp_dtype=step.amp_dtype, with_loss=self.plan.val_loss)

    def _judge(self, epoch: int, validation: Validation | None) -> bool:
        """Return whether this epoch is the best so far, and remember it."""
        if validation is None or not self.progress.better(validation.metrics[self.task.best_metric]):
            return False
        self.progress.best_value, self.progress.best_epoch = validation.metrics[self.task.best_metric], epoch + 1
        self.progress.best_metrics = dict(validation.metrics)
        return True

    def _record(self, summary: EpochSummary) -> None:
        if summary.validation and summary.validation.metric is not None:
            curves = summary.validation.metric.curves()
            self.tell("on_validation_end", ValidationEnd(summary.epoch + 1, summary.validation.metrics, curves, [summary.validation.metric]))
        self.tell("on_epoch_end", EpochEnd(summary.epoch + 1, self.row(summary), summary.is_best))

    def row(self, summary: EpochSummary) -> dict[str, Any]:
        """Return the line of results.csv for an epoch."""
        metrics = summary.validation.metrics if summary.validation else {}
        name = self.task.best_metric
        row: dict[str, Any] = {
            "epoch": summary.epoch + 1,
            "time": round(summary.seconds, 3),
            "train/loss": summary.loss,
            "validated": summary.validation is not None,
            "is_best": summary.is_best,
            "current_metric": metrics.get(name),
            "current_metric_name": name,
            "best_metric": self.progress.best_value,
            "best_metric_name": name,
            "best_epoch": self.progress.best_epoch or None,
        }
        row |= {f"train/{part}_loss": value for part, value in summary.losses.items()}
        row |= metrics
        return row | {f"lr/group{i}": lr for i, lr in enumerate(summary.lrs)}

    def _step_event(self, epoch: int, done: int, num_batches: int, losses: LossLog, started: float) -> StepEnd:
        elapsed = max(time.perf_counter() - started, 1e-9)
        remaining = (self.plan.epochs - epoch) * num_batches - done
        return StepEnd(
            epoch=epoch + 1,
            step=done,
            steps_per_epoch=num_batches,
            global_step=self.progress.global_step,
            losses={},
            lr=self.schedule.lr(max(self.progress.global_step - 1, 0)),
            images_per_second=losses.pictures / elapsed,
            waiting_share=min(self.train_loader.waiting_seconds / elapsed, 1.0),
            eta_seconds=remaining * elapsed / max(losses.windows * self.plan.accumulate, 1),
            gpu_memory_gb=torch.cuda.max_memory_reserved(self.step.device) / 1e9 if self.step.device.type == "cuda" else 0.0,
        )

    def _out_of_steps(self) -> bool:
        return self.plan.max_steps is not None and self.progress.global_step + self.progress.skipped_steps >= self.plan.max_steps

    def _at_end(self) -> bool:
        """Return whether the plan ends here: the last epoch, or the last step."""
        return self.progress.epoch >= self.plan.epochs or self._out_of_steps()

    def _out_of_patience(self) -> bool:
        """Return whether the newest validation was one too many without a better metric. Only a validation can end a run."""
        done, best, interval = self.progress.epoch, self.progress.best_epoch, self.plan.eval_interval
        judged = self.val_loader is not None and interval > 0 and done % interval == 0
        return bool(self.plan.patience and best and judged and done - best >= self.plan.patience)

    def _finished(self) -> bool:
        """Return whether training ends here; a pure function of what all ranks know, so they leave together.

        `stop_after_epoch` interrupts: nothing happens that an unbroken run would not do at that epoch.
        """
        stop = self.plan.stop_after_epoch
        return self._at_end() or (stop is not None and self.progress.epoch >= stop) or self._out_of_patience()


class _StepReports:
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
