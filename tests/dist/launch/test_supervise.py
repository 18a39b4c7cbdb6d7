"""What the parent makes of ranks that leave because of a signal, without a training."""

from __future__ import annotations

import logging
import signal
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from launch.interrupts import Interrupts
from launch.output import RankOutput
from launch.supervise import Supervisor
from launch.worker import Job

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="signals of POSIX")


def supervisor(tmp_path: Path, *processes: object) -> Supervisor:
    """Return a supervisor of ranks that have all started."""
    job = Job(tmp_path, len(processes), 0, 0, 1, "fork", {})
    made = Supervisor(job, RankOutput(tmp_path), Interrupts(len(processes)), tmp_path / "note", grace_seconds=1.0, leave_seconds=30.0)
    made.processes = list(processes)  # type: ignore[arg-type]
    for rank in range(len(processes)):
        job.started(rank).touch()
    return made


def over(code: int) -> object:
    """A rank that has ended; without a number of its own, so its exit code is asked for."""
    return SimpleNamespace(pid=None, exitcode=code)


@pytest.mark.parametrize("code", [128 + signal.SIGUSR1, -signal.SIGUSR1])
def test_a_rank_that_a_signal_ended_before_it_could_tell_was_asked_to_leave_and_did_not_fail(code, tmp_path, caplog):
    with pytest.raises(SystemExit) as ended:
        supervisor(tmp_path, SimpleNamespace(pid=None, exitcode=None), over(code)).wait()
    assert ended.value.code == 128 + signal.SIGUSR1
    assert "Rank 1 left because of SIGUSR1" in caplog.text


def test_once_a_rank_has_left_the_others_are_told_too(tmp_path, caplog):
    """One that still reads its data would go on alone until its time is up."""
    with subprocess.Popen([sys.executable, "-c", "import time; time.sleep(100)"], stdout=subprocess.PIPE) as process:
        made = supervisor(tmp_path, SimpleNamespace(pid=process.pid, exitcode=None, sentinel=process.stdout.fileno()), over(143))
        made.job.left(1).write_text("143")
        with caplog.at_level(logging.WARNING), pytest.raises(SystemExit) as ended:
            made.wait()
        assert ended.value.code == 143
        assert process.wait(30) == -signal.SIGTERM
    assert caplog.messages[0] == "Rank 1 left because of SIGTERM"
