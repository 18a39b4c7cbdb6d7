"""Everything that listens to a run, and how it is told."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from contextlib import suppress
from typing import Any

from libreyolo.interfaces.events import Event, Listener, TrainFailed
from libreyolo.record.callbacks import as_listener, name_of, own_copy
from libreyolo.record.progress import ProgressListener
from libreyolo.record.status import StatusFile
from libreyolo.record.tables import ResultsTable
from libreyolo.record.trackers import TrackedRun, Trackers, trackers_of

log = logging.getLogger(__name__)


class Listeners:
    """Passes events on; on ranks other than 0 there is nobody to tell. What a listener raises ends the run, and the log names the listener."""

    def __init__(self) -> None:
        self.all: list[Any] = []
        self._users: list[Any] = []
        self._trackers = Trackers([])
        self._stop_asked = ""

    def add(self, loggers: Sequence[str], run: TrackedRun, pictures: Iterable[Any], users: Iterable[Any] = ()) -> None:
        """Take tables, status file, progress, `pictures` (and pages), the user's own and the trackers named in `loggers`, told in this order.

        The user's get events of their own, to do with as they like. The trackers come last: a callback that raises at the very end still finds
        them open, to be marked failed. Raises UserError for an unknown name or a missing package.
        """
        self._trackers = trackers_of(loggers, run)
        records = [ResultsTable(run.run_dir), StatusFile(run.run_dir), ProgressListener()]
        self._users = [as_listener(each) for each in users]
        self.all = [*records, *pictures, *self._users, self._trackers]

    def tell(self, name: str, event: Event) -> None:
        """Call the method `name` of every listener that has it."""
        for listener in self.all:
            self._call(listener, name, event)

    def wait_for_checkpoints(self) -> bool:
        """Return whether a listener of the user's has `on_checkpoint`: it may end the run, and then this epoch is the last one."""
        methods = [getattr(each, "on_checkpoint", Listener.on_checkpoint) for each in self._users]
        return any(getattr(method, "__func__", method) is not Listener.on_checkpoint for method in methods)

    def tell_failure(self, event: TrainFailed) -> None:
        """Tell every listener of the end; a listener that fails now must not hide the error that led here."""
        self._trackers.begin_failure(event)
        for listener in self.all:
            with suppress(Exception):
                self._call(listener, "on_exception", event)

    def stop_asked(self) -> str:
        """Return who asked for the end of the run, and why; "" for nobody. The first who asked is named."""
        return self._stop_asked

    def _call(self, listener: Listener, name: str, event: Event) -> None:
        method = getattr(listener, name, None)
        if method is None:
            return
        is_users = any(listener is each for each in self._users)
        before = event.stop_reason
        try:
            method(own_copy(event) if is_users else event)
        except BaseException as error:
            # What leaves by another way (Ctrl-C, a signal) passes through ours, but ends in the user's.
            if is_users or isinstance(error, Exception):
                log.error("%s.%s raised %s: %s", name_of(listener), name, type(error).__name__, error)
            raise
        if event.stop_reason is not None and before is None and not self._stop_asked:
            self._stop_asked = f"{name_of(listener)}.{name}" + (f" ({event.stop_reason})" if event.stop_reason else "")
