"""A small share of benchmarks/faults.py: after each random kill the run goes on, and ends as if nothing had happened."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="the script needs Linux's subreaper")
def test_five_random_kills_lose_nothing_and_leave_nothing(tmp_path: Path) -> None:
    """Seed 2 begins with SIGTERM in a validation, SIGUSR1 to one rank at any moment, and SIGKILL in a validation and while saving."""
    command = [sys.executable, str(ROOT / "benchmarks" / "faults.py"), "--kills", "5", "--seed", "2", "--out", str(tmp_path / "out")]
    ended = subprocess.run(command, env={**os.environ, "PYTHONPATH": str(ROOT)}, capture_output=True, text=True, timeout=500)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert "5 kills" in ended.stdout
