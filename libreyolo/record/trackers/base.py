"""What every tracker does: one run for one training, a step for each epoch, and never a reason to wait or to stop.

Step = epoch, counted from 1 over the whole run, resumed or not.
"""

from __future__ import annotations

import importlib
import json
import logging
import math
import time
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from numbers import Real
from pathlib import Path
from typing import Any, ClassVar

from libreyolo.errors import UserError
from libreyolo.interfaces.events import CheckpointSaved, EpochEnd, Listener, TrainStart
from libreyolo.record.atomic import write_text
from libreyolo.record.tables import read_results
from libreyolo.record.trackers.background import Background

log = logging.getLogger(__name__)

Row = tuple[int, dict[str, float]]  # an epoch and its numbers

SECONDS_AT_THE_END = 30.0  # how long the end of a training waits for its trackers
SECONDS_WITH_A_CHECKPOINT = 600.0  # where they store one
SECONDS_AFTER_A_FAILURE, MOST_SECONDS_AFTER_A_FAILURE = 30.0, 1800.0  # before it is tried again; doubled each time
FINISHED, FAILED, KILLED = "finished", "failed", "killed"


@dataclass(frozen=True)
class TrackedRun:
    """What a tracker is told of a run.

    name: as it is shown, unique below the project's folder. config: the resolved configuration as plain builtins. project_dir: folder of run
    directories. group: what the runs of a sweep have in common, "" for none.
    """

    run_dir: Path
    name: str
    config: dict[str, Any]
    project_dir: Path
    group: str = ""
    tags: Sequence[str] = ()
    log_checkpoint: bool = False


@dataclass
class Memory:
    """What a tracker's own file in the run directory remembers of its run: the id, and the last epoch that was sent."""

    id: str | None = None
    epoch: int = 0
    where: str = ""  # the tracker's store or mode, in which the id means something
    group: str = ""

    @classmethod
    def read(cls, path: Path) -> Memory:
        """Return what the file says; an empty memory where there is none."""
        return cls(**json.loads(path.read_text(encoding="utf-8"))) if path.exists() else cls()

    def write(self, path: Path) -> None:
        write_text(path, json.dumps(vars(self), indent=2) + "\n")


class Tracker(Listener, ABC):
    """Sends the rows of results.csv, under the same names, from a thread of its own.

    The package is imported on construction, so a missing one stops the run before it trains. After that nothing that a tracker meets stops or
    slows the training: the first failure is warned about, later ones are silent, and what could not be sent is tried again, less and less often,
    and at the end, whose wait is bounded.

    An epoch is sent when its checkpoint is on disk, because a run that dies before that trains the epoch again. A resumed run goes on in the
    tracker's run of old and first sends the epochs that are missing there; so no step is lost, comes twice, or goes back. Epochs that are trained
    again from an older checkpoint stay there as they were, except in TensorBoard, which can hide them.
    """

    name: ClassVar[str]
    module: ClassVar[str]

    def __init__(self, run: TrackedRun) -> None:
        self.run = run
        self.memory = Memory()
        self.memory_path = run.run_dir / "trackers" / f"{self.name}.json"
        self.package = import_package(self.module, self.name)
        self._background: Background | None = None
        self.start_epoch = 0  # epochs before this training; 0 for a fresh one
        self._held: list[Row] = []  # of epochs without a checkpoint; the training's thread alone touches it
        self._is_ending = False
        self._warned = False
        self._unsent: list[Row] = []  # the background's thread alone touches it, and those below
        self._pause = SECONDS_AFTER_A_FAILURE
        self._not_before = 0.0
        self._is_open = False
        self._last = 0  # epoch that the tracker holds

    @abstractmethod
    def open(self) -> int:
        """Open the run, that of `memory.id` where there is one; return the last epoch that it holds (0: none). Called again where it raised."""

    @abstractmethod
    def send(self, values: dict[str, float], epoch: int) -> None:
        """Send one epoch's numbers."""

    @abstractmethod
    def close(self, ending: str) -> None:
        """Close the run as `FINISHED`, `FAILED` or `KILLED`."""

    def keep_file(self, path: Path) -> None:
        """Take a file of the run (the best checkpoint) into the tracker; nothing here."""

    def on_train_start(self, event: TrainStart) -> None:
        rows: list[Row] = []
        if event.resumed:
            earlier = read_results(self.run.run_dir / "metrics.jsonl")
            rows = [(int(row["epoch"] or 0), numbers_of(row)) for row in earlier if int(row["epoch"] or 0) <= event.start_epoch]
        self.start_epoch = event.start_epoch
        self._background = Background(self.name)
        self._background.put(partial(self._begin, rows, event.resumed))

    def on_epoch_end(self, event: EpochEnd) -> None:
        self._held = [*(row for row in self._held if row[0] < event.epoch), (event.epoch, numbers_of(event.row))]

    def on_checkpoint(self, event: CheckpointSaved) -> None:
        if self._background is not None and event.resumable:
            ready, self._held = [r for r in self._held if r[0] <= event.epoch], [r for r in self._held if r[0] > event.epoch]
            self._background.put(partial(self._deliver, ready))

    def end(self, ending: str, keep: Path | None = None) -> None:
        """Have the run closed, after `keep` is stored, and return at once; a second call does nothing."""
        if self._background is not None and not self._is_ending:
            self._is_ending = True
            self._background.put(partial(self._end, ending, keep))

    def wait(self, seconds: float) -> None:
        """Wait until everything is sent and closed, `seconds` at the most."""
        if self._background is not None and not self._background.finish(seconds):
            self.warn(f"{self.name} did not take everything in time and is left behind; results.csv has every number.")
        self._background = None

    def warn(self, text: str) -> None:
        """Say what went wrong, once in a run."""
        if not self._warned:
            self._warned = True
            log.warning("%s", text)

    # Below, all runs in the background's thread.

    def _begin(self, rows: list[Row], resumed: bool) -> None:
        with _Failures(self):
            if resumed:
                self.memory = Memory.read(self.memory_path)
            self.memory.group = self.memory.group or self.run.group
        self._deliver(rows)

    def _deliver(self, rows: list[Row], *, at_the_end: bool = False) -> None:
        self._unsent += rows
        if time.monotonic() < self._not_before and not at_the_end:
            return
        # Where it succeeds, this is forgotten again.
        self._not_before = time.monotonic() + self._pause
        self._pause = min(2 * self._pause, MOST_SECONDS_AFTER_A_FAILURE)
        with _Failures(self):
            self._open()
            while self._unsent:
                epoch, values = self._unsent[0]
                if epoch > self._last:
                    self.send(values, epoch)
                    self._last = self.memory.epoch = epoch
                self._unsent.pop(0)
                self.memory.write(self.memory_path)
            self._pause, self._not_before = SECONDS_AFTER_A_FAILURE, 0.0

    def _open(self) -> None:
        if self._is_open:
            return
        self._last = self.open()
        self._is_open = True
        self.memory.write(self.memory_path)
        if self._last > self.start_epoch:
            log.info("%s holds %d epochs already; those that are trained again are not sent again.", self.name, self._last)

    def _end(self, ending: str, keep: Path | None) -> None:
        self._deliver([], at_the_end=True)
        if not self._is_open:
            return
        if keep is not None:
            with _Failures(self):
                self.keep_file(keep)
        with _Failures(self):
            self.close(ending)


class _Failures:
    """A block whose failure is the tracker's own affair."""

    def __init__(self, tracker: Tracker) -> None:
        self.tracker = tracker

    def __enter__(self) -> None: ...

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> bool:
        if error is None or not isinstance(error, Exception):
            return False
        self.tracker.warn(f"{self.tracker.name} failed ({one_line(error)}); training goes on, and results.csv has every number.")
        return True


def numbers_of(row: dict[str, Any]) -> dict[str, float]:
    """Return a row's finite numbers (booleans as 0 or 1), without the epoch, which is the step."""
    finite = {name: float(value) for name, value in row.items() if isinstance(value, Real) and name != "epoch"}
    return {name: value for name, value in finite.items() if math.isfinite(value)}


def import_package(module: str, name: str) -> Any:
    """Return the module. Raises UserError, with what to install, where it is missing."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise UserError(f"loggers=[{name}] needs the package {name}, which is not installed; run: pip install 'libreyolo-train[trackers]'") from error


def one_line(error: BaseException) -> str:
    """Return an error's kind and text in one line of at most 300 characters."""
    return " ".join(f"{type(error).__name__}: {error}".split())[:300]
