"""Another job in a run directory: a forked process that has its lock, which is all that a second job sees of a first one."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from launch import alone_in


@dataclass
class OtherJob:
    """A process that is alone in a directory until `end`, `kill`, or the end of the test's block."""

    pid: int
    leash: int
    ended: bool = False

    def end(self) -> None:
        """Let it leave, and wait until it has."""
        self._finish(lambda: os.close(self.leash))

    def kill(self) -> None:
        """Kill it, and wait until it is gone."""
        self._finish(lambda: os.kill(self.pid, signal.SIGKILL))
        os.close(self.leash)

    def _finish(self, how: Callable[[], None]) -> None:
        if not self.ended:
            self.ended = True
            how()
            os.waitpid(self.pid, 0)


@contextlib.contextmanager
def another_job_in(directory: Path, *, joining: bool = False, inside: Callable[[], None] = lambda: None) -> Iterator[OtherJob]:
    """Run a process that is alone in the directory, and has called `inside` there. AssertionError where it does not get in."""
    came_in, tell = os.pipe()
    leash, held = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            os.close(held)
            with alone_in(directory, joining=joining):
                inside()
                os.write(tell, b".")
                os.read(leash, 1)  # until the test closes its end, or is gone
        finally:
            os._exit(0)
    for end in (tell, leash):
        os.close(end)
    job = OtherJob(pid, held)
    try:
        is_in = os.read(came_in, 1) == b"."
        os.close(came_in)
        assert is_in, "another job has the directory"
        yield job
    finally:
        job.end()


def gets_in(directory: Path, *, joining: bool = False) -> bool:
    """Return whether another process gets the directory (within `run_lock.PATIENCE_SECONDS`)."""
    try:
        with another_job_in(directory, joining=joining):
            return True
    except AssertionError:
        return False
