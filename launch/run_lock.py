"""One training at a time in a run directory, kept by a lock of the operating system on a file in it.

The kernel drops the lock however its process ends, so a file that is left means nothing. It holds who has the lock, for the sentence that another
one gets. On a network file system the lock reaches as far as that carries locks; where there are none, and on Windows, trainings go on without.

Why flock, and not the locks of POSIX (lockf): those are dropped as soon as the process closes any descriptor of the file, and whatever copies or
uploads a run directory does that. A lock of flock belongs to the opened file, which forked children share: they would keep it after their parent's
end, so each closes its copy as it is born. Programs that are started do not inherit it.

It is taken exclusively and then shared with the processes of the same job: the parent that starts the ranks, which knows the directory before any
of them lives, and rank 0, which writes into it and may outlive a killed parent by a moment.
"""

from __future__ import annotations

import contextlib
import errno
import json
import logging
import os
import platform
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from launch.errors import RunDirectoryError

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]

log = logging.getLogger(__name__)

LOCK_FILE = ".lock"
# How long to wait for the one who has it: ranks that were asked to leave, or whose launcher was killed, save and are gone within that time.
PATIENCE_SECONDS = 30.0
POLL_SECONDS = 0.1
# SMB answers EACCES.
_TAKEN = (errno.EWOULDBLOCK, errno.EAGAIN, errno.EACCES)


@dataclass
class _Held:
    """An open lock file whose lock this process has, and how many parts of the program count on it."""

    descriptor: int
    users: int = 0


_held: dict[Path, _Held] = {}


@contextlib.contextmanager
def alone_in(directory: str | Path, *, joining: bool = False) -> Iterator[None]:
    """Keep other jobs from training in the directory, which exists, inside the block; blocks of one process may lie inside each other.

    joining: the process that started this one has the lock and shares it. Raises RunDirectoryError, with nothing changed in the directory, where
    another job has it and keeps it for PATIENCE_SECONDS.
    """
    place = Path(directory).resolve()
    if place not in _held:
        descriptor = _locked(place, joining)
        if descriptor is None:
            yield
            return
        _held[place] = _Held(descriptor)
    held = _held[place]
    held.users += 1
    try:
        yield
    finally:
        held.users -= 1
        if held.users == 0 and _held.get(place) is held:  # not in a forked child, which has let go
            del _held[place]
            fcntl.flock(held.descriptor, fcntl.LOCK_UN)  # closing alone would leave it to a child that is being forked
            os.close(held.descriptor)


def _locked(directory: Path, joining: bool) -> int | None:
    """Return the descriptor of the lock file, locked; None where there are no locks. Raises as `alone_in`."""
    if fcntl is None:
        return None
    descriptor = -1
    try:
        descriptor = os.open(directory / LOCK_FILE, os.O_RDWR | os.O_CREAT, 0o666)
        patient_until: float | None = None
        while not _take(descriptor, joining):
            now = time.monotonic()
            if patient_until is None:
                patient_until = now + PATIENCE_SECONDS
                log.warning("%s is in use by %s: waiting up to %g s for its end.", directory, _holder(descriptor), PATIENCE_SECONDS)
            if now >= patient_until:
                raise RunDirectoryError(
                    f"{directory} is in use by {_holder(descriptor)}: wait for its end, or end it, and give this command again; to train beside it "
                    "choose another directory (no resume=, no exist_ok=true)."
                )
            time.sleep(POLL_SECONDS)
    except BaseException as error:
        if descriptor >= 0:
            os.close(descriptor)
        if not isinstance(error, OSError):
            raise
        # Nothing can be written there (the training will say so), or the file system has no locks.
        log.debug("%s: training without a lock (%s)", directory, error)
        return None
    return descriptor


def _take(descriptor: int, joining: bool) -> bool:
    """Return whether the lock is this job's now. Raises OSError where there are no locks."""
    signed = b""
    try:
        if not joining:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            signed = _sign(descriptor)
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno not in _TAKEN:
            raise
        return False
    # flock lets go before it changes the kind: another job may have had the lock between the two, and then signed last.
    if signed and os.pread(descriptor, len(signed) + 1, 0) != signed:
        fcntl.flock(descriptor, fcntl.LOCK_UN)
        return False
    return True


def _sign(descriptor: int) -> bytes:
    """Write who has the lock and return what was written; b"" where the disk is too full for it."""
    note = {"process": os.getpid(), "host": platform.node(), "since": time.strftime("%Y-%m-%d %H:%M:%S%z")}
    text = json.dumps(note).encode() + b"\n"
    try:
        os.ftruncate(descriptor, 0)
        return text if os.pwrite(descriptor, text, 0) == len(text) else b""
    except OSError:
        return b""


def _holder(descriptor: int) -> str:
    """Return who has the lock, in words."""
    try:
        note = json.loads(os.pread(descriptor, 4096, 0))
        return f"process {note['process']} on {note['host']} since {note['since']}"
    except (OSError, ValueError, LookupError, TypeError):
        return "another process"


def _let_go_in_child() -> None:
    for held in _held.values():
        with contextlib.suppress(OSError):
            os.close(held.descriptor)
    _held.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_let_go_in_child)
