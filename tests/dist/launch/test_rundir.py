"""One directory per run, never another run's, found again by a restart."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime

import pytest

from launch import restart
from launch.errors import RunDirectoryError
from launch.restart import forget, process_identity, remember, restart_directory
from launch.rundir import is_run, new_time_directory, refuse_run, settle, share


def test_new_runs_count_up(tmp_path):
    made = [settle(tmp_path / "outputs", "train") for _ in range(3)]
    assert [path.name for path in made] == ["train", "train2", "train3"]
    assert all(path.is_dir() for path in made)


def test_exist_ok_takes_the_directory_itself(tmp_path):
    assert settle(tmp_path, "train", exist_ok=True) == settle(tmp_path, "train", exist_ok=True) == tmp_path / "train"


def test_jobs_that_start_together_get_their_own(tmp_path):
    with ThreadPoolExecutor(8) as pool:
        made = list(pool.map(lambda _: settle(tmp_path, "train"), range(32)))
        now = datetime(2025, 1, 31, 12, 34, 56)
        timed = list(pool.map(lambda _: new_time_directory(tmp_path, now), range(32)))
    assert len(set(made)) == len(set(timed)) == 32


def test_a_time_directory_can_be_passed_back_as_an_override(tmp_path):
    made = new_time_directory(tmp_path, datetime(2025, 1, 31, 12, 34, 56))
    assert re.fullmatch(r"2025-01-31/12-34-56-[0-9a-f]{4}", made.relative_to(tmp_path).as_posix())
    assert made.is_dir()


def test_resume_goes_on_in_the_old_directory(tmp_path):
    (tmp_path / "old" / "weights").mkdir(parents=True)
    assert settle(tmp_path, "train", resume_dir=tmp_path / "old") == tmp_path / "old"
    assert not (tmp_path / "train").exists()
    with pytest.raises(RunDirectoryError, match="nowhere"):
        settle(tmp_path, "train", resume_dir=tmp_path / "nowhere")


@pytest.mark.parametrize("content", ["weights", "results.csv", "train_config.yaml"])
def test_an_explicit_directory_that_holds_a_run_is_refused(tmp_path, content):
    run = tmp_path / "run"
    (run / content).mkdir(parents=True)
    with pytest.raises(RunDirectoryError, match=r"already holds a run.*resume=.*exist_ok=true"):
        settle(tmp_path, "train", explicit=run)
    assert settle(tmp_path, "train", explicit=run, exist_ok=True) == run
    refuse_run(run, resuming=True)


def test_an_explicit_directory_with_a_log_only_is_taken(tmp_path):
    (tmp_path / "run" / ".hydra").mkdir(parents=True)
    (tmp_path / "run" / "train.log").touch()
    assert not is_run(tmp_path / "run") and not is_run(tmp_path / "nowhere")
    assert settle(tmp_path, "train", explicit=tmp_path / "run") == tmp_path / "run"
    assert settle(tmp_path, "train", explicit=tmp_path / "fresh" / "one").is_dir()


@pytest.mark.parametrize("name", ["lr=0.1", "a b", "a,b", "[x]", ""])
def test_an_awkward_name_is_refused_with_another(tmp_path, name):
    with pytest.raises(RunDirectoryError, match=r"use name='\w[\w.]*'"):
        settle(tmp_path, name)
    assert not list(tmp_path.iterdir())


def test_rank_0_s_directory_reaches_every_rank(tmp_path):
    sent = []
    assert share(tmp_path, 0, lambda path: sent.append(path) or path) == tmp_path
    assert share(None, 1, lambda path: sent.append(path) or "/runs/a").as_posix() == "/runs/a"
    assert sent == [str(tmp_path), None]
    with pytest.raises(RunDirectoryError):
        share(None, 0, lambda path: path)


def torchrun_environ(run_id: str = "none", count: int = 0, most: int = 3) -> dict[str, str]:
    return {"TORCHELASTIC_RUN_ID": run_id, "TORCHELASTIC_RESTART_COUNT": str(count), "TORCHELASTIC_MAX_RESTARTS": str(most)}


@pytest.fixture
def life(monkeypatch):
    """Return a function that makes this process look like the process `me`, started by the agent `agent`."""

    def be(me: str, agent: str) -> None:
        monkeypatch.setattr(restart, "process_identity", lambda pid: agent if pid == os.getppid() else me)

    return be


@pytest.mark.parametrize("run_id", ["none", "job7"])
def test_a_restart_finds_its_directories_in_order(tmp_path, life, run_id):
    first, second = tmp_path / "a", tmp_path / "b"
    first.mkdir(), second.mkdir()
    life("process 1", "agent")
    environ = torchrun_environ(run_id)
    assert restart_directory(environ, tmp_path) is None
    remember(environ, tmp_path, first)
    assert restart_directory(environ, tmp_path) is None, "a second training of one script is a new run"
    remember(environ, tmp_path, second)
    life("process 2", "agent")
    again = torchrun_environ(run_id, count=1)
    assert restart_directory(again, tmp_path) == first
    assert restart_directory(again, tmp_path) == second
    assert restart_directory(again, tmp_path) is None
    forget(again, tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a", "b"]


def test_another_job_with_the_same_copied_id_starts_anew(tmp_path, life):
    (tmp_path / "a").mkdir()
    life("process 1", "agent 1")
    remember(torchrun_environ("100"), tmp_path, tmp_path / "a")
    life("process 2", "agent 2")
    assert restart_directory(torchrun_environ("100"), tmp_path) is None


def test_a_named_job_that_goes_on_under_another_agent_finds_its_directory(tmp_path, life):
    (tmp_path / "a").mkdir()
    life("process 1", "agent 1")
    remember(torchrun_environ("100"), tmp_path, tmp_path / "a")
    life("process 2", "agent 2")
    assert restart_directory(torchrun_environ("100", count=1), tmp_path) == tmp_path / "a"


def test_no_marker_outside_torchrun_or_where_it_won_t_restart(tmp_path):
    for environ in ({}, torchrun_environ(most=0)):
        remember(environ, tmp_path, tmp_path)
        assert restart_directory(environ, tmp_path) is None
    assert not list(tmp_path.iterdir())


def test_an_unreadable_marker_belongs_to_nobody(tmp_path, life):
    (tmp_path / "a").mkdir()
    life("process 1", "agent")
    remember(torchrun_environ(), tmp_path, tmp_path / "a")
    marker = next(path for path in tmp_path.iterdir() if path.name.startswith(".torchrun-"))
    marker.write_text("{")
    assert restart_directory(torchrun_environ(count=1), tmp_path) is None


def test_a_process_is_told_from_another():
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    try:
        assert process_identity(child.pid) != process_identity(os.getpid()) == process_identity(os.getpid())
    finally:
        child.communicate(b"\n")
