"""A second job in a directory where one trains: every door refuses it before a process starts or a file changes."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from hydra.types import RunMode
from omegaconf import OmegaConf

import launch
from launch import run_lock
from libreyolo import LibreYOLO, door, hydra_runs
from libreyolo.hydra_runs import HydraRuns
from tests.dist.doors.conftest import SMALL, make_data
from tests.dist.doors.test_torchrun import slurm
from tests.dist.launch.other_job import another_job_in, gets_in

pytestmark = pytest.mark.skipif(run_lock.fcntl is None, reason="this system has no file locks")

IN_USE = r" is in use by process \d+ on .*: wait for its end, or end it"


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(run_lock, "PATIENCE_SECONDS", 0.0)
    monkeypatch.setattr(launch, "spawn_ddp_train", lambda *arguments, **settings: pytest.fail("a process was started"))


def a_run(directory: Path) -> Path:
    """Make what a second job sees of a run: its directory, with a checkpoint."""
    (directory / "weights").mkdir(parents=True)
    torch.save({}, directory / "weights" / "last.pt")
    return directory


def files(directory: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in directory.rglob("*") if path.is_file()}


@pytest.mark.parametrize("given", [{"resume": "exp"}, {"resume": "auto", "project": "."}, {"project": ".", "exist_ok": True}], ids=str)
@pytest.mark.parametrize("num_ranks", [1, 2])
def test_python_refuses_it(tmp_path: Path, given: dict[str, object], num_ranks: int) -> None:
    run = a_run(tmp_path / "exp")
    (tmp_path / "data.yaml").touch()
    with another_job_in(run):
        before = files(run)
        with pytest.raises(launch.RunDirectoryError, match=IN_USE):
            LibreYOLO("yolo9t").train(data="data.yaml", device="cpu", nproc=num_ranks, **given)
        assert files(run) == before
    assert gets_in(run)


def begin(run_dir: Path, **values: object) -> None:
    """Do what Hydra does before it makes the directory of a run."""
    config = {"project": "outputs", "resume": False, "exist_ok": False, "hydra": {"run": {"dir": str(run_dir)}}, **values}
    HydraRuns().on_run_start(OmegaConf.create(config))


@pytest.mark.parametrize("given", [{"resume": "mine"}, {"exist_ok": True}], ids=str)
def test_hydra_refuses_it_and_has_its_own_directory_from_before_it_writes_until_its_end(tmp_path: Path, given: dict[str, object]) -> None:
    run = a_run(tmp_path / "mine")
    hydra_runs.register()
    with another_job_in(run):
        before = files(run)
        with pytest.raises(SystemExit, match=IN_USE):
            begin(run, **given)
        assert files(run) == before
    begin(run, **given)
    assert not gets_in(run)
    hydra_runs.let_go()
    assert gets_in(run)


def test_other_ranks_of_torchrun_leave_the_lock_to_rank_0(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"RANK": "1", "LOCAL_RANK": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "1"}.items():
        monkeypatch.setenv(name, value)
    run = a_run(tmp_path / "mine")
    with another_job_in(run):
        begin(run, resume="mine")


def test_what_torchrun_starts_again_does_not_take_a_refused_directory_for_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "none")
    monkeypatch.setenv("TORCHELASTIC_MAX_RESTARTS", "1")
    run = a_run(tmp_path / "mine")
    hydra_runs.register()
    with another_job_in(run), pytest.raises(SystemExit):
        begin(run, exist_ok=True)
    assert list(tmp_path.glob("outputs/.torchrun-*")) == []
    hydra_runs.register()  # the next life
    begin(run, exist_ok=True)
    assert len(list(tmp_path.glob("outputs/.torchrun-*"))) == 1
    hydra_runs.let_go()


def test_rank_0_of_srun_refuses_it_when_the_others_hear_of_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in slurm(0).items():
        monkeypatch.setenv(name, value)
    run = a_run(tmp_path / "mine")
    hydra_runs.register()
    config = OmegaConf.create({"project": ".", "resume": "mine", "exist_ok": False, "hydra": {"run": {"dir": str(run)}, "output_subdir": ".hydra"}})
    with another_job_in(run):
        HydraRuns().on_run_start(config)
        assert config.hydra.output_subdir is None  # Hydra goes on to the ranks' meeting, and writes nothing on its way


def test_the_directory_of_a_job_that_has_just_begun_is_not_removed_by_one_that_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = tmp_path / "mine"
    run.mkdir()
    (run / "train.log").touch()
    hydra = SimpleNamespace(runtime=SimpleNamespace(output_dir=run, cwd=tmp_path), mode=RunMode.RUN, overrides=SimpleNamespace(task=[]))

    def train_in_it(*arguments: object) -> float:
        with launch.alone_in(run):
            return 0.0

    monkeypatch.setattr(door.HydraConfig, "get", lambda: hydra)
    monkeypatch.setattr(door, "train_from_config", train_in_it)
    with another_job_in(run), pytest.raises(door._Told, match=IN_USE):
        door.train_job(OmegaConf.create({"project": "outputs"}))
    assert (run / "train.log").exists()


def test_a_run_keeps_its_directory_while_it_trains_and_no_longer(tmp_path: Path) -> None:
    make_data(tmp_path / "data")
    run, seen = tmp_path / "outputs" / "exp", []
    for given in ({}, {"exist_ok": True}):
        LibreYOLO("yolo9t").train(data="data/data.yaml", callbacks=[lambda event: seen.append(gets_in(run))], **SMALL, **given)
        assert gets_in(run)
    assert seen == [False, False]
