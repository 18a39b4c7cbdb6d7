"""Stand-ins for the services that trackers send to, and a tracker beside its table."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

from libreyolo.interfaces.events import CheckpointSaved, EpochEnd, Listener
from libreyolo.record.tables import ResultsTable
from libreyolo.record.trackers import TrackedRun, trackers_of
from tests.unit.record.conftest import row_of


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
