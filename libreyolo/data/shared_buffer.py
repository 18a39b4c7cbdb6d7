"""One memory buffer for all processes of a host that ask for the same key, filled by the first of them.

It is a file in shared memory, mapped by each process. File locks (flock) say who does what, and the kernel drops them however a process
ends, so neither a crash nor SIGKILL can leave a waiting process or, beyond the next start, a file behind:

- who finds nobody at the file holds it alone and fills it; others wait for that, and see by the last byte whether it was finished;
- who uses it holds it shared; who closes it and can then get it alone was the last user, and removes the file;
- a file that can be had alone at the start of another buffer belongs to nobody, and is removed.
"""

from __future__ import annotations

import logging
import mmap
import os
import random
import time
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from libreyolo.data.memory import shared_memory_folder

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]

logger = logging.getLogger(__name__)

_DONE = 1


class SharedBuffer:
    """`array`: uint8 [num_bytes], read-only. A pickled copy maps the same memory, on this host and while one user lives."""

    def __init__(self, path: Path, num_bytes: int, handle: int) -> None:
        self._path = path
        self._num_bytes = num_bytes
        self.array = _mapped(handle, num_bytes, write=False)
        self._finalizer = weakref.finalize(self, _release, path, handle, os.getpid())

    def close(self) -> None:
        """Let go; the last user removes the file. Safe to call twice."""
        self.array = np.zeros(0, np.uint8)
        self._finalizer()

    def __getstate__(self) -> tuple[Path, int]:
        return self._path, self._num_bytes

    def __setstate__(self, state: tuple[Path, int]) -> None:
        path, num_bytes = state
        handle = os.open(path, os.O_RDWR)
        fcntl.flock(handle, fcntl.LOCK_SH)
        self.__init__(path, num_bytes, handle)  # type: ignore[misc]


def open_shared_buffer(key: str, num_bytes: int, reserve: Callable[[int], None], fill: Callable[[NDArray[np.uint8]], None]) -> SharedBuffer:
    """Return the host's buffer of that key, calling `reserve(num_bytes)` and `fill(array)` first where no process has filled it.

    Raises what `reserve` or `fill` raise (nothing stays behind then), and OSError where there is no room or no file locking.
    """
    if fcntl is None:
        raise OSError("this system has no file locks to share memory by")
    user = os.getuid()
    _remove_orphans(user)
    path = shared_memory_folder() / f"libreyolo-{user}-{key}.pixels"
    while True:
        handle = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
        try:
            if _is_alone(handle) and _is_current(path, handle) and not _is_filled(handle, num_bytes):
                _fill(path, handle, num_bytes, reserve, fill)
            fcntl.flock(handle, fcntl.LOCK_SH)  # waits for one who fills, never for one who uses
            # A look at the end, since the file may have been removed between our calls, or its filler have failed.
            if _is_current(path, handle) and _is_filled(handle, num_bytes):
                return SharedBuffer(path, num_bytes, handle)
        except BaseException:
            os.close(handle)
            raise
        os.close(handle)
        time.sleep(0.02 * random.SystemRandom().random())  # not in step with the others; the user's own generator is not touched


def _is_alone(handle: int) -> bool:
    """Take the file for this process alone, if no other has it."""
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _fill(path: Path, handle: int, num_bytes: int, reserve: Callable[[int], None], fill: Callable[[NDArray[np.uint8]], None]) -> None:
    """Fill the file, which this process holds alone; a failure removes it, and who waits for it starts over."""
    try:
        _reserve_and_fill(handle, num_bytes, reserve, fill)
    except BaseException:
        path.unlink(missing_ok=True)
        raise


def _reserve_and_fill(handle: int, num_bytes: int, reserve: Callable[[int], None], fill: Callable[[NDArray[np.uint8]], None]) -> None:
    reserve(num_bytes)
    os.ftruncate(handle, 0)
    if hasattr(os, "posix_fallocate"):  # fails here where memory is short, instead of killing whoever touches a page later
        os.posix_fallocate(handle, 0, num_bytes + 1)
    else:
        os.ftruncate(handle, num_bytes + 1)
    array = _mapped(handle, num_bytes + 1, write=True)
    fill(array[:num_bytes])
    array[num_bytes] = _DONE


def _is_filled(handle: int, num_bytes: int) -> bool:
    return os.fstat(handle).st_size == num_bytes + 1 and os.pread(handle, 1, num_bytes) == bytes([_DONE])


def _is_current(path: Path, handle: int) -> bool:
    try:
        found = path.stat()
    except FileNotFoundError:
        return False
    own = os.fstat(handle)
    return (found.st_dev, found.st_ino) == (own.st_dev, own.st_ino)


def _mapped(handle: int, num_bytes: int, *, write: bool) -> NDArray[np.uint8]:
    access: Any = mmap.ACCESS_WRITE if write else mmap.ACCESS_READ
    if num_bytes == 0:
        return np.zeros(0, np.uint8)
    return np.frombuffer(mmap.mmap(handle, num_bytes, access=access), np.uint8)


def _release(path: Path, handle: int, owner: int) -> None:
    # A forked child shares our lock: were it to ask for the file alone, it would take the lock from its parent.
    if os.getpid() == owner:
        try:
            if _is_alone(handle) and _is_current(path, handle):
                path.unlink()
        except OSError as error:
            logger.debug("%s cannot be removed (%s)", path, error)
    os.close(handle)


def _remove_orphans(user: int) -> None:
    for path in shared_memory_folder().glob(f"libreyolo-{user}-*.pixels"):
        try:
            handle = os.open(path, os.O_RDWR)
        except OSError:
            continue
        _release(path, handle, os.getpid())
