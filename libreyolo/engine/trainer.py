"""The trainer: epochs and steps, validation, checkpoints, early stopping. It knows no task and no family."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, NoReturn

import torch
from torch import Tensor, nn
from torch.autograd.profiler import record_function

from libreyolo.engine import collectives
from libreyolo.engine.ema import EMA
from libreyolo.engine.freeze import keep_frozen_norms_still
from libreyolo.engine.generators import seed_process
from libreyolo.engine.host_copy import HostCopy
from libreyolo.engine.interruption import Interrupted, Interruption
from libreyolo.engine.loss_log import LossLog
from libreyolo.engine.profiler import StepProfiler
from libreyolo.engine.progress import Progress
from libreyolo.engine.refusal import MOST_IN_A_ROW, explain, not_finite_tensor
from libreyolo.engine.reports import EpochSummary, StepReports, epoch_row
from libreyolo.engine.schedule import Schedule
from libreyolo.engine.step import TrainStep
from libreyolo.engine.validate import AbandonedError, Validation, validate
from libreyolo.errors import AgreedError
from libreyolo.interfaces.events import EpochEnd, StepEnd, ValidationEnd
from libreyolo.interfaces.phases import AVERAGE
from libreyolo.interfaces.task import Loader, Task
from libreyolo.ops.keyed import derive

log = logging.getLogger(__name__)

REMEDY = "try a lower lr0, clip_max_norm=10, or amp=false"  # for numbers that grew out of range


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
    nonfinite: str = "skip"  # what follows a refused step: "skip" goes on, "stop" ends the run

    @property
    def until(self) -> int:
        """The epoch (zero-based) before which this process ends at the latest."""
        return min(self.epochs, self.stop_after_epoch or self.epochs)


@dataclass(frozen=True)
class _UnderWay:
    """A step that the device is told to take, and of which the host does not know yet what came of it."""

    done: int  # micro-batches of the epoch when it is over
    num_pictures: int
    parts: dict[str, Tensor]
    verdict: HostCopy  # (refused, ranks that want to leave)
    own: list[tuple[str, Tensor, Tensor]]
    pictures: list[Callable[[], list[str]]]


class Trainer:
    """Trains `net` and leaves the averaged weights in `ema` (None: no average).

    net: the network as the step sees it (wrapped when distributed); bare: the same network unwrapped. The trainer owns `progress` and nothing on
    disk: `save` is called after every epoch, with the summary, on every rank; `save_midway` where a run ends inside an epoch, on every rank too,
    and returns when the file is there. `tell_saved` is for a `save` that returned before its files were there: called after every step, and with
    wait=True before the next epoch is recorded, so that none is before the one before it is on the disk. `tell` passes events to listeners and does
    nothing on ranks other than 0. `stop_asked` says who of them wants the run to end ("" for nobody; only rank 0's answer counts).

    interruption: what notes a signal's wish that this run should leave. before_last_validation: called with the judged network and the epoch.
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
        stop_asked: Callable[[], str] = lambda: "",
        save_midway: Callable[[LossLog], None] = lambda losses: None,
        tell_saved: Callable[..., None] = lambda *, wait=False: None,
        interruption: Interruption | None = None,
        before_last_validation: Callable[[nn.Module, int], None] | None = None,
    ) -> None:
        self.net, self.bare, self.ema, self.task, self.step, self.schedule = net, bare, ema, task, step, schedule
        self.train_loader, self.val_loader, self.plan, self.progress = train_loader, val_loader, plan, progress
        self.save, self.tell, self.save_midway, self.tell_saved, self.stop_asked = save, tell, save_midway, tell_saved, stop_asked
        self.before_last_validation = before_last_validation
        self.interruption = interruption or Interruption()
        self.profiler: StepProfiler | None = None
        self.history: list[EpochSummary] = []
        self.stopped_by = ""  # who or what ended the run before its last step; the same on every rank
        self.earlier_losses: dict[str, Any] | None = None  # of the epoch in whose middle the resumed run ended
        self._losses = LossLog(step.device)
        self._states: dict[nn.Module, dict[str, Tensor]] = {}
        self._system: dict[str, float] = {}
        self._under_way: _UnderWay | None = None
        self._leaving = False
        self._cut = False  # max_steps ended the newest epoch before its last batch
        self._refused_in_a_row = 0

    def fit(self) -> list[EpochSummary]:
        """Train from `progress` to the end of the plan; return the epochs of this process. Raises Interrupted where a signal asked to leave."""
        with self.interruption.held():
            while not self._finished():
                self.history.append(self._epoch())
                self.stopped_by = collectives.broadcast_object(self.stop_asked())
                number = self.interruption.agreed(self.step.device)
                if number and not self._finished():
                    raise Interrupted(number)
        if self.progress.skipped_steps and not self.progress.global_step and self.completed:
            raise AgreedError(f"Not one of the {self.progress.skipped_steps} steps moved the weights, because the loss was never finite: {REMEDY}.")
        if self._at_end():  # it would have ended here anyway
            self.stopped_by = f"max_steps={self.plan.max_steps}" if self._cut or self.progress.epoch < self.plan.epochs else ""
        elif self._ended_by_patience():
            waited = self.progress.epoch - self.progress.best_epoch
            self.stopped_by = f"patience (no better {self.task.best_metric} for {waited} epochs)"
        if self.stopped_by:
            log.info("The run was stopped after epoch %d of %d by %s.", self.progress.epoch, self.plan.epochs, self.stopped_by)
        return self.history

    @property
    def completed(self) -> bool:
        """Whether nothing is left to train: the plan's end, patience's, or that of a callback."""
        return self._at_end() or bool(self.stopped_by) or self._ended_by_patience()

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
        self._refuse_infinite_weights(epoch)
        try:
            validation, is_best = self._validate_and_judge(epoch)
        except AbandonedError:
            self.progress.epoch, self.progress.step_in_epoch = epoch, self.train_loader.steps(epoch)  # its end is what is left of it
            self._leave()
        self.progress.seconds += time.perf_counter() - started
        lrs = [float(group["lr"]) for group in self.step.optimizer.param_groups]
        summary = EpochSummary(epoch, losses, lrs, validation, is_best, self.progress.seconds, self._system, self._losses.shown_only)
        self.tell_saved(wait=True)
        self._record(summary)
        self.save(summary)
        return replace(summary, validation=validation and Validation(validation.metrics))

    def _train_epoch(self, epoch: int) -> dict[str, float]:
        self.net.train()
        keep_frozen_norms_still(self.bare)
        self._losses, self.earlier_losses = LossLog(self.step.device, self.earlier_losses), None
        reports = StepReports(self.tell)
        self.train_loader.reset_waiting()
        to_judge = self.val_loader if self._is_due(epoch, last=epoch + 1 >= self.plan.epochs) else None
        started = time.perf_counter()
        for first, window in self._windows(epoch):
            pictures = [self.train_loader.real_pictures(epoch, first + i) for i in range(len(window))]
            parts = self.step.backward(window, pictures)
            # The device has a forward and a backward to do: meanwhile the host learns of the step before, and nobody waits.
            self._settle(epoch, reports, started)
            self._set_rates()
            names = [self.train_loader.pictures_of(batch) for batch in window]
            self._under_way = _UnderWay(first + len(window), sum(pictures), parts, self.step.move(), self.step.own, names)
            if self.profiler is not None:
                self.profiler.step()
            reports.tell_ready()
            self.tell_saved()
            if self._leaving or self._out_of_steps():
                break
            if to_judge and self.train_loader.steps(epoch) - self._under_way.done <= self.plan.accumulate:
                # At most one more step: while the device does this one, processes start to read what is validated after it.
                to_judge.start(0)
                to_judge = None
        self.step.norms.take()
        self._settle(epoch, reports, started)
        self._cut = self._out_of_steps() and self.progress.step_in_epoch < self.train_loader.steps(epoch)
        if self._leaving and not self._out_of_steps():
            self._leave()
        final = self._losses.read()
        event = self._step_event(epoch, started)
        self._system = {f"system/{name}": getattr(event, name) for name in ("images_per_second", "waiting_share", "gpu_memory_gb")}
        reports.add(event, final)
        reports.tell_all()
        return final.wait()

    def _settle(self, epoch: int, reports: StepReports, started: float) -> None:
        """Count the step under way, if any, as what it was: schedule, average and counters move only with applied steps.

        BatchNorm's statistics are read from the copies that were taken after it, since the network's own may have moved on.
        """
        step, self._under_way = self._under_way, None
        if step is None:
            return
        refused, wishes = step.verdict.wait()
        self.progress.step_in_epoch = step.done
        self._leaving = self._leaving or wishes > 0
        if refused:
            self._refuse(step, epoch)
            return
        self._refused_in_a_row = 0
        self.progress.global_step += 1
        if self.ema:
            with record_function(AVERAGE):
                self.ema.update(self.bare, self.step.norms.of)
        self._losses.add(step.parts, step.num_pictures, self.step.shown_only)
        if self.progress.global_step % self.plan.log_interval == 0:
            reports.add(self._step_event(epoch, started), self._losses.read())

    def _refuse(self, step: _UnderWay, epoch: int) -> None:
        """Count a step that moved nothing, say why, and end the run where that is the policy or it happens too often. Alike on every rank."""
        self.progress.skipped_steps += 1
        self._refused_in_a_row += 1
        refusal = explain(step.own, step.pictures)
        overflow = self.step.scaler.is_enabled() and not refusal.terms  # float16 looking for its scale
        where = f"epoch {epoch + 1}, batch {step.done} of {self.train_loader.steps(epoch)} (after {self.progress.global_step} optimiser steps)"
        num_steps = -(-self.train_loader.steps(epoch) // self.plan.accumulate)
        many = self._refused_in_a_row >= (MOST_IN_A_ROW if overflow else min(MOST_IN_A_ROW, 2 * num_steps))
        if many or (self.plan.nonfinite == "stop" and not overflow):
            self.step.drop()
            self.save_midway(self._losses)
            reason = f"{self._refused_in_a_row} steps in a row were refused, the last one in" if many else "In"
            raise AgreedError(f"{reason} {where}: {refusal.text}; the weights are as they were before it: look at these pictures, or {REMEDY}.")
        if collectives.rank() == 0:
            level = logging.DEBUG if overflow else logging.WARNING
            log.log(level, "A step was skipped in %s: %s. %d skipped so far.", where, refusal.text, self.progress.skipped_steps)

    def _leave(self) -> NoReturn:
        """Save what there is in the middle of an epoch and leave, all ranks together."""
        number = self.interruption.agreed(self.step.device)
        self.save_midway(self._losses)
        raise Interrupted(number)

    def _refuse_infinite_weights(self, epoch: int) -> None:
        """Raise where the trained weights hold an infinity; an average that holds one starts anew. All ranks have the same tensors here."""
        broken = self._infinity_in(self.bare)
        if broken:
            raise AgreedError(
                f"The weights are not finite after epoch {epoch + 1} (tensor {broken}), and the checkpoints hold the epochs before it: {REMEDY}."
            )
        broken = self._infinity_in(self.ema.average) if self.ema else None
        if self.ema and broken:
            self.ema.start_anew(self.bare)
            if collectives.rank() == 0:
                log.warning("The average of the weights is not finite after epoch %d (tensor %s): it starts anew from them.", epoch + 1, broken)

    def _infinity_in(self, net: nn.Module) -> str | None:
        """Return the name of a tensor of the network that holds an infinity or NaN, None where there is none. The device is waited for once."""
        # Collecting a thousand names takes longer than the look at them; the tensors stay the same ones, as the average knows too.
        if net not in self._states:
            self._states[net] = net.state_dict()
        return not_finite_tensor(self._states[net])

    def _windows(self, epoch: int) -> Iterator[tuple[int, Sequence[Any]]]:
        """Yield (index of the first micro-batch, micro-batches) for every optimiser step; the last window may be short."""
        first = self.progress.step_in_epoch
        window: list[Any] = []
        for batch in self.train_loader.epoch(epoch, start_step=first, until=self.plan.until):
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

    def _validate_and_judge(self, epoch: int) -> tuple[Validation | None, bool]:
        """Return the epoch's validation (None where none is due) and whether it is the best so far. Raises AbandonedError on every rank."""
        last = self._at_end()
        validation = self._validate(epoch, last)
        is_best = self._judge(epoch, validation)
        if not last and self._out_of_patience():
            self.progress.ended_by = self.plan.patience
            if self.before_last_validation:  # the last epoch after all, though only its validation could tell
                validation = self._validate(epoch, True)
                is_best = self._judge(epoch, validation)
        return validation, is_best

    def _is_due(self, epoch: int, last: bool) -> bool:
        """Return whether a validation follows this epoch."""
        return bool(self.plan.eval_interval) and ((epoch + 1) % self.plan.eval_interval == 0 or last)

    def _validate(self, epoch: int, last: bool) -> Validation | None:
        if last and self.before_last_validation:
            self.before_last_validation(self.judged, epoch)
        if self.val_loader is None or not self._is_due(epoch, last):
            return None
        step, leaving = self.step, self.interruption.asked_anywhere
        return validate(
            self.judged, self.task, self.val_loader, device=step.device, amp_dtype=step.amp_dtype, with_loss=self.plan.val_loss, leaving=leaving
        )

    def _judge(self, epoch: int, validation: Validation | None) -> bool:
        """Return whether this epoch is the best so far, and remember it."""
        if validation is None or not self.progress.better(validation.metrics[self.task.best_metric]):
            return False
        self.progress.best_value, self.progress.best_epoch = validation.metrics[self.task.best_metric], epoch + 1
        self.progress.best_metrics = dict(validation.metrics)
        return True

    def _record(self, summary: EpochSummary) -> None:
        if summary.validation and summary.validation.metric is not None:
            found, metric = summary.validation, summary.validation.metric
            self.tell("on_validation_end", ValidationEnd(summary.epoch + 1, found.metrics, metric.curves(), [metric], found.classes))
        self.tell("on_epoch_end", EpochEnd(summary.epoch + 1, epoch_row(summary, self.progress, self.task.best_metric), summary.is_best))

    def _step_event(self, epoch: int, started: float) -> StepEnd:
        losses, num_batches, done = self._losses, self.train_loader.steps(epoch), self.progress.step_in_epoch
        elapsed = max(time.perf_counter() - started, 1e-9)
        remaining = (self.plan.epochs - epoch) * num_batches - done
        if self.plan.max_steps is not None:
            remaining = min(remaining, max(self.plan.max_steps - self._taken(), 0) * self.plan.accumulate)
        trained = (losses.windows - losses.windows_before) * self.plan.accumulate
        return StepEnd(
            epoch=epoch + 1,
            step=done,
            steps_per_epoch=num_batches,
            global_step=self.progress.global_step,
            losses={},
            lr=self.schedule.lr(max(self.progress.global_step - 1, 0)),
            images_per_second=(losses.pictures - losses.pictures_before) / elapsed,
            waiting_share=min(self.train_loader.waiting_seconds / elapsed, 1.0),
            eta_seconds=remaining * elapsed / max(trained, 1),
            gpu_memory_gb=torch.cuda.max_memory_reserved(self.step.device) / 1e9 if self.step.device.type == "cuda" else 0.0,
        )

    def _taken(self) -> int:
        return self.progress.global_step + self.progress.skipped_steps + (self._under_way is not None)

    def _out_of_steps(self) -> bool:
        return self.plan.max_steps is not None and self._taken() >= self.plan.max_steps

    def _at_end(self) -> bool:
        """Return whether the plan ends here: the last epoch, or the last step."""
        return self.progress.epoch >= self.plan.epochs or self._out_of_steps()

    def _out_of_patience(self) -> bool:
        """Return whether the newest validation was one too many without a better metric. Only a validation can end a run."""
        done, best, interval = self.progress.epoch, self.progress.best_epoch, self.plan.eval_interval
        judged = self.val_loader is not None and interval > 0 and done % interval == 0
        return bool(self.plan.patience and best and judged and done - best >= self.plan.patience)

    def _ended_by_patience(self) -> bool:
        """Return whether patience ended the run, in this life or an earlier one whose patience was no longer."""
        return 0 < self.plan.patience <= self.progress.ended_by or self._out_of_patience()

    def _finished(self) -> bool:
        """Return whether training ends here; a pure function of what all ranks know, so they leave together.

        `stop_after_epoch` interrupts: nothing happens that an unbroken run would not do at that epoch.
        """
        stop = self.plan.stop_after_epoch
        return self.completed or (stop is not None and self.progress.epoch >= stop)
