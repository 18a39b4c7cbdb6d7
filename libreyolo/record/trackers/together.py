"""All trackers of a run as one listener: they start, are told, and end side by side."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path

from libreyolo.interfaces.events import CheckpointSaved, EpochEnd, Listener, TrainEnd, TrainFailed, TrainStart
from libreyolo.record.trackers import base
from libreyolo.record.trackers.base import FAILED, FINISHED, KILLED, SECONDS_WITH_A_CHECKPOINT, Tracker

SECONDS_WHEN_INTERRUPTED = 3.0  # whoever ends this process waits 5 before it is killed


class Trackers(Listener):
    """Tells every tracker; at the end they close at the same time, and the wait for all of them together is bounded."""

    def __init__(self, trackers: Sequence[Tracker]) -> None:
        self.trackers = list(trackers)

    def on_train_start(self, event: TrainStart) -> None:
        for tracker in self.trackers:
            tracker.on_train_start(event)

    def on_epoch_end(self, event: EpochEnd) -> None:
        for tracker in self.trackers:
            tracker.on_epoch_end(event)

    def on_checkpoint(self, event: CheckpointSaved) -> None:
        for tracker in self.trackers:
            tracker.on_checkpoint(event)

    def on_train_end(self, event: TrainEnd) -> None:
        best = Path(str(event.result.get("best_checkpoint")))
        keep = [best if tracker.run.log_checkpoint and best.exists() else None for tracker in self.trackers]
        for tracker, file in zip(self.trackers, keep, strict=True):
            tracker.end(FINISHED, file)
        self._wait(SECONDS_WITH_A_CHECKPOINT if any(keep) else base.SECONDS_AT_THE_END)

    def begin_failure(self, event: TrainFailed) -> None:
        """Have all runs closed, without waiting: whatever else is done at the end of a failed run, its process may have little time left."""
        for tracker in self.trackers:
            tracker.end(KILLED if isinstance(event.error, KeyboardInterrupt) else FAILED)

    def on_exception(self, event: TrainFailed) -> None:
        self.begin_failure(event)
        interrupted = isinstance(event.error, (KeyboardInterrupt, SystemExit))
        self._wait(SECONDS_WHEN_INTERRUPTED if interrupted else base.SECONDS_AT_THE_END)

    def _wait(self, seconds: float) -> None:
        """Wait for all, `seconds` at the most. When this process is asked to end meanwhile, a short wait is what remains, and then it does."""
        deadline, asked = time.monotonic() + seconds, None
        for tracker in self.trackers:
            try:
                tracker.wait(max(deadline - time.monotonic(), 0.0))
            except (KeyboardInterrupt, SystemExit) as error:
                deadline, asked = min(deadline, time.monotonic() + SECONDS_WHEN_INTERRUPTED), error
                tracker.wait(max(deadline - time.monotonic(), 0.0))
        if asked is not None:
            raise asked
