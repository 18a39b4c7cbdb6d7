"""The same training as ranks of torchrun and of srun: one directory, mistakes said once, restarts that go on by themselves."""

from __future__ import annotations

import json

import pytest

from libreyolo.door import arguments_for_rank
from libreyolo.errors import UserError
from tests.dist.doors.conftest import LIKE_TRAIN_PY, SMALL, TORCHRUN, TRAIN, Workplace, epochs_in, words

RANK_VARIABLES = {"RANK": "1", "LOCAL_RANK": "1", "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29500"}
LATE_RANK = """
import os, time
if os.environ.get("RANK") == "1":
    time.sleep(3)  # the fault under test: a rank that starts late
"""
# In the second step of the second epoch: ranks have met since the first was saved.
DIES_ONCE = """
set_rates = trainer.Trainer._set_rates
def dying(self):
    if self.progress.global_step == 3 and rank() == "1" and os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
        os.kill(os.getpid(), signal.SIGKILL)
    set_rates(self)
trainer.Trainer._set_rates = dying
"""
PYTHON_SCRIPT = """
import json, os, signal, sys
from libreyolo import LibreYOLO
from libreyolo.engine import trainer
def rank():
    return os.environ["RANK"]
{patch}
LibreYOLO("yolo9t").train(data="data/data.yaml", **json.loads(sys.argv[1]))
"""
MISTAKE_OF_RANK_1 = """
set_rates = trainer.Trainer._set_rates
def broken(self):
    if rank() == "1":
        raise UserError("data/images/train/5.png is no usable picture.")
    set_rates(self)
trainer.Trainer._set_rates = broken
"""


@pytest.mark.slow
def test_a_late_rank_finds_one_directory_and_leaves_nothing_and_a_resumed_job_stays_there(workplace: Workplace):
    workplace.script(LATE_RANK, "sitecustomize.py")
    settings = words(data="data/data.yaml", epochs=2)
    ended = workplace.run(*TORCHRUN, TRAIN, *settings, "stop_after_epoch=1")
    assert ended.code == 0, ended.err
    (run_dir,) = workplace.runs
    assert sorted(path.name for path in workplace.folder.iterdir()) == ["cache", "data", "outputs", "sitecustomize.py", "tmp"]
    assert [path.parent for path in workplace.folder.rglob(".hydra")] == [run_dir]
    assert [path.parent for path in workplace.folder.rglob("*.log")] == [run_dir]
    assert epochs_in(run_dir) == [1]
    assert "2 ranks on cpu (backend gloo" in (run_dir / "train.log").read_text()

    (workplace.folder / "sitecustomize.py").unlink()
    ended = workplace.run(*TORCHRUN, TRAIN, f"resume={run_dir.relative_to(workplace.folder)}", "device=cpu")
    assert ended.code == 0, ended.err
    assert workplace.runs == [run_dir]
    assert epochs_in(run_dir) == [1, 2]


@pytest.mark.slow
@pytest.mark.parametrize(("script", "directory"), [(LIKE_TRAIN_PY, "outputs/*/*"), (PYTHON_SCRIPT, "outputs/exp*")], ids=["Hydra", "Python"])
def test_a_restart_by_torchrun_goes_on_in_its_directory_from_its_last_checkpoint(workplace: Workplace, script: str, directory: str):
    name = workplace.script(script.format(patch=DIES_ONCE))
    settings = words(data="data/data.yaml", epochs=3) if script is LIKE_TRAIN_PY else [json.dumps({**SMALL, "epochs": 3})]
    ended = workplace.run(*TORCHRUN, "--max-restarts=1", name, *settings)
    assert ended.code == 0, ended.err
    (run_dir,) = workplace.folder.glob(directory)
    assert epochs_in(run_dir) == [1, 2, 3]
    log = (run_dir / "train.log").read_text()
    assert log.count("Going on from") == 1 and "after epoch 1" in log
    assert (run_dir / ".hydra").exists() == (script is LIKE_TRAIN_PY)


@pytest.mark.slow
def test_a_mistake_that_every_rank_makes_is_said_once_and_leaves_no_directory(workplace: Workplace):
    ended = workplace.run(*TORCHRUN, TRAIN, *words(data="nowhere.yaml"))
    assert ended.code != 0
    assert ended.err.count("data='nowhere.yaml' was not found") == 1
    assert 'train.py", line' not in ended.err and "Error executing job" not in ended.err
    assert list(workplace.folder.glob("outputs/*")) == []


@pytest.mark.slow
def test_a_mistake_that_one_rank_meets_is_said_by_that_rank(workplace: Workplace):
    script = workplace.script(LIKE_TRAIN_PY.format(patch=MISTAKE_OF_RANK_1))
    ended = workplace.run(*TORCHRUN, script, *words(data="data/data.yaml"))
    assert ended.code != 0
    assert ended.err.count("data/images/train/5.png is no usable picture.") == 1
    assert "closed by peer" not in ended.err  # what the other rank sees of it is no news


@pytest.mark.slow
def test_a_sweep_under_torchrun_is_refused_in_one_sentence_said_once(workplace: Workplace):
    ended = workplace.run(*TORCHRUN, TRAIN, "-m", *words(data="data/data.yaml", seed="1,2"))
    assert ended.code != 0
    assert ended.err.count("-m under torchrun would run the sweep once in every process") == 1
    assert list(workplace.folder.glob("outputs/*")) == []


def slurm(rank: int, **changes: str) -> dict[str, str]:
    """Return what srun sets for one of two tasks of a step on this machine."""
    step = {
        "SLURM_JOB_ID": "4711",
        "SLURM_STEP_ID": "0",
        "SLURM_STEP_NUM_TASKS": "2",
        "SLURM_NTASKS": "2",
        "SLURM_STEP_TASKS_PER_NODE": "2",
        "SLURM_STEP_NODELIST": "localhost",
        "SLURM_NODEID": "0",
    }
    return {**step, "SLURM_PROCID": str(rank), "SLURM_LOCALID": str(rank), **changes}


@pytest.mark.slow
def test_tasks_of_srun_train_as_one_job(workplace: Workplace):
    tasks = [workplace.start(TRAIN, *words(data="data/data.yaml"), environ=slurm(rank)) for rank in range(2)]
    ended = [task.end() for task in tasks]
    assert [task.code for task in ended] == [0, 0], ended[0].err + ended[1].err
    (run_dir,) = workplace.runs
    assert epochs_in(run_dir) == [1]
    assert "2 ranks on cpu" in (run_dir / "train.log").read_text()


@pytest.mark.slow
def test_ranks_that_composed_different_arguments_end_with_the_difference(workplace: Workplace):
    environments = [slurm(rank, MASTER_PORT="15107") for rank in range(2)]
    tasks = [workplace.start(TRAIN, *words(data="data/data.yaml", seed=rank), environ=environments[rank]) for rank in range(2)]
    ended = [task.end() for task in tasks]
    assert [task.code for task in ended] == [1, 1]
    assert "rank 1 has seed=1 where rank 0 has 0" in ended[0].err
    assert ended[1].err.strip() == ""
    assert list(workplace.folder.glob("outputs/*")) == []


@pytest.mark.slow
def test_a_local_rank_without_a_launcher_is_answered_in_one_line(workplace: Workplace):
    ended = workplace.run(TRAIN, "--local-rank=0", *words(data="data/data.yaml"))
    assert ended.code == 1
    assert "torchrun" in ended.err and len(ended.err.strip().splitlines()) == 1


def test_a_local_rank_of_an_old_launcher_is_taken_from_the_command_line():
    environ = {name: value for name, value in RANK_VARIABLES.items() if name != "LOCAL_RANK"}
    arguments = arguments_for_rank(["--local_rank", "1", "epochs=1"], environ)
    assert environ["LOCAL_RANK"] == "1"
    assert arguments[-1] == "epochs=1" and "--local_rank" not in arguments


def test_other_ranks_write_nothing_whatever_the_command_line_says():
    given = ["hydra.run.dir=elsewhere", "hydra.output_subdir=.config", "hydra/job_logging=default", "epochs=1"]
    arguments = arguments_for_rank(given, dict(RANK_VARIABLES))
    assert arguments == ["hydra.output_subdir=null", "hydra/job_logging=disabled", "hydra/hydra_logging=disabled", "hydra.run.dir=.", "epochs=1"]
    assert arguments_for_rank(given, {**RANK_VARIABLES, "RANK": "0", "LOCAL_RANK": "0"}) == given


@pytest.mark.parametrize("sweep", ["-m", "--multirun", "hydra.mode=MULTIRUN"])
def test_every_way_to_ask_for_a_sweep_is_refused_under_torchrun(sweep):
    with pytest.raises(UserError, match="start it without torchrun"):
        arguments_for_rank([sweep, "seed=1,2"], dict(RANK_VARIABLES))
