"""What signals mean to a loader process: it serves its training, which alone decides when to end."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing import resource_tracker

SECONDS_AFTER_SIGTERM = 20  # for which a loader process serves on
# Those that may reach a whole process group. Windows has no signal masks, and nothing to hold back.
HELD = {signal.SIGINT, signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2} if hasattr(signal, "pthread_sigmask") else set()


@contextmanager
def held_while_workers_start() -> Iterator[None]:
    """Hold signals back from this thread, and from processes that start within until they `serve_on`: one that came before would end them.

    This process gets its own afterwards.
    """
    if not HELD:
        yield
        return
    resource_tracker.ensure_running()  # its start would let them through
    before = signal.pthread_sigmask(signal.SIG_BLOCK, HELD)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def serve_on() -> None:
    """Make this process a loader process with respect to signals, and let come what was held back."""
    # Ctrl-C reaches the whole process group, but the parent decides what it means.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    # SIGTERM may be meant for the training (torchrun sends it to the whole group), which then still needs its batches to come to a place where it
    # can save. So a worker serves on for a while and is ended by its alarm; a signal of its own would do the same to a worker that must go.
    if hasattr(signal, "SIGALRM"):
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.signal(signal.SIGTERM, lambda number, frame: signal.alarm(SECONDS_AFTER_SIGTERM))
        signal.signal(signal.SIGUSR1, signal.SIG_IGN)
        signal.signal(signal.SIGUSR2, signal.SIG_IGN)
    if HELD:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, HELD)
