"""A worker doesn't outlive its parent, nor do the loader workers below it.

The parent holds the writing end of one pipe per rank. When the parent ends, however it ends, the kernel closes that end and, on Linux,
kills the rank's process group itself: the pipe's reading end is set to send SIGKILL to the group (F_SETOWN, F_SETSIG, O_ASYNC). That needs
no thread, no interpreter lock and no luck, so it works for a rank that sits in a collective. A thread that reads the pipe does the same
elsewhere, and the parent-death signal is there for a parent whose writing end was inherited by somebody else.

A rank that torchrun started hears of the end of its agent by the parent-death signal alone, and as SIGTERM: it saves and leaves.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import sys
import threading
from collections.abc import Iterator
from multiprocessing.connection import Connection

from launch.leaving import NOW, SIGNALS, leave_at_once

PR_SET_PDEATHSIG, PR_GET_PDEATHSIG = 1, 2  # linux/prctl.h


def settle_in(lifeline: Connection, parent_pid: int) -> None:
    """Prepare the calling worker process: its own process group, the signals, and the watch over the parent."""
    if sys.platform != "win32":
        os.setpgid(0, 0)  # so that one killpg takes the loader workers too
        # A background group that prints to a terminal with `stty tostop` would be stopped.
        signal.signal(signal.SIGTTOU, signal.SIG_IGN)
    # Until the function, which may save something first, sets handlers of its own.
    for number in (*SIGNALS, NOW):
        signal.signal(number, leave_at_once)
    # A terminal sends Ctrl-C to everybody; the parent decides and tells its workers. Blocked since the start, see spawn.py.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    if hasattr(signal, "pthread_sigmask"):
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
    threading.Thread(target=_watch, args=(lifeline,), name="launch-lifeline", daemon=True).start()
    if sys.platform == "linux":
        _let_the_kernel_watch(lifeline.fileno())
    if os.getppid() != parent_pid:  # it ended before the lines above took effect
        _end_group()


@contextlib.contextmanager
def told_of_the_agents_end() -> Iterator[None]:
    """Let the kernel send this process SIGTERM when its parent, torchrun's agent, ends inside the block, whatever ended it.

    The agent passes SIGTERM and SIGINT on to its ranks; SIGUSR1, SIGUSR2 or SIGKILL end it alone, and its ranks would train on without anybody to
    end them, in a directory that the restarted job takes for its own. Nothing happens where there is no such signal (only Linux has it).
    """
    if sys.platform != "linux":
        yield
        return
    prctl, before = ctypes.CDLL(None).prctl, ctypes.c_int(0)
    prctl(PR_GET_PDEATHSIG, ctypes.byref(before), 0, 0, 0)
    prctl(PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)
    try:
        yield
    finally:
        prctl(PR_SET_PDEATHSIG, before.value, 0, 0, 0)


def kill_group(pid: int) -> None:
    """Kill the process group that a rank leads: the rank and whatever it started. Nothing happens where there is none."""
    if sys.platform != "win32":
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(pid, signal.SIGKILL)


def _watch(lifeline: Connection) -> None:
    with contextlib.suppress(OSError, EOFError):
        lifeline.recv_bytes()  # nothing is ever sent: returns when the parent's end is closed
    _end_group()


def _end_group() -> None:
    kill_group(os.getpid())
    os._exit(1)


def _let_the_kernel_watch(descriptor: int) -> None:
    import fcntl

    with contextlib.suppress(OSError, AttributeError):
        fcntl.fcntl(descriptor, fcntl.F_SETOWN, -os.getpgrp())
        fcntl.fcntl(descriptor, fcntl.F_SETSIG, signal.SIGKILL)
        fcntl.fcntl(descriptor, fcntl.F_SETFL, fcntl.fcntl(descriptor, fcntl.F_GETFL) | fcntl.FASYNC)
    with contextlib.suppress(OSError, AttributeError):
        # After the pipe, in the order in which the kernel takes a process apart, so the group's kill comes first.
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
