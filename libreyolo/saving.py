"""Writes a run's checkpoints: last.pt after every epoch and where a run ends inside one, best.pt, epoch_N.pt, and the average of the best.

The files of an epoch are written while the next one trains: a disk may need seconds for what a GPU trains in less. What is written is a copy begun
at the epoch's end, before anything moves; at most one epoch is under way, and `finish` waits for it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from libreyolo.engine import checkpoint
from libreyolo.engine.checkpoint import WeightsMeta
from libreyolo.engine.ema import EMA
from libreyolo.engine.progress import Progress
from libreyolo.engine.refusal import not_finite_tensor
from libreyolo.engine.reports import EpochSummary
from libreyolo.engine.snapshot import Snapshots
from libreyolo.engine.writer_thread import WriterThread
from libreyolo.errors import UserError
from libreyolo.interfaces.events import CheckpointSaved

log = logging.getLogger(__name__)

CANDIDATE_VALUE = "metric_value"  # what a kept file for the average says of itself, so that a resumed run can rank it


class Saver:
    """Holds where and what to save; `__call__` is the trainer's `save` on rank 0.

    `attach` must be called once before the first save with the live parts of the training. `tell` hears of every file that is complete, in this
    thread, from the next save, `midway`, `finish` or `tell_saved`, which also raise a UserError for what could not be written. Where `at_once` says
    so, a save waits for the disk itself.
    """

    def __init__(
        self,
        folder: Path,
        *,
        meta: WeightsMeta,
        config: dict[str, Any],
        progress: Progress,
        best_metric: str,
        save_period: int,
        average_best: int,
    ) -> None:
        self.folder, self.meta, self.config, self.progress, self.best_metric = folder, meta, config, progress, best_metric
        self.save_period, self.average_best = save_period, average_best
        self.tell: Callable[[str, Any], None] = lambda name, event: None
        self.at_once: Callable[[], bool] = lambda: False
        self._thread = WriterThread()
        self._snapshots = Snapshots()
        self._untold: list[CheckpointSaved] = []
        self.best_files: list[tuple[float, Path]] = []

    def attach(self, bare: nn.Module, ema: EMA | None, optimizer: torch.optim.Optimizer, scaler: torch.amp.GradScaler) -> None:
        self.bare, self.ema, self.optimizer, self.scaler = bare, ema, optimizer, scaler
        self._states: dict[str, dict[str, Tensor]] = {}  # of the live networks; tensors are moved in place, so these are found once

    def __call__(self, summary: EpochSummary) -> None:
        self.finish()
        number = summary.epoch + 1
        complete = self.content(summary.epoch, float(summary.loss or 0.0))
        content: dict[str, Any] = {}
        # best.pt first: a run killed between the two goes on from the older last.pt and makes the same best.pt again.
        names = ["best.pt"] if summary.is_best or self.progress.best_value is None else []
        names += ["last.pt", *([f"epoch_{number}.pt"] if self.save_period and number % self.save_period == 0 else [])]
        work: list[Callable[[], object]] = [lambda: content.update(complete())]
        work += [self._keep_for_average(summary, number, content)] if self.average_best and summary.validation else []
        # Made into bytes once: beside the training that takes the interpreter from it, a copy of a file does not.
        work += [partial(checkpoint.write, content, self.folder / names[0])]
        work += [partial(checkpoint.write_copy, self.folder / names[0], self.folder / name) for name in names[1:]]
        self._untold = [CheckpointSaved(self.folder / name, number, name == "best.pt") for name in names]
        self._thread.start(work)
        if self.at_once():
            self.finish()

    def finish(self) -> None:
        """Return when every file is complete and told; raises UserError where one could not be written."""
        told, self._untold = self._untold, []
        self._thread.wait()
        for event in told:
            self.tell("on_checkpoint", event)

    def tell_saved(self, *, wait: bool = False) -> None:
        """As `finish`, if the disk is done by now; wait: whether or not it is."""
        if wait or self._thread.is_over():
            self.finish()

    def close(self) -> None:
        """As `finish`, where the run ends by another error: what could not be written is only logged."""
        try:
            self.finish()
        except Exception as error:
            log.error("%s", error)

    def midway(self, ranks: list[dict[str, Any]]) -> Path:
        """Write last.pt in the middle of an epoch and return its path; `ranks` is what each rank alone knows (engine/rank_state.py)."""
        self.finish()
        epoch = self.progress.epoch
        path = self.folder / "last.pt"
        checkpoint.write(self.content(epoch - 1, 0.0)() | {"ranks": ranks}, path)
        self.tell("on_checkpoint", CheckpointSaved(path, epoch, False))
        return path

    def content(self, epoch: int, loss: float) -> Callable[[], dict[str, Any]]:
        """Take what training has come to after a zero-based epoch (-1: before the first one's end); return what makes the whole checkpoint of it.

        That waits for the device, and may be called in another thread. Call it before the next `content`. Raises UserError where weights or average
        are not finite: such a file must not take the place of one that is.
        """
        if not self._states:
            self._states = {"weights": self.bare.state_dict(), **({"average of the weights": self.ema.average.state_dict()} if self.ema else {})}
        for what, state in self._states.items():
            broken = not_finite_tensor(state)
            if broken:
                raise UserError(f"The {what} hold infinite numbers (tensor {broken}), so {self.folder} keeps the checkpoints that it has.")
        held: list[Tensor] = []

        def hold(tensor: Tensor) -> _Held:
            held.append(tensor)
            return _Held(len(held) - 1)

        parts = _mapped([*self._states.values(), self.optimizer.state_dict()], Tensor, hold)
        given = self._snapshots.take(held)
        facts, updates = self._facts(epoch, loss), self.ema.updates if self.ema else None
        scaler = self.scaler.state_dict() if self.scaler.is_enabled() else None

        def complete() -> dict[str, Any]:
            copies = given()
            *networks, optimizer = _mapped(parts, _Held, lambda place: copies[place.number])
            live, *average = [checkpoint.contiguous(state) for state in networks]
            content = checkpoint.weights_dict(average[0] if average else live, self.meta, copied=True)  # in the file once, under both names
            content |= {"is_ema_weights": bool(average), "optimizer": optimizer, **facts}
            if average:
                content |= {"train_model": live, "ema": average[0], "ema_updates": updates}
            return content if scaler is None else content | {"scaler": scaler}

        return complete

    def _facts(self, epoch: int, loss: float) -> dict[str, Any]:
        """Return what a checkpoint says beside tensors."""
        best = self.progress.best_value
        is_map = self.best_metric == "metrics/mAP50-95"
        return {
            "epoch": epoch,
            "config": self.config,
            "loss": loss,
            "best_mAP50_95": best or 0.0,
            "best_mAP50": float(self.progress.best_metrics.get("metrics/mAP50", 0.0)) if is_map else best or 0.0,
            "best_metric_key": self.best_metric,
            "best_metric_name": self.best_metric,
            "best_metric_value": best or 0.0,
            "best_metric": best or 0.0,
            "best_epoch": self.progress.best_epoch,
            "progress": self.progress.as_dict(),
        }

    def _keep_for_average(self, summary: EpochSummary, number: int, content: dict[str, Any]) -> Callable[[], None]:
        """Decide whether this epoch is one of the best `average_best`; return what writes it and removes the worst of one too many.

        content: the epoch's checkpoint, filled when that is called. A metric that is NaN is never kept.
        """
        assert summary.validation is not None
        value = summary.validation.metrics[self.best_metric]
        path = self.folder / f"candidate_{number}.pt"
        extras = self._choose([*self.best_files, (value, path)]) if value == value else [path]
        if path in extras:
            return partial(_remove, [extra for extra in extras if extra != path])

        def keep() -> None:
            checkpoint.write(checkpoint.weights_dict(content["model"], self.meta, copied=True) | {CANDIDATE_VALUE: value}, path)
            _remove(extras)

        return keep

    def find_candidates(self, start_epoch: int) -> None:
        """Take up the kept weights of a resumed run; those of epochs that are trained again, or of an earlier run, are removed."""
        found = []
        for path in sorted(self.folder.glob("candidate_*.pt")):
            if self.average_best and _epoch_of(path) <= start_epoch:
                found.append((float(checkpoint.read(path)[CANDIDATE_VALUE]), path))
            else:
                path.unlink()
        _remove(self._choose(found))

    def _choose(self, files: list[tuple[float, Path]]) -> list[Path]:
        """Remember the best `average_best` of the files and return the others."""
        ordered = sorted(files, key=lambda f: (-f[0], _epoch_of(f[1])))
        self.best_files = ordered[: self.average_best]
        return [path for _, path in ordered[self.average_best :]]

    def write_average(self, *, keep: bool = False) -> Path | None:
        """Average the kept weights into average.pt; None when there are none. `keep` leaves them for a resumed run. Call `finish` before."""
        if not self.best_files:
            return None
        states = [checkpoint.read(path)["model"] for _, path in self.best_files]
        checkpoint.write(checkpoint.weights_dict(_mean_state(states), self.meta), self.folder / "average.pt")
        _remove([path for _, path in self.best_files] if not keep else [])
        return self.folder / "average.pt"


def _remove(paths: Sequence[Path]) -> None:
    for path in paths:
        path.unlink(missing_ok=True)


def _epoch_of(candidate: Path) -> int:
    return int(candidate.stem.removeprefix("candidate_"))


def _mean_state(states: list[dict[str, Tensor]]) -> dict[str, Tensor]:
    """Return the mean of floating tensors; others are those of the best state."""
    return {
        name: torch.stack([s[name].double() for s in states]).mean(0).to(first.dtype) if first.is_floating_point() else first
        for name, first in states[0].items()
    }


@dataclass(frozen=True)
class _Held:
    """Stands for a tensor, until its copy is there."""

    number: int


def _mapped(value: Any, kind: type[Any], function: Callable[[Any], Any]) -> Any:
    """Return a nest of dicts and lists with every `kind` in it replaced; tuples become lists, so that it loads without running code anywhere."""
    if isinstance(value, kind):
        return function(value)
    if isinstance(value, dict):
        return {k: _mapped(v, kind, function) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [_mapped(v, kind, function) for v in value]
    return value
