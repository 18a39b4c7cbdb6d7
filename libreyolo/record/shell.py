"""Commands that work as they are printed, copied into the shell that started this process."""

from __future__ import annotations

import re
import shlex
import shutil
import sys
from pathlib import Path
from typing import Any

TRAIN_PY = Path(__file__).resolve().parents[2] / "train.py"  # not there where the package was installed from a wheel


def python() -> str:
    """Return this interpreter as it is typed: its bare name where the shell would find it by that, else its path."""
    if not sys.executable:
        return "python"
    executable = Path(sys.executable)
    for name in ("python", "python3"):
        found = shutil.which(name)
        if found and Path(found).absolute() == executable.absolute():
            return name
    return _typed(executable)


def module(*words: Any) -> str:
    """Return `python -m libreyolo WORDS`."""
    return f"{python()} -m libreyolo {shlex.join(str(word) for word in words)}"


def train(*overrides: str) -> str:
    """Return `python train.py OVERRIDES`."""
    return f"{python()} {_typed(TRAIN_PY)} {shlex.join(overrides)}".rstrip()


def go_on(run_dir: Path, epochs: int | None) -> str:
    """Return the command that resumes a run, up to `epochs` where given."""
    if TRAIN_PY.exists():
        return train(override("resume", run_dir), *([f"epochs={epochs}"] if epochs else []))
    more = f", epochs={epochs}" if epochs else ""
    last = str(run_dir / "weights" / "last.pt")
    return f"{python()} -c {shlex.quote(f'from libreyolo import LibreYOLO; LibreYOLO({last!r}).train(resume=True{more})')}"


def override(key: str, path: Path) -> str:
    """Return `key=path` as Hydra reads it: quoted where the path holds what means something to it."""
    text = str(path)
    plain = all((c.isascii() and c.isalnum()) or c in "/_-.:+%@" for c in text)
    return f"{key}={text}" if plain else f"{key}={quoted(text)}"


def quoted(text: str) -> str:
    """Return `text` between single quotes as Hydra's grammar reads them."""
    # Backslashes count only before a quote, and the closing one is a quote.
    inner = re.sub(r"(\\+)$", r"\1\1", re.sub(r"(\\*)'", r"\1\1\\'", text))
    return f"'{inner}'"


def _typed(path: Path) -> str:
    """Return a path for the shell, short where it lies in the working directory."""
    here = Path.cwd()
    return shlex.quote(str(path.relative_to(here) if path.is_relative_to(here) else path))
