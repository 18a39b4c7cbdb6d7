"""Ctrl-C, SIGTERM, SIGUSR1 and SIGUSR2 while the parent waits for its workers.

Handlers only note the signal; the waiting loop acts: Ctrl-C ends the workers, the others are passed on to them, who may save something first.
A handler that the program installed itself (submitit's, say) stays in charge:
whatever it raises ends the workers too.
"""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import threading
from collections.abc import Iterable, Iterator
from types import FrameType, TracebackType
from typing import Any

from launch.leaving import SIGNALS, name_of

log = logging.getLogger(__name__)


class Interrupts:
    """A context in which signals are noted; everything is as before afterwards. A signal that nobody acted on ends the program when it is left.

    Does nothing outside the main thread, where Python allows none.
    """

    def __init__(self, num_processes: int) -> None:
        self.num_processes = num_processes
        self.received: list[int] = []
        self._previous: dict[int, Any] = {}
        self._returned: set[int] = set()
        self._acted = False

    def __enter__(self) -> Interrupts:
        if threading.current_thread() is threading.main_thread():
            self._take(signal.SIGINT, signal.default_int_handler)
            for number in SIGNALS:
                self._take(number, signal.SIG_DFL)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        for number, previous in self._previous.items():
            signal.signal(number, previous)
        if not self._acted and self.received:
            # It came while a failure was being cleaned up, or after the work was done, and counts for whatever the program does next.
            self._acted = True
            if isinstance(error, Exception):  # the end by a signal would hide it, and with it that something was not saved
                log.error("%s", error)
            raise self._ending(self.received[0]) from error

    def new(self) -> list[int]:
        """Return the signals that ask the ranks to leave and were not returned before. Raises KeyboardInterrupt for Ctrl-C, after one line."""
        if signal.SIGINT in self.received:
            log.warning("Interrupted: ending %d processes", self.num_processes)
            self._acted = True
            raise KeyboardInterrupt
        found = [number for number in dict.fromkeys(self.received) if number not in self._returned]
        self._returned.update(found)
        return found

    def pass_on(self, number: int, pids: Iterable[int]) -> None:
        """Send the ranks the signal that this process got, after one line."""
        log.warning("%s: asking %d processes to save and leave", name_of(number), self.num_processes)
        send(number, pids)

    def ending(self, number: int) -> BaseException:
        """Return what ends the program when its ranks have left."""
        self._acted = True
        return self._ending(number)

    def count_endings(self) -> int:
        """Return how often this process was asked to end."""
        return len(self.received)

    @staticmethod
    def _ending(number: int) -> BaseException:
        return KeyboardInterrupt() if number == signal.SIGINT else SystemExit(128 + number)

    def _take(self, number: int, only_from: object) -> None:
        if signal.getsignal(number) is only_from or signal.getsignal(number) == only_from:
            self._previous[number] = signal.signal(number, self._note)

    def _note(self, signum: int, frame: FrameType | None) -> None:
        self.received.append(signum)


def send(number: int, pids: Iterable[int]) -> None:
    """Send a signal to those of the processes that still run."""
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)


@contextlib.contextmanager
def sigint_blocked() -> Iterator[None]:
    """Start children with SIGINT blocked, so that a terminal's Ctrl-C can't reach them before they are ready; this thread gets it
    afterwards.
    """
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
