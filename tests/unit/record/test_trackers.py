"""Trackers, with stand-ins for the services; TensorBoard is read back from its files."""

from __future__ import annotations

import errno
import io
import logging
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from libreyolo.errors import UserError
from libreyolo.interfaces.events import CheckpointSaved, EpochEnd, Listener, TrainEnd, TrainFailed
from libreyolo.record.tables import ResultsTable
from libreyolo.record.trackers import TrackedRun, Tracker, base, numbers_of, require_packages, trackers_of
from libreyolo.record.trackers.mlflow import allowed_name
from libreyolo.record.trackers.base import SECONDS_WITH_A_CHECKPOINT
from libreyolo.record.trackers.together import SECONDS_WHEN_INTERRUPTED
from libreyolo.record.trackers.wandb import SECONDS_TO_FINISH, SECONDS_TO_STORE
from tests.unit.record.conftest import row_of, start_event


def tracked(run_dir: Path, **changes: Any) -> TrackedRun:
    return TrackedRun(**{"run_dir": run_dir, "name": run_dir.name, "config": {"lr0": 0.01}, "project_dir": run_dir, **changes})


def listeners(name: str, run_dir: Path, **changes: Any) -> list[Listener]:
    """The table, which a resumed tracker reads, and the tracker."""
    return [ResultsTable(run_dir), trackers_of([name], tracked(run_dir, **changes))]


def epoch(listener: Listener, number: int) -> None:
    """One epoch up to its checkpoint."""
    listener.on_epoch_end(EpochEnd(number, row_of(number), True))
    listener.on_checkpoint(CheckpointSaved(Path("weights/last.pt"), number, False))


class FakeWandb(ModuleType):
    """Online unless told otherwise; `down` is called where the network is needed."""

    run = None

    class Settings(SimpleNamespace):
        model_fields = ("silent", "init_timeout")

    def __init__(self) -> None:
        super().__init__("wandb")
        self.runs: list[dict[str, Any]] = []
        self.broken: Callable[[], None] = lambda: None
        self.key = True
        self.global_settings = SimpleNamespace(mode="online")
        self.stored: list[tuple[str, float | None]] = []  # files, and how long was waited for each

    def Artifact(self, name: str, type: str) -> SimpleNamespace:
        return SimpleNamespace(add_file=lambda path, name: self.stored.append((path, None)))

    def setup(self) -> SimpleNamespace:
        return SimpleNamespace(settings=self.global_settings)

    def termsetup(self, settings: SimpleNamespace, logger: Any) -> None:
        self.speech = (settings, logger)

    def login(self, prompt: bool) -> bool:
        assert not prompt
        return self.key

    def init(self, **kwargs: Any) -> SimpleNamespace:
        offline = kwargs.get("mode") == "offline"
        if not offline:
            self.broken()
        run: dict[str, Any] = {"init": kwargs, "logged": [], "exit_code": None}
        earlier = [step for old in self.runs if kwargs["id"] for step, _ in old["logged"]] if not offline else []
        self.runs.append(run)

        def log(values: dict[str, float], step: int, commit: bool) -> None:
            self.broken()
            run["logged"].append((step, values))

        return SimpleNamespace(
            id=kwargs["id"] or "id7",
            step=max(earlier, default=-1) + 1,
            offline=offline,
            disabled=False,
            url="https://wandb.test/id7",
            dir=f"{kwargs['dir']}/wandb/run-1/files",
            log=log,
            log_artifact=lambda artifact: SimpleNamespace(wait=lambda timeout: self.stored.append((self.stored.pop()[0], timeout))),
            finish=lambda exit_code: run.update(exit_code=exit_code),
        )


def unreachable() -> None:
    raise ConnectionError("no network")


@pytest.fixture
def wandb(monkeypatch) -> FakeWandb:
    fake = FakeWandb()
    monkeypatch.setitem(sys.modules, "wandb", fake)
    for name in ("WANDB_MODE", "WANDB_PROJECT", "WANDB_NAME"):
        monkeypatch.delenv(name, raising=False)
    return fake


def test_wandb_gets_the_numbers_of_the_table_with_the_epoch_as_step(wandb, run_epochs, tmp_path):
    run_epochs(listeners("wandb", tmp_path, tags=["night"], group="day/time"), tmp_path, 2)
    (run,) = wandb.runs
    assert [step for step, _ in run["logged"]] == [1, 2]
    assert run["logged"][0][1] == numbers_of(row_of(1))
    assert run["logged"][0][1]["metrics/precision(B)"] == 0.5
    assert "best_metric_name" not in run["logged"][0][1]
    assert run["exit_code"] == 0
    expected = {"config": {"lr0": 0.01}, "name": tmp_path.name, "dir": str(tmp_path), "tags": ["night"], "group": "day/time", "id": None}
    assert {key: run["init"][key] for key in expected} == expected
    assert run["init"]["project"] == "libreyolo"


def test_wandb_goes_on_in_the_same_run_when_resumed_and_not_when_begun_anew(wandb, run_epochs, tmp_path):
    for start_epoch in (0, 2, 0):
        run_epochs(listeners("wandb", tmp_path, group="first" if start_epoch == 0 else ""), tmp_path, start_epoch + 2, start_epoch=start_epoch)
    assert [run["init"]["id"] for run in wandb.runs] == [None, "id7", None]
    assert [run["init"]["group"] for run in wandb.runs] == ["first", "first", "first"]  # a resumed job of a sweep stays in its group
    assert [[step for step, _ in run["logged"]] for run in wandb.runs] == [[1, 2], [3, 4], [1, 2]]


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


def test_a_run_that_cannot_go_online_is_kept_offline_with_one_warning(wandb, tmp_path, caplog):
    wandb.broken = unreachable
    tracker = trackers_of(["wandb"], tracked(tmp_path))
    with caplog.at_level(logging.WARNING):
        tracker.on_train_start(start_event(tmp_path))
        tracker.trackers[0]._background.put(lambda: setattr(wandb, "broken", lambda: None))
        for number in (1, 2):
            epoch(tracker, number)
        tracker.on_train_end(TrainEnd(tmp_path, {}))
    (warning,) = [record.getMessage() for record in caplog.records]
    assert warning == (
        f"wandb could not go online (ConnectionError: no network); the run is kept offline: send it with wandb sync {tmp_path}/wandb/run-1"
    )
    assert [step for step, _ in wandb.runs[0]["logged"]] == [1, 2]


def test_what_wandb_cannot_note_in_its_own_debug_log_is_told_to_nobody(wandb, run_epochs, tmp_path, monkeypatch, capsys):
    def refuse(text: str) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    logger, init = logging.getLogger("wandb"), wandb.init
    full = logging.StreamHandler(SimpleNamespace(write=refuse))

    def init_with_a_log(**kwargs: Any) -> SimpleNamespace:
        logger.addHandler(full)
        logger.error("a run begins")
        return init(**kwargs)

    monkeypatch.setattr(wandb, "init", init_with_a_log)
    run_epochs(listeners("wandb", tmp_path), tmp_path, 2)
    logger.error("something later")
    logger.removeHandler(full)
    assert "Logging error" not in capsys.readouterr().err
    assert logger.addHandler.__func__ is logging.Logger.addHandler  # as it was
    assert [step for step, _ in wandb.runs[0]["logged"]] == [1, 2]


def test_what_wandb_itself_warns_about_is_the_one_warning_and_afterwards_it_speaks_for_itself_again(wandb, tmp_path, caplog):
    tracker = trackers_of(["wandb"], tracked(tmp_path))
    tracker.on_train_start(start_event(tmp_path))
    tracker.trackers[0]._background.put(lambda: [wandb.speech[1].warning(f"wandb: WARNING {words}") for words in ("No room.", "Really none.")])
    tracker.on_train_end(TrainEnd(tmp_path, {}))
    (warning,) = [record.getMessage() for record in caplog.records]
    assert warning == "wandb: No room. Training goes on, and results.csv has every number."
    assert wandb.speech == (wandb.global_settings, None)


@pytest.mark.parametrize(("mode", "seconds"), [("online", SECONDS_TO_STORE), ("offline", None)])
def test_wandb_waits_for_the_best_checkpoint_where_there_is_somebody_to_take_it(wandb, tmp_path, monkeypatch, mode, seconds):
    init = wandb.init
    monkeypatch.setattr(wandb, "init", lambda **kwargs: init(**kwargs, mode=mode))
    (best := tmp_path / "best.pt").touch()
    tracker = trackers_of(["wandb"], tracked(tmp_path, log_checkpoint=True))
    tracker.on_train_start(start_event(tmp_path))
    tracker.on_train_end(TrainEnd(tmp_path, {"best_checkpoint": str(best)}))
    assert wandb.stored == [(str(best), seconds)]
    assert SECONDS_TO_STORE + SECONDS_TO_FINISH < SECONDS_WITH_A_CHECKPOINT and SECONDS_TO_FINISH < base.SECONDS_AT_THE_END


def test_without_a_key_wandb_never_asks_and_the_run_is_kept_offline(wandb, run_epochs, tmp_path, caplog):
    wandb.key = False
    run_epochs(listeners("wandb", tmp_path), tmp_path, 1)
    assert "no API key: run wandb login, or set WANDB_API_KEY" in caplog.text
    assert wandb.runs[0]["init"]["mode"] == "offline"


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


class FakeMlflow(ModuleType):
    def __init__(self) -> None:
        super().__init__("mlflow")
        self.entities = SimpleNamespace(
            Metric=lambda *a: SimpleNamespace(**dict(zip(("key", "value", "time", "step"), a, strict=True))), Param=tuple_of
        )
        self.runs: dict[str, dict[str, Any]] = {}
        self.experiments: list[str] = []
        self.tracking_uri = ""

    def is_tracking_uri_set(self) -> bool:
        return False

    def MlflowClient(self, tracking_uri: str | None) -> FakeMlflow:
        self.tracking_uri = tracking_uri or "default"
        Path(self.tracking_uri.removeprefix("sqlite:///")).touch()
        return self

    def get_experiment_by_name(self, name: str) -> SimpleNamespace | None:
        return SimpleNamespace(experiment_id=name) if name in self.experiments else None

    def create_experiment(self, name: str, artifact_location: str | None) -> str:
        self.experiments.append(name)
        return name

    def create_run(self, experiment_id: str, run_name: str, tags: dict[str, str]) -> SimpleNamespace:
        run_id = f"run{len(self.runs)}"
        self.runs[run_id] = {"metrics": [], "params": [], "status": "RUNNING", "tags": tags, "files": [], "uri": self.tracking_uri}
        return SimpleNamespace(info=SimpleNamespace(run_id=run_id))

    def get_metric_history(self, run_id: str, key: str) -> list[SimpleNamespace]:
        return [metric for metric in self.runs[run_id]["metrics"] if metric.key == key]

    def log_batch(self, run_id: str, metrics: Any = (), params: Any = ()) -> None:
        assert len(params) <= 100 and len(metrics) <= 1000
        self.runs[run_id]["metrics"] += metrics
        self.runs[run_id]["params"] += params

    def update_run(self, run_id: str, status: str) -> None:
        self.runs[run_id]["status"] = status

    def set_terminated(self, run_id: str, status: str) -> None:
        self.runs[run_id]["status"] = status

    def log_artifact(self, run_id: str, path: str, folder: str) -> None:
        self.runs[run_id]["files"].append((path, folder))


def tuple_of(*values: Any) -> tuple[Any, ...]:
    return values


@pytest.fixture
def mlflow(monkeypatch) -> FakeMlflow:
    fake = FakeMlflow()
    monkeypatch.setitem(sys.modules, "mlflow", fake)
    return fake


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
