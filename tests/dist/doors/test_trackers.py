"""Two ranks, a resumed run and a sweep in every tracker: one run each, a step for each epoch, the numbers of results.csv."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from libreyolo.record.trackers.mlflow import allowed_name
from tests.dist.doors.conftest import LIKE_TRAIN_PY, TRAIN, Ended, Workplace, epochs_in, rows, words
from tests.dist.doors.tracked import Scalars, mlflow_runs, tensorboard_scalars, wandb_runs

pytest.importorskip("tensorboard")
pytest.importorskip("mlflow")
pytestmark = pytest.mark.slow

OFFLINE = {"WANDB_MODE": "offline", "MLFLOW_DISABLE_TELEMETRY": "true"}
ALL = "loggers=[csv,tensorboard,wandb,mlflow]"
# A job of the sweep that fails in its second epoch.
FAILS = """
whole_epoch = trainer.Trainer._train_epoch
def failing(self, epoch):
    if self.plan.seed == 2 and epoch == 1:
        raise UserError("seed 2 was not a lucky one.")
    return whole_epoch(self, epoch)
trainer.Trainer._train_epoch = failing
"""


def directories(place: Workplace) -> list[Path]:
    """Those of runs and sweeps; MLflow's files lie beside them."""
    return [path for path in place.runs if path.parent.name != "mlflow_files"]


def from_table(run_dir: Path) -> Scalars:
    """The numbers of results.csv as a tracker's scalars."""
    table: Scalars = {}
    for row in rows(run_dir):
        for name, cell in row.items():
            if cell and name != "epoch" and not name.endswith("_name"):
                table.setdefault(name, []).append((int(row["epoch"]), float(cell)))
    return table


def joined(parts: list[Scalars]) -> Scalars:
    return {name: [point for part in parts for point in part.get(name, [])] for name in {name for part in parts for name in part}}


def in_single_precision(scalars: Scalars) -> Scalars:
    return {name: [(step, pytest.approx(value, rel=1e-6)) for step, value in points] for name, points in scalars.items()}


def assert_all_hold_the_table(run_dir: Path, in_mlflow: Scalars) -> None:
    table = from_table(run_dir)
    assert {"train/box_loss", "lr/group0", "metrics/mAP50-95", "class/red/mAP50-95", "system/images_per_second"} <= set(table)
    assert [step for step, _ in table["train/loss"]] == epochs_in(run_dir)
    assert joined([run.scalars for run in wandb_runs(run_dir)]) == table
    assert in_mlflow == {allowed_name(name): points for name, points in table.items()}
    assert tensorboard_scalars(run_dir) == in_single_precision(table)
    lines = [json.loads(line) for line in (run_dir / "metrics.jsonl").read_text().splitlines()]
    assert [[(row["epoch"], row[name]) for row in lines if row[name] is not None] for name in table] == list(table.values())


@pytest.fixture(scope="module")
def swept(shared_workplace: Workplace) -> tuple[Ended, Path]:
    """Two of three epochs on two ranks, as the only job of a sweep."""
    job = words(nproc=2, data="data/data.yaml", epochs=3, stop_after_epoch=2, seed=7)
    ended = shared_workplace.run(TRAIN, "-m", *job, ALL, "tags=[night]", "log_checkpoint=true", environ=OFFLINE)
    assert ended.code == 0, ended.err
    (sweep_dir,) = directories(shared_workplace)
    return ended, sweep_dir / "0"


def test_two_ranks_leave_one_run_in_each_tracker_with_the_numbers_of_the_table(swept, shared_workplace):
    ended, run_dir = swept
    ((run, scalars),) = mlflow_runs(shared_workplace.folder / "outputs" / "mlflow.db")
    assert epochs_in(run_dir) == [1, 2]
    assert_all_hold_the_table(run_dir, scalars)
    (in_wandb,) = wandb_runs(run_dir)
    assert len(list((run_dir / "tensorboard").iterdir())) == 1
    group = "/".join(run_dir.parent.parts[-2:])
    assert (in_wandb.group, run.data.tags["group"], run.data.tags["tags"]) == (group, group, "night")
    assert (in_wandb.exit_code, run.info.status) == (0, "FINISHED")
    assert (in_wandb.config["seed"], run.data.params["seed"], run.info.run_name) == (7, "7", f"{group}/0")
    stored = shared_workplace.folder / "outputs" / "mlflow_files" / run.info.run_id / "artifacts" / "weights" / "best.pt"
    assert stored.read_bytes() == (run_dir / "weights" / "best.pt").read_bytes()
    assert "WARNING" not in ended.err


def test_a_resumed_run_is_appended_to_the_same_runs(swept, shared_workplace):
    _, run_dir = swept
    before = wandb_runs(run_dir)[0]
    relative = run_dir.relative_to(shared_workplace.folder)
    ended = shared_workplace.run(TRAIN, f"resume={relative}", "nproc=2", "device=cpu", "project=elsewhere", environ=OFFLINE)
    assert ended.code == 0, ended.err
    assert epochs_in(run_dir) == [1, 2, 3]
    ((run, scalars),) = mlflow_runs(shared_workplace.folder / "outputs" / "mlflow.db")
    assert run.info.status == "FINISHED"
    assert_all_hold_the_table(run_dir, scalars)
    first, second = wandb_runs(run_dir)
    assert first.scalars == before.scalars  # nothing is dropped or overwritten
    assert (first.id, first.group) == (second.id, second.group)


def test_a_sweep_of_three_jobs_gives_three_runs_in_one_group_the_failed_one_marked(workplace):
    script = workplace.script(LIKE_TRAIN_PY.format(patch=FAILS))
    ended = workplace.run(script, "-m", *words(data="data/data.yaml", epochs=2, seed="1,2,3"), ALL, environ=OFFLINE)
    assert ended.code == 1
    assert "1 of 3 jobs failed:" in ended.err and "seed 2 was not a lucky one." in ended.err
    (sweep_dir,) = directories(workplace)
    in_mlflow = mlflow_runs(workplace.folder / "outputs" / "mlflow.db")
    assert [run.info.status for run, _ in in_mlflow] == ["FINISHED", "FAILED", "FINISHED"]
    in_wandb = []
    for number, (run, scalars) in enumerate(in_mlflow):
        run_dir = sweep_dir / str(number)
        assert epochs_in(run_dir) == ([1] if number == 1 else [1, 2])
        assert_all_hold_the_table(run_dir, scalars)
        assert run.info.run_name == "/".join(run_dir.parts[-3:])
        in_wandb += wandb_runs(run_dir)
    assert [run.exit_code for run in in_wandb] == [0, 1, 0]
    assert [run.config["seed"] for run in in_wandb] == [1, 2, 3]
    groups = {run.group for run in in_wandb} | {run.data.tags["group"] for run, _ in in_mlflow}
    assert groups == {"/".join(sweep_dir.parts[-2:])}
    assert len({run.id for run in in_wandb}) == 3


def test_services_that_are_down_and_a_folder_that_cannot_be_written_cost_one_warning_each(workplace):
    closed = "http://127.0.0.1:9"
    down = {"WANDB_BASE_URL": closed, "WANDB_API_KEY": "0" * 40, "WANDB_MODE": "online", "WANDB_INIT_TIMEOUT": "2"}
    down |= {"MLFLOW_TRACKING_URI": closed, "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "0", "MLFLOW_DISABLE_TELEMETRY": "true"}
    (workplace.folder / "out").mkdir()
    (workplace.folder / "out" / "tensorboard").touch()
    ended = workplace.run(TRAIN, *words(data="data/data.yaml", epochs=2), ALL, "hydra.run.dir=out", environ=down)
    assert ended.code == 0, ended.err
    assert epochs_in(workplace.folder / "out") == [1, 2]
    warnings = [line for line in (workplace.folder / "out" / "train.log").read_text().splitlines() if " WARNING " in line]
    assert sorted(line.split(": ", 1)[1].split(" (")[0] for line in warnings) == ["mlflow failed", "tensorboard failed", "wandb could not go online"]
    (kept,) = [run for run in wandb_runs(workplace.folder / "out") if run.scalars]
    assert kept.scalars == from_table(workplace.folder / "out")  # nothing is lost: `wandb sync` sends it
