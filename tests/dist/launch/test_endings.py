"""Ctrl-C, SIGTERM, SIGKILL of the parent: nobody stays, and nobody is asked twice."""

from __future__ import annotations

import contextlib
import os
import pty
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from launch import owned_folder
from tests.dist.launch.conftest import DEADLINE, ROOT, alive, until

pytestmark = pytest.mark.slow

SCRIPT = """
import logging, sys
from launch import spawn_ddp_train
from tests.dist.launch.ranks import train_for_ever
if __name__ == "__main__":
    logging.basicConfig(format="%(message)s")
    try:
        spawn_ddp_train(train_for_ever, (sys.argv[1],), num_processes=2)
    except KeyboardInterrupt:
        sys.exit(130)
"""

SLOW_IMPORT = """
import os, pathlib, threading
if __name__ == "__mp_main__":
    pathlib.Path(f"pid-{os.getpid()}").touch()
    threading.Event().wait()
"""

# A session of its own, with standard input as its controlling terminal, which turns the byte 3 into SIGINT for the foreground group.
TAKE_TERMINAL = "import fcntl, os, sys, termios; os.setsid(); fcntl.ioctl(0, termios.TIOCSCTTY, 0); os.execv(sys.argv[1], sys.argv[1:])"


def running(directory: Path) -> list[int]:
    """Return the numbers of both ranks and their loader workers, once all of them run."""
    files = [directory / "pids-0", directory / "pids-1"]
    until(lambda: all(file.exists() for file in files), "both ranks training")
    return [int(pid) for file in files for pid in file.read_text().split()]


def everything(controller: int) -> str:
    """Return what was written to a terminal that nobody holds any longer."""
    said = b""
    with contextlib.suppress(OSError):  # how Linux says the end
        while data := os.read(controller, 65536):
            said += data
    return said.decode()


def both(directory: Path, what: str) -> bool:
    return all((directory / f"{what}-{rank}").exists() for rank in range(2))


@pytest.mark.parametrize(
    ("number", "code", "line"),
    [
        (signal.SIGINT, 130, "Interrupted: ending 2 processes"),
        (signal.SIGTERM, 143, "SIGTERM: asking 2 processes to save and leave"),
        (signal.SIGUSR1, 128 + signal.SIGUSR1, "SIGUSR1: asking 2 processes to save and leave"),
    ],
)
def test_a_signal_to_the_parent_ends_everybody_in_order(script, tmp_path, number, code, line):
    process = script(SCRIPT, str(tmp_path))
    pids = running(tmp_path)
    process.send_signal(number)
    _, err = process.communicate(timeout=DEADLINE)
    assert process.returncode == code
    assert alive(pids) == []
    assert both(tmp_path, "cleaned")
    assert err.count(line) == 1 and "Traceback" not in err, err
    assert [path.name for path in (tmp_path / "tmp").iterdir() if path.name.startswith("launch")] == []


def test_a_signal_to_one_rank_ends_everybody_with_its_exit_code(script, tmp_path):
    process = script(SCRIPT, str(tmp_path))
    pids = running(tmp_path)
    os.kill(int((tmp_path / "pids-1").read_text().split()[0]), signal.SIGUSR2)
    _, err = process.communicate(timeout=DEADLINE)
    assert process.returncode == 128 + signal.SIGUSR2
    assert alive(pids) == []
    assert err.count("Rank 1 left because of SIGUSR2") == 1 and "Traceback" not in err, err


def test_a_signal_to_a_rank_that_is_still_importing_ends_everybody_with_its_exit_code(script, tmp_path):
    """Until its import is over a rank has no handler, and the signal kills it."""
    process = script(SLOW_IMPORT + SCRIPT, str(tmp_path))
    until(lambda: list(tmp_path.glob("pid-*")), "a rank that imports")
    os.kill(int(next(tmp_path.glob("pid-*")).name.removeprefix("pid-")), signal.SIGUSR1)
    _, err = process.communicate(timeout=DEADLINE)
    assert process.returncode == 128 + signal.SIGUSR1
    assert "left because of SIGUSR1" in err and "Traceback" not in err, err


def test_ranks_that_do_not_leave_in_time_are_ended_and_leave_no_folder(script, tmp_path):
    text = SCRIPT.replace("train_for_ever", "hear_nothing").replace("num_processes=2", "num_processes=2, leave_seconds=0.3, grace_seconds=0.3")
    process = script(text, str(tmp_path))
    until(lambda: both(tmp_path, "waiting"), "both ranks waiting")
    children = [child.pid for child in psutil.Process(process.pid).children(recursive=True)]
    process.send_signal(signal.SIGTERM)
    _, err = process.communicate(timeout=DEADLINE)
    assert process.returncode == 143
    assert both(tmp_path, "heard"), "the signal was passed on"
    assert "2 processes did not leave within 0.3 s: ending them" in err
    until(lambda: not alive(children), "the end of all processes", 15)
    assert [path.name for path in (tmp_path / "tmp").iterdir() if path.name.startswith("launch")] == []


def test_the_folder_of_a_killed_parent_is_removed_by_the_next_one(script, tmp_path):
    with owned_folder("launch-", tmp_path / "tmp") as mine:
        process = script(SCRIPT, str(tmp_path))
        running(tmp_path)
        assert mine.is_dir(), "its process lives"
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
        (left,) = [path for path in (tmp_path / "tmp").glob("launch-*") if path != mine]
        (tmp_path / "tmp" / "launch-notours").mkdir()
        with owned_folder("launch-", tmp_path / "tmp") as another:
            assert {path.name for path in (tmp_path / "tmp").glob("launch-*")} == {mine.name, another.name, "launch-notours"}
    assert not left.exists() and not mine.exists()


def test_a_killed_parent_takes_its_ranks_and_their_loader_workers_along(script, tmp_path):
    process = script(SCRIPT, str(tmp_path))
    pids = running(tmp_path)
    os.kill(process.pid, signal.SIGKILL)
    until(lambda: not alive(pids), "the end of all ranks and loader workers", 10)


def test_ctrl_c_at_a_terminal_reaches_the_parent_only(tmp_path):
    file = tmp_path / "script.py"
    file.write_text(SCRIPT)
    environ = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    controller, terminal = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-c", TAKE_TERMINAL, sys.executable, str(file), str(tmp_path)],
        stdin=terminal,
        stdout=terminal,
        stderr=terminal,
        env=environ,
        cwd=tmp_path,
    )
    os.close(terminal)
    try:
        pids = running(tmp_path)
        assert Path(f"/proc/{pids[0]}/fd/1").readlink().is_relative_to("/dev/pts"), "rank 0 has the terminal itself"
        os.write(controller, b"\x03")
        assert process.wait(DEADLINE) == 130
        said = everything(controller)
        assert alive(pids) == []
        assert "Interrupted: ending 2 processes" in said and "Traceback" not in said
    finally:
        for child in [*psutil.Process(process.pid).children(recursive=True)] if process.poll() is None else []:
            child.kill()
        process.kill()
        process.wait()
        os.close(controller)
