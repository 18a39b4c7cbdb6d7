"""Files that are whole or not there: written beside their place, then renamed."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


def write_bytes(path: Path, content: bytes) -> None:
    """Replace `path` by `content` in one step; a reader sees the old file or the new one, whenever the process dies."""
    with _temporary(path, content) as written:
        written.replace(path)


def write_new(path: Path, content: bytes) -> None:
    """Write `path` in one step unless it is there: of several that write it at once, the first one's content stays."""
    with _temporary(path, content) as written:
        try:
            os.link(written, path)
        except FileExistsError:
            return
        except OSError:  # a file system without links
            if not path.exists():
                written.replace(path)


def write_text(path: Path, text: str) -> None:
    """As `write_bytes`, in UTF-8 with "\\n" line ends on every system."""
    write_bytes(path, text.encode("utf-8"))


@contextmanager
def _temporary(path: Path, content: bytes) -> Iterator[Path]:
    """Yield a file beside `path` that holds `content`, on the disk; afterwards it is gone."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with temporary.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        yield temporary
    finally:
        temporary.unlink(missing_ok=True)
