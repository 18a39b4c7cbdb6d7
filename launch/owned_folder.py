"""Temporary folders that say whose they are: a process that is killed cannot remove its own, so the next one does."""

from __future__ import annotations

import contextlib
import os
import platform
import re
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

from launch.restart import process_identity

OWNER = "owner"


@contextlib.contextmanager
def owned_folder(prefix: str, parent: str | Path | None = None) -> Iterator[Path]:
    """Yield a new folder below `parent` (the system's temporary folder by default); it is gone afterwards.

    Folders of the same prefix whose process is dead are removed first.
    """
    root = Path(tempfile.gettempdir() if parent is None else parent)
    _remove_orphans(root, prefix)
    folder = Path(tempfile.mkdtemp(prefix=f"{prefix}{os.getpid()}-", dir=root))
    try:
        (folder / OWNER).write_text(_note(os.getpid()))
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _remove_orphans(root: Path, prefix: str) -> None:
    for folder in root.glob(f"{prefix}*"):
        match = re.fullmatch(re.escape(prefix) + r"(\d+)-.*", folder.name)
        with contextlib.suppress(OSError):  # another user's, or just removed by somebody else
            if match is None or not folder.is_dir() or (hasattr(os, "getuid") and folder.stat().st_uid != os.getuid()):
                continue
            if _is_dead(int(match[1]), folder / OWNER):
                shutil.rmtree(folder, ignore_errors=True)


def _note(pid: int) -> str:
    return f"{platform.node()}\n{process_identity(pid)}"


def _is_dead(pid: int, note: Path) -> bool:
    """Return whether the folder's process is no more; False where another machine wrote the note, whose processes nobody here can see."""
    try:
        then = note.read_text()
    except OSError:  # killed before it could write its note
        return not _runs(pid)
    here, now = platform.node(), _note(pid)
    return then.partition("\n")[0] == here and (then != now or not _runs(pid))


def _runs(pid: int) -> bool:
    if os.name != "posix":
        return True  # unknown there
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True
