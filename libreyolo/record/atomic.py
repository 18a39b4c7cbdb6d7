"""Files that are whole or not there: written beside their place, then renamed."""

from __future__ import annotations

import os
from pathlib import Path


def write_bytes(path: Path, content: bytes) -> None:
    """Replace `path` by `content` in one step; a reader sees the old file or the new one, whenever the process dies."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with temporary.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def write_text(path: Path, text: str) -> None:
    """As `write_bytes`, in UTF-8 with "\\n" line ends on every system."""
    write_bytes(path, text.encode("utf-8"))
