"""One run directory per run: settled by rank 0, never another run's.

Directories are created, not looked for: `mkdir` either makes it or says that somebody else did, so jobs that start in the same second can't
get the same one.
"""

from __future__ import annotations

import contextlib
import os
import re
import secrets
from collections.abc import Callable, Iterator
from datetime import datetime
from pathlib import Path

from launch.errors import RunDirectoryError

# What a run leaves behind; any of them makes a directory a run.
RUN_CONTENT = ("weights", "results.csv", "train_config.yaml")
# They'd have to be quoted to be passed back on a command line (resume=...).
AWKWARD = re.compile(r"[=\[\]{}(),:;'\"\s]+")


def settle(
    project: str | Path, name: str, *, exist_ok: bool = False, resume_dir: str | Path | None = None, explicit: str | Path | None = None
) -> Path:
    """Return the run directory, which exists afterwards. Call it on rank 0 only and give the others its name with `share`.

    resume_dir: the run that goes on; it is returned. explicit: the directory that somebody else chose (Hydra's run directory); refused when
    it holds a run, unless `exist_ok`. Else a new `project/name`, or `name2`, `name3`, ... where those exist; with `exist_ok` `project/name`
    itself.
    """
    if resume_dir is not None:
        directory = Path(resume_dir)
        if not directory.is_dir():
            raise RunDirectoryError(f"the run to resume, {directory}, is not a directory: give the run directory or a checkpoint inside it.")
        return directory
    if explicit is not None:
        directory = Path(explicit)
        refuse_run(directory, exist_ok=exist_ok)
        return make(directory)
    if not name or AWKWARD.search(name):
        proposal = AWKWARD.sub("_", name).strip("_") or "train"
        raise RunDirectoryError(f"name={name!r} is awkward on a command line, where run directories are passed back: use name={proposal!r}.")
    first = Path(project) / name
    if exist_ok:
        return make(first)
    make(first.parent)
    number = 1
    while True:
        directory = first if number == 1 else first.with_name(f"{first.name}{number}")
        try:
            with _told():
                directory.mkdir()
        except FileExistsError:
            number += 1
            continue
        return directory


def new_time_directory(root: str | Path, now: datetime) -> Path:
    """Create and return `root/2025-01-31/12-34-56-1a2b`, a directory of nobody else's."""
    day = Path(root) / f"{now:%Y-%m-%d}"
    while True:
        directory = day / f"{now:%H-%M-%S}-{secrets.token_hex(2)}"
        try:
            with _told():
                directory.mkdir(parents=True)
        except FileExistsError:
            continue
        return directory


def make(directory: str | Path) -> Path:
    """Make the directory and what is above it, unless it is there, and return it. Raises RunDirectoryError where nothing can be written into it."""
    path = Path(directory)
    try:
        with _told():
            path.mkdir(parents=True, exist_ok=True)
    except FileExistsError:
        raise RunDirectoryError(f"{path} is a file, so no run can be written into it: choose another place with project=.") from None
    if not os.access(path, os.W_OK | os.X_OK):
        raise RunDirectoryError(f"nothing can be written into {path} (Permission denied): choose another place with project=.")
    return path


@contextlib.contextmanager
def _told() -> Iterator[None]:
    """Turn what a file system says against a directory into a sentence; that it is there already is for the caller."""
    try:
        yield
    except FileExistsError:
        raise
    except OSError as error:
        raise RunDirectoryError(f"{error.filename} cannot be made ({error.strerror}): choose another place with project=.") from error


def is_run(path: str | Path) -> bool:
    """Return whether the directory holds a run: weights/, results.csv or train_config.yaml. False where there is no such directory."""
    return any((Path(path) / content).exists() for content in RUN_CONTENT)


def refuse_run(directory: str | Path, *, exist_ok: bool = False, resuming: bool = False) -> None:
    """Raise RunDirectoryError when `directory` holds a run that would be overwritten."""
    if is_run(directory) and not exist_ok and not resuming:
        raise RunDirectoryError(
            f"{directory} already holds a run, which would be overwritten: choose another directory, go on with resume={directory}, "
            "or say exist_ok=true."
        )


def share(path_or_none: str | Path | None, rank: int, broadcast: Callable[[str | None], str]) -> Path:
    """Return rank 0's directory on every rank. `broadcast` gives every rank what rank 0 passed; only rank 0 passes a path."""
    if rank == 0 and path_or_none is None:
        raise RunDirectoryError("rank 0 has no run directory to share: settle it first.")
    return Path(broadcast(str(path_or_none) if rank == 0 else None))
