"""Sets that the library draws itself: a folder that appears whole or not at all, however many processes ask for it at once."""

from __future__ import annotations

import logging
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path

from libreyolo.errors import UserError

logger = logging.getLogger(__name__)


def make_set(root: Path, description: str, write: Callable[[Path], None]) -> Path:
    """Return root/data.yaml, made where it is not there yet; a folder whose data.yaml is exactly `description` is used as it is.

    write: fills an empty folder with all but the data.yaml. Raises UserError when `root` holds something else or can't be written.
    """
    yaml_path = root / "data.yaml"
    if _holds(root, description):
        return yaml_path
    logger.info("generating the demo set in %s", root)
    try:
        root.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=root.parent, prefix=f".{root.name}.", ignore_cleanup_errors=True) as temporary:
            unfinished = Path(temporary) / root.name
            unfinished.mkdir()
            write(unfinished)
            (unfinished / "data.yaml").write_text(description, encoding="utf-8", newline="\n")
            _settle(unfinished, root, description)
    except OSError as error:
        raise UserError(f"{root} cannot be written ({error.strerror or error}); set LIBREYOLO_CACHE to a folder that can.") from error
    return yaml_path


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
