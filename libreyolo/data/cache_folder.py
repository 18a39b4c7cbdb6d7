"""Where this library keeps what it can make again: `$LIBREYOLO_CACHE`, else `~/.cache/libreyolo`. Never a data set's own folder."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO


def cache_folder(kind: str) -> Path:
    """Return the absolute folder for one kind of cached thing ("scan", "pictures", "sets"); it need not exist yet."""
    root = os.environ.get("LIBREYOLO_CACHE") or Path.home() / ".cache" / "libreyolo"
    return Path(os.path.abspath(Path(root).expanduser())) / kind  # noqa: PTH100 - lexical on purpose, links stay as the user set them


def write_atomically(path: Path, write: Callable[[BinaryIO], None]) -> None:
    """Let `write` fill a temporary file beside `path`, then rename it; readers see the old file, the new one, or none. Raises OSError.

    Any number of processes may do so at once: the last one wins, whole.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "wb") as file:
            write(file)
        Path(temporary).replace(path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise
