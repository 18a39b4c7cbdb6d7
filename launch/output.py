"""Where a rank's standard output and error go, at the level of file descriptors, so that C++ and NCCL messages are caught too.

Ranks other than 0 write to a file. Rank 0 writes to where its parent writes: a terminal is handed on as it is (progress bars need one, and
what it said stays on the screen); anything else gets the bytes through a pipe whose reader also keeps a copy. A child inherits the parent's
descriptors, so the parent points its own at the files for the moment in which it starts the child; that way the very first line of a
worker, or the traceback of a script that can't be imported, is caught too. Another thread of the parent that writes in that moment
(milliseconds) finds its line in the rank's file.
"""

from __future__ import annotations

import contextlib
import os
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

TAIL_LINES = 30
TAIL_BYTES = 64 * 1024
STDOUT, STDERR = 1, 2

_swap = threading.Lock()  # two jobs started by two threads must not swap the descriptors of one process at once


def tail(log: Path, num_lines: int = TAIL_LINES) -> str:
    """Return the last lines of a rank's file, "" where it wrote nothing. A progress bar's carriage returns count as line ends."""
    try:
        with log.open("rb") as stream:
            stream.seek(max(0, log.stat().st_size - TAIL_BYTES))
            text = stream.read().decode(errors="replace")
    except OSError:
        return ""
    lines = [line.rstrip() for line in text.replace("\r", "\n").splitlines() if line.strip()]
    return "\n".join(lines[-num_lines:])


class RankOutput:
    """The outputs of one job's ranks: `rank<N>.log` in `directory`."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._threads: list[threading.Thread] = []

    def log(self, rank: int) -> Path:
        """Return the file that holds what the rank said."""
        return self.directory / f"rank{rank}.log"

    @contextlib.contextmanager
    def given_to(self, rank: int) -> Iterator[None]:
        """Make a process that is started inside this block write to the rank's outputs."""
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(AttributeError, ValueError, OSError):  # None, closed, or broken
                stream.flush()
        with self.log(rank).open("ab", buffering=0) as file, _swap, contextlib.ExitStack() as stack:
            for descriptor in (STDOUT, STDERR):
                target = self._target(rank, descriptor, file.fileno())
                if target is not None:
                    stack.enter_context(_pointed_at(descriptor, target))
            yield

    def close(self, timeout: float = 2.0) -> None:
        """Wait until the copies hold everything that ended processes wrote."""
        for thread in self._threads:
            thread.join(timeout)

    def _target(self, rank: int, descriptor: int, file: int) -> int | None:
        """Return a descriptor for the child, owned by the caller; None to leave the parent's own in place."""
        try:
            if rank != 0:
                return os.dup(file)
            if os.isatty(descriptor):
                return None
            onward = os.dup(descriptor)
        except OSError:  # the parent has no such output (pythonw, a closed descriptor)
            return None
        reader, writer = os.pipe()
        thread = threading.Thread(target=_copy, args=(reader, onward, os.dup(file)), name="launch-output", daemon=True)
        thread.start()
        self._threads.append(thread)
        return writer


@contextlib.contextmanager
def _pointed_at(descriptor: int, target: int) -> Iterator[None]:
    saved = os.dup(descriptor)
    try:
        os.dup2(target, descriptor)
        yield
    finally:
        os.dup2(saved, descriptor)
        os.close(saved)
        os.close(target)


def _copy(reader: int, onward: int, file: int) -> None:
    """Pass bytes from `reader` to both others until every writer has closed it."""
    targets = [onward, file]
    with contextlib.ExitStack() as stack:
        for descriptor in (reader, onward, file):
            stack.callback(os.close, descriptor)
        while data := os.read(reader, 65536):
            for target in list(targets):
                try:
                    _write_all(target, data)
                except OSError:  # the parent's own output is gone (| head); the rank must not block on a full pipe
                    targets.remove(target)


def _write_all(target: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(target, view) :]
