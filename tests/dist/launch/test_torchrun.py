"""The same ranks started by torchrun: one run directory, found again by a restart."""

from __future__ import annotations

import signal
import subprocess
import sys

import pytest

from tests.dist.launch.conftest import ROOT, until

SCRIPT = """
import os
from datetime import datetime
from torch import distributed as dist
from launch import detect, process_group
from launch.restart import forget, remember, restart_directory
from launch.rundir import new_time_directory, share

def broadcast(path):
    box = [path]
    dist.broadcast_object_list(box)
    return box[0]

env = detect(os.environ)
with process_group(env, device="cpu") as backend:
    directory = None
    if env.rank == 0:
        directory = restart_directory(os.environ, "outputs")
        if directory is None:
            directory = new_time_directory("outputs", datetime.now())
            remember(os.environ, "outputs", directory)
    directory = share(directory, env.rank, broadcast)
    (directory / f"{env.source}-{backend}-rank{env.rank}-life{os.environ['TORCHELASTIC_RESTART_COUNT']}").touch()
    dist.barrier()
    if env.rank == 1 and os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
        os._exit(7)
    dist.barrier()
if env.rank == 0:
    forget(os.environ, "outputs")
"""


@pytest.mark.slow
def test_torchrun_gets_one_directory_and_its_restart_goes_on_there(tmp_path):
    (tmp_path / "script.py").write_text(SCRIPT)
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node=2", "--max-restarts=1", "script.py"]
    environ = {"PATH": "/usr/bin:/bin", "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "HOME": str(tmp_path)}
    run = subprocess.run(command, cwd=tmp_path, env=environ, capture_output=True, text=True, timeout=150)
    assert run.returncode == 0, run.stderr
    days = list((tmp_path / "outputs").iterdir())
    assert len(days) == 1 and len(list(days[0].iterdir())) == 1  # one day, one directory, and no marker
    said = sorted(path.name for path in next(days[0].iterdir()).iterdir())
    assert said == [f"torchrun-gloo-rank{rank}-life{life}" for rank in range(2) for life in range(2)]


# Each rank waits for the word that ends it, and says what it heard; rank 0 ends the agent with a signal that this does not pass on, once both ranks have
# met: the agent holds the store at which they meet, and without it a rank that is still on its way there ends with an error before it hears anything.
ORPHANS = """
import os, signal, threading
from pathlib import Path
from torch import distributed as dist
from launch import detect, process_group, told_of_signals
env = detect(os.environ)
with told_of_signals(lambda number: (Path(f"rank{env.rank}-heard-{number}").touch(), os._exit(0))), process_group(env, device="cpu"):
    dist.barrier()
    if env.rank == 0:
        os.kill(os.getppid(), signal.SIGUSR1)
    for _ in range(600):
        threading.Event().wait(0.1)
"""


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells a process of its parent's end")
def test_ranks_hear_of_the_end_of_torchrun_s_agent_whatever_ended_it(tmp_path):
    (tmp_path / "script.py").write_text(ORPHANS)
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node=2", "script.py"]
    environ = {"PATH": "/usr/bin:/bin", "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "HOME": str(tmp_path)}
    run = subprocess.run(command, cwd=tmp_path, env=environ, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, timeout=150)
    assert run.returncode == -signal.SIGUSR1
    until(lambda: len(list(tmp_path.glob(f"rank*-heard-{int(signal.SIGTERM)}"))) == 2, "the end of both ranks", 30)
