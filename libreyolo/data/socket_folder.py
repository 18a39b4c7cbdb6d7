"""A folder with a path short enough for the sockets through which loader processes hand over their batches.

multiprocessing puts a Unix socket below the folder for temporary files, and the system takes paths of about a hundred bytes at most. With a
longer one a worker's batch is lost in a background thread and the training waits for it for ever (newer Pythons look for another
folder themselves).
"""

from __future__ import annotations

import multiprocessing
import os
import shutil
import tempfile
from multiprocessing import util
from pathlib import Path

from libreyolo.errors import UserError

LONGEST_PATH = 103  # bytes of a socket's path: 108 with the closing zero on Linux, 104 on macOS
NAMES_BELOW = len("/pymp-12345678/listener-12345678")
SHORT_FOLDERS = ("/tmp", "/var/tmp", "/dev/shm")


def keep_socket_paths_short() -> None:
    """Give multiprocessing a short folder of its own where the usual one would be too long; processes started from now on inherit it.

    Raises UserError where no short folder can be written.
    """
    if os.name == "nt" or not hasattr(util, "get_temp_dir"):
        return
    config: dict[str, object] = multiprocessing.current_process()._config  # type: ignore[attr-defined]  # what `util.get_temp_dir` reads
    settled = config.get("tempdir")
    usual = f"{tempfile.gettempdir()}/pymp-12345678" if settled is None else str(settled)
    if _fits(usual):
        return
    folder = _short_folder()
    config["tempdir"] = folder
    util.Finalize(None, shutil.rmtree, args=(folder,), kwargs={"ignore_errors": True}, exitpriority=-100)


def _fits(private_folder: str) -> bool:
    return len(os.fsencode(private_folder)) + NAMES_BELOW - len("/pymp-12345678") <= LONGEST_PATH


def _short_folder() -> str:
    for parent in SHORT_FOLDERS:
        if Path(parent).is_dir() and os.access(parent, os.W_OK):
            return tempfile.mkdtemp(prefix="pymp-", dir=parent)
    raise UserError(
        f"The folder for temporary files, {tempfile.gettempdir()}, has too long a name for the sockets of loader processes, and none of "
        f"{', '.join(SHORT_FOLDERS)} can be written: set TMPDIR to a folder of at most {LONGEST_PATH - NAMES_BELOW} characters, or workers=0."
    )
