"""The signals by which clusters ask a job to leave: SIGTERM, SIGUSR1 and SIGUSR2; what a process that trains does with them.

A process that left because of one ends with exit code 128 + its number, as a shell shows a process that a signal killed: 143 for SIGTERM, on
Linux 138 for SIGUSR1 and 140 for SIGUSR2. Who sees such a code knows that the process was asked.
"""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any

SIGNALS: tuple[int, ...] = tuple(int(getattr(signal, name)) for name in ("SIGTERM", "SIGUSR1", "SIGUSR2") if hasattr(signal, name))
# By which the launcher tells its workers not to save anything: after Ctrl-C, and when another rank has failed.
NOW = int(getattr(signal, "SIGHUP", signal.SIGTERM))
EXIT_CODES = {128 + number: number for number in SIGNALS}


@contextlib.contextmanager
def told_of_signals(tell: Callable[[int], None]) -> Iterator[None]:
    """Call `tell` with the number of each of SIGNALS that arrives inside the block; afterwards the handlers are as before.

    A handler that the program installed itself (submitit's, say) stays in charge. Nothing happens outside the main thread, where Python allows no
    handlers.
    """
    previous: dict[int, Any] = {}
    if threading.current_thread() is threading.main_thread():
        for number in SIGNALS:
            if signal.getsignal(number) in (signal.SIG_DFL, leave_at_once):
                previous[number] = signal.signal(number, lambda signum, frame: tell(signum))
    try:
        yield
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)


def leave_at_once(signum: int, frame: FrameType | None) -> None:
    """Leave with the signal's exit code: the handler of a worker that has nothing to save, and of NOW in every worker."""
    hear_no_more()  # a second one must not interrupt the clean-up
    raise SystemExit(128 + (signum if signum in SIGNALS else signal.SIGTERM))


def hear_no_more() -> None:
    """Ignore SIGNALS and NOW from here on, in a process that is on its way out: the launcher passes what one rank heard on to all of them."""
    for number in (*SIGNALS, NOW):
        signal.signal(number, signal.SIG_IGN)


def signal_behind(code: int | None) -> int:
    """Return which of SIGNALS a process with this exit code left because of, having heard it or been killed by it; 0 for none, or while it runs."""
    if code is None:
        return 0
    return EXIT_CODES.get(code, -code if -code in SIGNALS else 0)


def name_of(number: int) -> str:
    """Return "SIGTERM" for 15."""
    return signal.Signals(number).name
