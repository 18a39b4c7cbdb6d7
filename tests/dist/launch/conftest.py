"""Scripts that are run as a user runs them, and looking for processes that stayed."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

ROOT = Path(__file__).parents[3]
DEADLINE = 240.0  # a guard against waiting for ever, not a promise: two cores may be shared by several test runs


def until(condition: Callable[[], object], what: str, seconds: float = DEADLINE) -> None:
    """Poll until `condition()` is true."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"{what}: not within {seconds} s"
        time.sleep(0.05)


def alive(pids: list[int]) -> list[int]:
    """Return those of `pids` that still run (a zombie doesn't)."""
    running = []
    for pid in pids:
        try:
            if psutil.Process(pid).status() != psutil.STATUS_ZOMBIE:
                running.append(pid)
        except psutil.NoSuchProcess:
            continue
    return running


def descendants() -> list[psutil.Process]:
    """Return this process's descendants but multiprocessing's own tracker, which lives as long as its parent."""
    return [child for child in psutil.Process().children(recursive=True) if "resource_tracker" not in " ".join(child.cmdline())]


@pytest.fixture
def script(tmp_path: Path) -> Callable[..., subprocess.Popen]:
    """Return a function that starts a script of the given text, with the repository importable and temporary files below tmp_path."""
    (tmp_path / "tmp").mkdir()
    started: list[subprocess.Popen] = []

    def start(text: str, *arguments: str, stdin: bool = False, **options) -> subprocess.Popen:
        file = tmp_path / "script.py"
        file.write_text(text)
        command = [sys.executable, "-" if stdin else str(file), *arguments]
        environ = {**os.environ, "PYTHONPATH": str(ROOT), "TMPDIR": str(tmp_path / "tmp"), "OMP_NUM_THREADS": "1"}
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "stdin": file.open() if stdin else subprocess.DEVNULL}
        process = subprocess.Popen(command, env=environ, cwd=tmp_path, text=True, **{**pipes, **options})
        started.append(process)
        return process

    yield start
    for process in started:
        for child in [*_children(process), process]:
            child.kill()
        process.wait()


def _children(process: subprocess.Popen) -> list[psutil.Process]:
    try:
        return psutil.Process(process.pid).children(recursive=True)
    except psutil.NoSuchProcess:
        return []
