"""Folders of generated data sets: made on first use, whole or not at all, and used again when they hold what is asked for."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path

from libreyolo.errors import UserError


def make_set(root: Path, description: str, write: Callable[[Path], None]) -> Path:
    """Return the data.yaml of the set in the folder `root`, generated there by `write` when it is not there yet.

    description: the text of the data.yaml, which tells one set from another. write: fills a folder that does not exist yet with all but the
    data.yaml. Any number of processes may ask for a set at once. Raises UserError when `root` holds something else or can't be written.
    """
    if _holds(root, description):
        return root / "data.yaml"
    try:
        root.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=root.parent, prefix=f".{root.name}.", ignore_cleanup_errors=True) as temporary:
            unfinished = Path(temporary) / root.name
            write(unfinished)
            (unfinished / "data.yaml").write_text(description, encoding="utf-8", newline="\n")
            _settle(unfinished, root, description)
    except OSError as error:
        raise UserError(f"{root} cannot be written ({error.strerror or error}); set LIBREYOLO_CACHE to a folder that can.") from error
    return root / "data.yaml"


def _holds(root: Path, description: str) -> bool:
    """Whether `root` is this set already; False for a folder that is empty or not there."""
    if not root.is_dir() or not any(root.iterdir()):
        return False
    yaml_path = root / "data.yaml"
    if yaml_path.is_file() and yaml_path.read_text(encoding="utf-8") == description:
        return True
    raise UserError(f"{root} holds something else than the set asked for; name an empty folder, or remove it.")


def _settle(unfinished: Path, root: Path, description: str) -> None:
    """Rename into place; where another process was faster its folder is as good as ours."""
    try:
        unfinished.rename(root)
    except OSError:
        if not _holds(root, description):
            raise
        shutil.rmtree(unfinished)
