"""A directory that the user chose for a Hydra run: refused, resumed, or found again by a restart. No process is started."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from omegaconf import OmegaConf

from launch import restart
from libreyolo import hydra_runs
from libreyolo.hydra_runs import HydraRuns, place_of


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    hydra_runs.register()
    yield
    hydra_runs.register()  # what this process settled is gone with the test


def start(run_dir: Path, **values: object) -> None:
    """Do what Hydra does before it makes the directory of a run."""
    config = {"project": "outputs", "resume": False, "exist_ok": False, "hydra": {"run": {"dir": str(run_dir)}}, **values}
    HydraRuns().on_run_start(OmegaConf.create(config))


def a_run(directory: Path) -> Path:
    (directory / "weights").mkdir(parents=True)
    torch.save({"optimizer": {}, "progress": {}, "config": {}, "model": {}}, directory / "weights" / "last.pt")
    return directory


def test_a_directory_with_a_run_needs_exist_ok(tmp_path):
    run = a_run(tmp_path / "mine")
    with pytest.raises(SystemExit, match="already holds a run, which would be overwritten"):
        start(run)
    start(run, exist_ok=True)


def test_a_resumed_run_stays_in_its_directory(tmp_path):
    run = a_run(tmp_path / "mine")
    with pytest.raises(SystemExit, match=r"resume goes on in .*mine, but hydra.run.dir=.*other names another directory"):
        start(tmp_path / "other", resume="mine")
    start(run, resume="mine")


def test_a_restart_by_torchrun_finds_its_chosen_directory_and_a_new_job_is_refused_it(tmp_path, monkeypatch):
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "none")
    monkeypatch.setenv("TORCHELASTIC_MAX_RESTARTS", "1")
    numbers = {"agent": "agent-1", "life": "rank-1"}
    me = hydra_runs.os.getpid()
    monkeypatch.setattr(restart, "process_identity", lambda pid: numbers["life" if pid == me else "agent"])
    directory = tmp_path / "mine"
    start(directory)
    assert not place_of(directory, tmp_path).restarted
    a_run(directory)

    numbers["life"] = "rank-2"
    hydra_runs.register()  # another process
    start(directory)
    assert place_of(directory, tmp_path).restarted

    numbers.update(agent="agent-2", life="rank-3")
    hydra_runs.register()
    with pytest.raises(SystemExit, match="already holds a run"):
        start(directory)


def test_a_directory_that_was_settled_for_the_run_is_taken_as_it_is(tmp_path):
    settled = Path(hydra_runs._run_dir(False, "outputs"))
    assert settled.parent.parent == tmp_path / "outputs"
    assert hydra_runs._run_dir(False, "outputs") == str(settled)  # one process, one run, however often Hydra asks
    start(settled)
