"""Trackers, with stand-ins for the services; TensorBoard is read back from its files."""

from __future__ import annotations

import logging
import sys
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from libreyolo.errors import UserError
from libreyolo.interfaces.events import EpochEnd, TrainEnd, TrainFailed
from libreyolo.record.trackers import numbers_of, tracker_listeners
from tests.unit.record.conftest import row_of, start_event


class FakeWandb(ModuleType):
    def __init__(self) -> None:
        super().__init__("wandb")
        self.runs: list[dict[str, Any]] = []
        self.broken = False

    def init(self, **kwargs: Any) -> SimpleNamespace:
        run: dict[str, Any] = {"init": kwargs, "logged": [], "exit_code": None}
        self.runs.append(run)

        def log(values: dict[str, float], step: int) -> None:
            if self.broken:
                raise ConnectionError("no network")
            run["logged"].append((step, values))

        return SimpleNamespace(id=kwargs["id"] or "id7", log=log, finish=lambda exit_code: run.update(exit_code=exit_code))


@pytest.fixture
def wandb(monkeypatch) -> FakeWandb:
    fake = FakeWandb()
    monkeypatch.setitem(sys.modules, "wandb", fake)
    return fake


def test_wandb_gets_the_numbers_of_the_table_with_the_epoch_as_step(wandb, run_epochs, tmp_path):
    run_epochs(tracker_listeners(["csv", "wandb"], tmp_path, {"lr0": 0.01}), tmp_path, 2)
    (run,) = wandb.runs
    assert [step for step, _ in run["logged"]] == [1, 2]
    assert run["logged"][0][1] == numbers_of(row_of(1))
    assert run["logged"][0][1]["metrics/precision(B)"] == 0.5
    assert "best_metric_name" not in run["logged"][0][1]
    assert run["exit_code"] == 0
    assert (run["init"]["config"], run["init"]["name"], run["init"]["dir"]) == ({"lr0": 0.01}, tmp_path.name, str(tmp_path))


def test_wandb_goes_on_in_the_same_run_when_resumed_and_not_when_begun_anew(wandb, run_epochs, tmp_path):
    for start_epoch in (0, 2, 0):
        run_epochs(tracker_listeners(["wandb"], tmp_path, {}), tmp_path, start_epoch + 1, start_epoch=start_epoch)
    assert [run["init"]["id"] for run in wandb.runs] == [None, "id7", None]
    assert (tmp_path / "wandb_id.txt").read_text() == "id7\n"
    assert wandb.runs[1]["logged"][0][0] == 3


def test_a_failed_run_is_marked_failed(wandb, tmp_path):
    (listener,) = tracker_listeners(["wandb"], tmp_path, {})
    listener.on_train_start(start_event(tmp_path))
    listener.on_exception(TrainFailed(tmp_path, RuntimeError()))
    assert wandb.runs[0]["exit_code"] == 1


def test_failures_while_training_warn_once_and_are_given_up_after_three(wandb, tmp_path, caplog):
    (listener,) = tracker_listeners(["wandb"], tmp_path, {})
    listener.on_train_start(start_event(tmp_path))
    wandb.broken = True
    with caplog.at_level(logging.WARNING):
        for epoch in range(1, 4):
            listener.on_epoch_end(EpochEnd(epoch, row_of(epoch), True))
    wandb.broken = False
    listener.on_epoch_end(EpochEnd(4, row_of(4), True))
    listener.on_train_end(TrainEnd(tmp_path, {}))
    assert [record.getMessage()[:43] for record in caplog.records] == ["wandb failed (ConnectionError: no network);"]
    assert wandb.runs[0]["logged"] == []
    assert wandb.runs[0]["exit_code"] == 0


def test_one_failure_loses_one_epoch_only(wandb, tmp_path):
    (listener,) = tracker_listeners(["wandb"], tmp_path, {})
    listener.on_train_start(start_event(tmp_path))
    for epoch in range(1, 8):
        wandb.broken = epoch % 2 == 0
        listener.on_epoch_end(EpochEnd(epoch, row_of(epoch), True))
    assert [step for step, _ in wandb.runs[0]["logged"]] == [1, 3, 5, 7]


def test_a_tracker_that_cannot_start_is_told_in_a_sentence(wandb, tmp_path, monkeypatch):
    def refuse(**_: Any) -> None:
        raise RuntimeError("not logged in")

    monkeypatch.setattr(wandb, "init", refuse)
    (listener,) = tracker_listeners(["wandb"], tmp_path, {})
    with pytest.raises(UserError, match=r"wandb could not be started \(RuntimeError: not logged in\); mend that or leave it out"):
        listener.on_train_start(start_event(tmp_path))


@pytest.mark.parametrize(("name", "module"), [("wandb", "wandb"), ("mlflow", "mlflow"), ("tensorboard", "torch.utils.tensorboard")])
def test_a_missing_package_is_told_before_training_with_what_to_install(name, module, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(UserError, match=rf"{name} needs.*|loggers=\[{name}\]") as caught:
        tracker_listeners([name], tmp_path, {})
    assert "pip install 'libreyolo-train[trackers]'" in str(caught.value)


def test_an_unknown_tracker_is_told_with_the_nearest_name(tmp_path):
    with pytest.raises(UserError, match=r"'tensorbord' is not one of csv, tensorboard, wandb, mlflow\. Did you mean 'tensorboard'\?"):
        tracker_listeners(["tensorbord"], tmp_path, {})


def test_no_tracker_and_the_table_alone_add_no_listener(tmp_path):
    assert tracker_listeners([], tmp_path, {}) == tracker_listeners(["csv"], tmp_path, {}) == []


def test_numbers_are_the_finite_ones():
    row = {"epoch": 3, "a": 1, "b": True, "c": float("nan"), "d": float("inf"), "e": None, "f": "text", "g": 0.5}
    assert numbers_of(row) == {"a": 1.0, "b": 1.0, "g": 0.5}


class FakeMlflow(ModuleType):
    def __init__(self) -> None:
        super().__init__("mlflow")
        self.entities = SimpleNamespace(Metric=lambda *args: args, Param=lambda *args: args)
        self.runs: dict[str, dict[str, Any]] = {}
        self.experiments: list[str] = []

    def MlflowClient(self) -> FakeMlflow:
        return self

    def get_experiment_by_name(self, name: str) -> SimpleNamespace | None:
        return SimpleNamespace(experiment_id=name) if name in self.experiments else None

    def create_experiment(self, name: str) -> str:
        self.experiments.append(name)
        return name

    def create_run(self, experiment_id: str, run_name: str) -> SimpleNamespace:
        run_id = f"run{len(self.runs)}"
        self.runs[run_id] = {"metrics": [], "params": [], "status": "RUNNING"}
        return SimpleNamespace(info=SimpleNamespace(run_id=run_id))

    def log_batch(self, run_id: str, metrics: Any = (), params: Any = ()) -> None:
        assert len(params) <= 100
        self.runs[run_id]["metrics"] += metrics
        self.runs[run_id]["params"] += params

    def update_run(self, run_id: str, status: str) -> None:
        self.runs[run_id]["status"] = status

    def set_terminated(self, run_id: str, status: str) -> None:
        self.runs[run_id]["status"] = status


def test_mlflow_gets_one_run_with_names_it_allows(run_epochs, tmp_path, monkeypatch):
    fake = FakeMlflow()
    monkeypatch.setitem(sys.modules, "mlflow", fake)
    config = {"lr0": 0.01, "model": {"size": "s"}, **{f"key{i}": i for i in range(150)}}
    run_epochs(tracker_listeners(["mlflow"], tmp_path, config), tmp_path, 2, finish=False)
    run_epochs(tracker_listeners(["mlflow"], tmp_path, config), tmp_path, 4, start_epoch=2)
    assert list(fake.runs) == ["run0"]
    run = fake.runs["run0"]
    assert ("model.size", "s") in run["params"]
    assert len(run["params"]) == 152
    assert run["status"] == "FINISHED"
    losses = [(value, step) for name, value, _, step in run["metrics"] if name == "train/loss"]
    assert losses == [(8.0, 1), (4.0, 2), (8.0 / 3, 3), (2.0, 4)]
    assert "metrics/precision_B" in {name for name, *_ in run["metrics"]}


def test_tensorboard_files_hold_each_epoch_once_after_a_resume(run_epochs, tmp_path):
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    run_epochs(tracker_listeners(["tensorboard"], tmp_path, {}), tmp_path, 3, finish=False)
    run_epochs(tracker_listeners(["tensorboard"], tmp_path, {}), tmp_path, 4, start_epoch=2)
    events = EventAccumulator(str(tmp_path / "tensorboard"))
    events.Reload()
    points = [(event.step, round(event.value, 4)) for event in events.Scalars("train/loss")]
    assert points == [(1, 8.0), (2, 4.0), (3, 2.6667), (4, 2.0)]
    assert "metrics/precision(B)" in events.Tags()["scalars"]
