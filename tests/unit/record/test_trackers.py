"""Trackers, with stand-ins for the services; TensorBoard is read back from its files."""

from __future__ import annotations

import errno
import io
import logging
import sys
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from libreyolo.errors import UserError
from libreyolo.interfaces.events import EpochEnd, TrainEnd, TrainFailed
from libreyolo.record.trackers import Tracker, base, numbers_of, require_packages, trackers_of
from libreyolo.record.trackers.mlflow import allowed_name
from libreyolo.record.trackers.together import SECONDS_WHEN_INTERRUPTED
from tests.unit.record.conftest import row_of, start_event
from tests.unit.record.services import epoch, listeners, tracked, unreachable


def test_epochs_trained_again_from_an_older_checkpoint_stay_as_they_were(wandb, run_epochs, tmp_path):
    run_epochs(listeners("wandb", tmp_path), tmp_path, 3)
    run_epochs(listeners("wandb", tmp_path), tmp_path, 4, start_epoch=1)
    assert [[step for step, _ in run["logged"]] for run in wandb.runs] == [[1, 2, 3], [4]]


def test_an_epoch_without_its_checkpoint_is_not_sent_because_it_will_be_trained_again(wandb, run_epochs, tmp_path):
    first = listeners("wandb", tmp_path)
    run_epochs(first, tmp_path, 2, finish=False)
    for listener in first:
        listener.on_epoch_end(EpochEnd(3, row_of(3), True))
        listener.on_exception(TrainFailed(tmp_path, RuntimeError()))
    run_epochs(listeners("wandb", tmp_path), tmp_path, 4, start_epoch=2)
    assert [[step for step, _ in run["logged"]] for run in wandb.runs] == [[1, 2], [3, 4]]
    assert [run["exit_code"] for run in wandb.runs] == [1, 0]


def test_what_an_interrupted_process_had_not_sent_is_sent_first_when_resumed(wandb, run_epochs, tmp_path):
    first = listeners("wandb", tmp_path)
    run_epochs(first, tmp_path, 1, finish=False)
    first[1].trackers[0]._background.finish(10)  # as if the process had died: what follows reaches the table only
    for number in (2, 3):
        first[0].on_epoch_end(EpochEnd(number, row_of(number), True))
    run_epochs(listeners("wandb", tmp_path), tmp_path, 4, start_epoch=3)
    assert [[step for step, _ in run["logged"]] for run in wandb.runs] == [[1], [2, 3, 4]]
    assert wandb.runs[1]["logged"][0][1] == numbers_of(row_of(2))


def test_failures_while_training_warn_once_and_what_was_not_sent_is_sent_later(wandb, tmp_path, caplog):
    tracker = trackers_of(["wandb"], tracked(tmp_path))
    tracker.on_train_start(start_event(tmp_path))
    with caplog.at_level(logging.WARNING):
        for number, state in ((1, lambda: None), (2, unreachable), (3, unreachable), (4, lambda: None)):
            tracker.trackers[0]._background.put(lambda state=state: setattr(wandb, "broken", state))
            epoch(tracker, number)
        tracker.on_train_end(TrainEnd(tmp_path, {}))
    (warning,) = [record.getMessage() for record in caplog.records]
    assert warning == "wandb failed (ConnectionError: no network); training goes on, and results.csv has every number."
    assert [step for step, _ in wandb.runs[0]["logged"]] == [1, 2, 3, 4]
    assert wandb.runs[0]["exit_code"] == 0


def test_after_a_failure_a_tracker_is_left_alone_for_a_while_and_tried_again_at_the_end(wandb, tmp_path, monkeypatch):
    tries = []
    monkeypatch.setattr(base, "time", SimpleNamespace(monotonic=lambda: 10.0 * len(clock)))
    clock: list[int] = []
    wandb.broken = lambda: tries.append(len(clock)) or unreachable()
    monkeypatch.setenv("WANDB_MODE", "offline")  # so that only sending fails
    tracker = trackers_of(["wandb"], tracked(tmp_path))
    monkeypatch.setattr(wandb, "init", lambda init=wandb.init, **kwargs: init(mode="offline", **kwargs))
    tracker.on_train_start(start_event(tmp_path))
    for number in range(1, 21):
        tracker.trackers[0]._background.put(lambda: clock.append(1))
        epoch(tracker, number)
    tracker.on_train_end(TrainEnd(tmp_path, {}))
    assert tries == [1, 4, 10, 20]  # 30 s later, 60 s later, and at the end


def test_a_tracker_that_hangs_holds_up_neither_the_training_nor_its_end(wandb, tmp_path, caplog, monkeypatch):
    monkeypatch.setattr(base, "SECONDS_AT_THE_END", 0.05)
    release = threading.Event()
    wandb.broken = lambda: release.wait() and None
    tracker = trackers_of(["wandb"], tracked(tmp_path))
    tracker.on_train_start(start_event(tmp_path))
    background = tracker.trackers[0]._background
    for number in (1, 2):
        epoch(tracker, number)
    tracker.on_train_end(TrainEnd(tmp_path, {}))  # returns although nothing was sent
    assert [record.getMessage().split(" in time")[0] for record in caplog.records] == ["wandb did not take everything"]
    assert wandb.runs == []
    release.set()
    assert background.finish(10)
    assert [step for step, _ in wandb.runs[0]["logged"]] == [1, 2]


def test_a_process_that_is_ended_while_it_waits_still_closes_the_other_trackers(wandb, mlflow, tmp_path, monkeypatch):
    together = trackers_of(["wandb", "mlflow"], tracked(tmp_path))
    together.on_train_start(start_event(tmp_path))
    wait, calls = Tracker.wait, []

    def signalled(tracker: Tracker, seconds: float) -> None:
        calls.append((tracker.name, seconds <= SECONDS_WHEN_INTERRUPTED))
        if len(calls) == 1:
            raise SystemExit(143)  # as the handler of SIGTERM does
        wait(tracker, seconds)

    monkeypatch.setattr(Tracker, "wait", signalled)
    with pytest.raises(SystemExit):
        together.on_exception(TrainFailed(tmp_path, UserError("the loss is not finite")))
    assert calls == [("wandb", False), ("wandb", True), ("mlflow", True)]
    assert (wandb.runs[0]["exit_code"], mlflow.runs["run0"]["status"]) == (1, "FAILED")


@pytest.mark.parametrize(("error", "status"), [(RuntimeError(), "FAILED"), (KeyboardInterrupt(), "KILLED"), (SystemExit(143), "FAILED")])
def test_every_ending_closes_the_run_with_its_mark(mlflow, tmp_path, error, status):
    tracker = trackers_of(["mlflow"], tracked(tmp_path))
    tracker.on_train_start(start_event(tmp_path))
    tracker.on_exception(TrainFailed(tmp_path, error))
    assert mlflow.runs["run0"]["status"] == status


def test_the_best_checkpoint_is_stored_only_where_asked(mlflow, tmp_path):
    best = tmp_path / "best.pt"
    best.touch()
    for wanted in (False, True):
        tracker = trackers_of(["mlflow"], tracked(tmp_path, log_checkpoint=wanted))
        tracker.on_train_start(start_event(tmp_path))
        tracker.on_train_end(TrainEnd(tmp_path, {"best_checkpoint": str(best)}))
    assert [run["files"] for run in mlflow.runs.values()] == [[], [(str(best), "weights")]]


@pytest.mark.parametrize(("name", "module"), [("wandb", "wandb"), ("mlflow", "mlflow"), ("tensorboard", "torch.utils.tensorboard")])
def test_a_missing_package_is_told_before_training_with_what_to_install(name, module, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, module, None)
    monkeypatch.setitem(sys.modules, name, None)
    for attempt in (lambda: trackers_of([name], tracked(tmp_path)), lambda: require_packages(["csv", name])):
        with pytest.raises(UserError, match=rf"loggers=\[{name}\] needs the package {name}, .* pip install 'libreyolo-train\[trackers\]'"):
            attempt()


def test_an_unknown_tracker_is_told_with_the_nearest_name(tmp_path):
    with pytest.raises(UserError, match=r"'tensorbord' is not one of csv, tensorboard, wandb, mlflow\. Did you mean 'tensorboard'\?"):
        trackers_of(["tensorbord"], tracked(tmp_path))


def test_no_tracker_and_the_table_alone_add_no_listener(tmp_path):
    assert trackers_of([], tracked(tmp_path)).trackers == trackers_of(["csv"], tracked(tmp_path)).trackers == []


def test_numbers_are_the_finite_ones():
    row = {"epoch": 3, "a": 1, "b": True, "c": float("nan"), "d": float("inf"), "e": None, "f": "text", "g": 0.5}
    assert numbers_of(row) == {"a": 1.0, "b": 1.0, "g": 0.5}


def test_mlflow_gets_one_run_with_names_it_allows(mlflow, run_epochs, tmp_path):
    config = {"lr0": 0.01, "model": {"size": "s"}, **{f"key{i}": i for i in range(150)}}
    run_epochs(listeners("mlflow", tmp_path, config=config, group="g", tags=["a", "b"]), tmp_path, 2)
    other_place = tmp_path / "elsewhere"  # a resumed run stays in its store, wherever the command now says that runs go
    run_epochs(listeners("mlflow", tmp_path, config=config, project_dir=other_place), tmp_path, 4, start_epoch=2)
    assert list(mlflow.runs) == ["run0"]
    run = mlflow.runs["run0"]
    assert run["uri"] == f"sqlite:///{tmp_path / 'mlflow.db'}"
    assert run["tags"] == {"group": "g", "tags": "a,b", "run_dir": str(tmp_path)}
    assert ("model.size", "s") in run["params"]
    assert len(run["params"]) == 152
    assert run["status"] == "FINISHED"
    losses = [(metric.value, metric.step) for metric in run["metrics"] if metric.key == "train/loss"]
    assert losses == [(8.0, 1), (4.0, 2), (8.0 / 3, 3), (2.0, 4)]
    assert "metrics/precision_B" in {metric.key for metric in run["metrics"]}


@pytest.mark.parametrize(
    ("name", "allowed"), [("metrics/mAP50-95(B)", "metrics/mAP50-95_B"), ("class/a, b/mAP", "class/a_ b/mAP"), ("class/../x", "class/.._/x")]
)
def test_mlflow_names_keep_what_is_allowed(name, allowed):
    assert allowed_name(name) == allowed


def scalars(run_dir: Path, name: str = "train/loss") -> list[tuple[int, float]]:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(run_dir / "tensorboard"))
    events.Reload()
    return [(event.step, round(event.value, 4)) for event in events.Scalars(name)]


def test_tensorboard_files_hold_each_epoch_once_after_a_resume_and_after_a_new_start(run_epochs, tmp_path):
    pytest.importorskip("tensorboard")
    run_epochs(listeners("tensorboard", tmp_path), tmp_path, 3)
    run_epochs(listeners("tensorboard", tmp_path), tmp_path, 4, start_epoch=2)
    assert scalars(tmp_path) == [(1, 8.0), (2, 4.0), (3, 2.6667), (4, 2.0)]
    assert scalars(tmp_path, "metrics/precision(B)") == [(1, 0.5), (3, 0.5)]
    run_epochs(listeners("tensorboard", tmp_path), tmp_path, 2)  # into a directory that holds a run: exist_ok=true
    assert scalars(tmp_path) == [(1, 8.0), (2, 4.0)]


def test_a_disk_without_room_costs_one_warning_and_what_is_there_can_still_be_read(tmp_path, monkeypatch, caplog):
    pytest.importorskip("tensorboard")

    class SmallDisk(io.FileIO):
        """Takes `room` bytes in all."""

        room = 1000

        def write(self, data: Any) -> int:
            took = super().write(data[: SmallDisk.room])
            SmallDisk.room -= took
            if took < len(data) and SmallDisk.room == 0:
                raise OSError(errno.ENOSPC, "No space left on device")
            return took

    opened = Path.open
    small = lambda path, *a, **kw: SmallDisk(path, "ab") if path.parent.name == "tensorboard" else opened(path, *a, **kw)  # noqa: E731
    monkeypatch.setattr(Path, "open", small)
    table, together = listeners("tensorboard", tmp_path)
    table.on_train_start(start_event(tmp_path))
    together.on_train_start(start_event(tmp_path))
    with caplog.at_level(logging.WARNING):
        for number in range(1, 6):
            epoch(together, number)
        together.trackers[0]._background.put(lambda: setattr(SmallDisk, "room", 10_000))  # somebody tidies up
        together.on_train_end(TrainEnd(tmp_path, {}))
    (warning,) = [record.getMessage() for record in caplog.records]
    assert warning.startswith("tensorboard failed (OSError: [Errno 28] No space left on device); training goes on")
    assert [step for step, _ in scalars(tmp_path)] == [1, 2, 3, 4, 5]


def test_a_folder_that_cannot_be_made_costs_one_warning(run_epochs, tmp_path, caplog):
    pytest.importorskip("tensorboard")
    (tmp_path / "tensorboard").touch()
    run_epochs(listeners("tensorboard", tmp_path), tmp_path, 3)
    assert [record.getMessage().split(" (")[0] for record in caplog.records] == ["tensorboard failed"]
