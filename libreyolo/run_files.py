"""What a run directory holds beside weights and records: the resolved configuration and where it came from."""

from __future__ import annotations

import contextlib
import json
import os
import platform
import shlex
import shutil
import subprocess
import sys
import time
import traceback
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch
import yaml

from launch.run_lock import LOCK_FILE
from libreyolo.errors import UserError
from libreyolo.record import shell
from libreyolo.record.atomic import write_text

PACKAGES = ("libreyolo-train", "torch", "torchvision", "numpy", "pillow", "hydra-core", "omegaconf", "faster-coco-eval")


@contextlib.contextmanager
def made_below(project: str | Path) -> Iterator[None]:
    """Turn an OSError of making a run's directory into a UserError: a full or read-only disk, missing rights, a file in the way."""
    try:
        yield
    except OSError as error:
        place = error.filename or project
        raise UserError(f"{place} could not be made ({error.strerror or error}): choose another place for run directories with project=.") from error


def write_config(run_dir: Path, config: dict[str, Any]) -> None:
    """Write train_config.yaml: every argument of the run, ready to be run again."""
    header = (
        "# Every argument of this run. Run it again:\n"
        f"#   python train.py {shlex.quote(shell.override('cfg', run_dir / 'train_config.yaml'))}\n"
        f"#   LibreYOLO(...).train(cfg={str(run_dir / 'train_config.yaml')!r})\n"
    )
    write_text(run_dir / "train_config.yaml", header + yaml.safe_dump(config, sort_keys=False, allow_unicode=True))


def read_config(path: Path) -> dict[str, Any]:
    """Return the arguments in a YAML file, a train_config.yaml or the user's own. Raises UserError.

    `resume` is left out: running a resumed run again starts afresh.
    """
    try:
        values = yaml.safe_load(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UserError(f"cfg={path} could not be read: {error.strerror or error}.") from error
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise UserError(f"cfg={path} is not valid YAML: {' '.join(str(error).split())}.") from error
    if not isinstance(values, dict):
        raise UserError(f"cfg={path} must hold arguments as `key: value` lines.")
    return {str(k): v for k, v in values.items() if k != "resume"}


def write_environment(run_dir: Path, *, world_size: int, device: torch.device, source: Path) -> None:
    """Write environment.json: the command, versions, the git commit of `source`, the devices. A resumed run is appended."""
    path = run_dir / "environment.json"
    entries = _earlier_environments(path)
    entries.append(
        {
            "started": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
            "command": [sys.executable, *sys.argv],
            "cwd": str(Path.cwd()),
            "python": platform.python_version(),
            "platform": platform.platform(),
            "packages": {name: _version(name) for name in PACKAGES},
            "git": git_state(source),
            "world_size": world_size,
            "device": torch.cuda.get_device_name(device) if device.type == "cuda" else device.type,
            "cuda": torch.version.cuda,
            "cpu_count": os.cpu_count(),
        }
    )
    write_text(path, json.dumps(entries, indent=2) + "\n")


def _earlier_environments(path: Path) -> list[Any]:
    """Return what the earlier lives of a run wrote; [] where nothing can be read, as after a crash of the machine."""
    try:
        entries = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return []
    return entries if isinstance(entries, list) else []


def append_failure(run_dir: Path, error: BaseException) -> None:
    """Write the traceback of what ended a run at the end of its train.log; once, however many tell it. Where that can't be written (the disk may be
    what ended it), nothing happens."""
    path = run_dir / "train.log"
    text = "".join(traceback.format_exception(type(error), error, error.__traceback__)).rstrip()
    with contextlib.suppress(OSError):
        said = path.read_text(encoding="utf-8", errors="replace") if path.exists() else ""
        if text.splitlines()[-1] in said:
            return
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("a", encoding="utf-8", errors="backslashreplace") as file:
            file.write(f"{time.strftime('%Y-%m-%d %H:%M:%S')} Training failed.\n{text}\n")


def remove_unstarted(run_dir: Path) -> None:
    """Remove the directory of a run that ended before it left anything but its log, and the folder of its day when that is empty then."""
    if not run_dir.is_dir() or not {p.name for p in run_dir.iterdir()} <= {".hydra", "train.log", LOCK_FILE}:
        return
    shutil.rmtree(run_dir, ignore_errors=True)
    with contextlib.suppress(OSError):  # not empty: other runs are in it
        run_dir.parent.rmdir()


def git_state(source: Path) -> dict[str, Any]:
    """Return commit and whether files differ from it; {} where `source` is no git checkout or git is not there."""
    try:
        commit = _git(source, "rev-parse", "HEAD")
        return {"commit": commit, "modified": bool(_git(source, "status", "--porcelain", "--untracked-files=no"))}
    except (OSError, subprocess.SubprocessError):
        return {}


def _git(source: Path, *words: str) -> str:
    # `git status` would take the index's lock to refresh it, and a commit of the user's in that moment fail.
    environ = {**os.environ, "GIT_OPTIONAL_LOCKS": "0"}
    run = subprocess.run(["git", "-C", str(source), *words], env=environ, capture_output=True, text=True, timeout=10, check=True)
    return run.stdout.strip()


def _version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None
