"""Memory, open files and threads of a whole job, epoch by epoch; benchmarks/memory.py with fewer of them."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_memory_files_and_threads_stay_flat(tmp_path: Path) -> None:
    """Two ranks with a loader process each; the last quarter of 32 epochs against the second one."""
    command = [sys.executable, str(ROOT / "benchmarks" / "memory.py"), "--epochs", "32", "--out", str(tmp_path / "out")]
    environ = {**os.environ, "PYTHONPATH": str(ROOT), "LIBREYOLO_CACHE": str(tmp_path / "cache")}
    ended = subprocess.run(command, env=environ, cwd=tmp_path, capture_output=True, text=True, timeout=500)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert "open_files" in ended.stdout
