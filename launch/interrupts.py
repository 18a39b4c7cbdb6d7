"""Ctrl-C, SIGTERM and SIGUSR1 while the parent waits for its workers.

Handlers only note the signal; the waiting loop acts. A handler that the program installed itself (submitit's, say) stays in charge:
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

log = logging.getLogger(__name__)

EXIT_CODE_SIGTERM = 128 + int(signal.SIGTERM)


class Interrupts:
    """A context in which signals are noted; everything is as before afterwards.

    Does nothing outside the main thread, where Python allows none.
    """

    def __init__(self) -> None:
        self.received: list[int] = []
        self._previous: dict[int, Any] = {}
        self._acted = False

    def __enter__(self) -> Interrupts:
        if threading.current_thread() is threading.main_thread():
            self._take(signal.SIGINT, signal.default_int_handler)
            self._take(signal.SIGTERM, signal.SIG_DFL)
            if hasattr(signal, "SIGUSR1"):
                self._take(signal.SIGUSR1, signal.SIG_DFL)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        for number, previous in self._previous.items():
            signal.signal(number, previous)
        if not self._acted and self.count_endings():
            # It came while a failure was being cleaned up, and counts for whatever the program does next.
            self._acted = True
            ending = self._ending(next(number for number in self.received if number in (signal.SIGINT, signal.SIGTERM)))
            raise ending from error

    def act(self, num_processes: int, started_pids: Iterable[int]) -> None:
        """Raise KeyboardInterrupt for Ctrl-C and SystemExit(143) for SIGTERM, after one line; pass SIGUSR1 on to the ranks."""
        for number in list(self.received):
            if number in (signal.SIGINT, signal.SIGTERM):
                log.warning("%s: ending %d processes", "Interrupted" if number == signal.SIGINT else "Terminated", num_processes)
                self._acted = True
                raise self._ending(number)
            self.received.remove(number)
            for pid in started_pids:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, number)

    def count_endings(self) -> int:
        """Return how often this process was asked to end."""
        return sum(number in (signal.SIGINT, signal.SIGTERM) for number in self.received)

    @staticmethod
    def _ending(number: int) -> BaseException:
        return KeyboardInterrupt() if number == signal.SIGINT else SystemExit(EXIT_CODE_SIGTERM)

    def _take(self, number: int, only_from: object) -> None:
        if signal.getsignal(number) is only_from or signal.getsignal(number) == only_from:
            self._previous[number] = signal.signal(number, self._note)

    def _note(self, signum: int, frame: FrameType | None) -> None:
        self.received.append(signum)


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
