"""MLflow: a server, or a database beside the runs."""

from __future__ import annotations

import contextlib
import logging
import os
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from libreyolo.record.atomic import write_new
from libreyolo.record.trackers.base import FAILED, FINISHED, KILLED, TrackedRun, Tracker

EXPERIMENT = "libreyolo"
STATUS = {FINISHED: "FINISHED", FAILED: "FAILED", KILLED: "KILLED"}
EVERY_EPOCH = "time"  # a column that no row lacks
MOST_PARAMS, MOST_METRICS = 100, 1000  # in one call to a server


class Mlflow(Tracker):
    """One run at MLflow, where MLFLOW_TRACKING_URI or `mlflow.set_tracking_uri` says, else in `mlflow.db` in the folder of run directories.

    The experiment is "libreyolo" unless MLFLOW_EXPERIMENT_NAME names another. MLflow allows no brackets in names and some other characters
    neither: "metrics/mAP50(B)" is "metrics/mAP50_B" there.
    """

    name = "mlflow"
    module = "mlflow"

    def __init__(self, run: TrackedRun) -> None:
        super().__init__(run)
        self._params_due = False

    def open(self) -> int:
        # Through the client, not the module's "active run": that one is global, and may be the user's own.
        uri, artifacts = self._store()
        self._client = self.package.MlflowClient(tracking_uri=uri)
        if self.memory.id is None or self.memory.where != self._client.tracking_uri:  # an id means nothing in another store
            self.memory.id, self.memory.where = self._new_run(artifacts), self._client.tracking_uri
            self.memory.write(self.memory_path)  # now: after a failure below, the next attempt must find this run
            self._params_due = True
        else:
            self._client.update_run(self.memory.id, status="RUNNING")
        if self._params_due:
            params = [self.package.entities.Param(key, str(value)[:500]) for key, value in _flat(self.run.config)]
            for first in range(0, len(params), MOST_PARAMS):
                self._client.log_batch(self.memory.id, params=params[first : first + MOST_PARAMS])
            self._params_due = False
        return max((metric.step for metric in self._client.get_metric_history(self.memory.id, EVERY_EPOCH)), default=0)

    def send(self, values: dict[str, float], epoch: int) -> None:
        now = int(time.time() * 1000)
        metrics = [self.package.entities.Metric(allowed_name(name), value, now, epoch) for name, value in values.items()]
        metrics.sort(key=lambda metric: bool(metric.key == EVERY_EPOCH))  # last: where it is, the rest of the epoch is too
        for first in range(0, len(metrics), MOST_METRICS):
            self._client.log_batch(self.memory.id, metrics=metrics[first : first + MOST_METRICS])

    def keep_file(self, path: Path) -> None:
        self._client.log_artifact(self.memory.id, str(path), "weights")

    def close(self, ending: str) -> None:
        self._client.set_terminated(self.memory.id, STATUS[ending])

    def _store(self) -> tuple[str | None, str | None]:
        """Return the address of the store, None where MLflow has been told one, and a folder for files, None for the store's own."""
        if self.package.is_tracking_uri_set():
            return None, None
        if self.memory.where:
            return self.memory.where, None
        folder = self.run.project_dir.absolute()
        folder.mkdir(parents=True, exist_ok=True)
        if not (folder / "mlflow.db").exists():
            self._create_database(folder / "mlflow.db")
        return _sqlite(folder / "mlflow.db"), (folder / "mlflow_files").as_uri()

    def _create_database(self, path: Path) -> None:
        """Make an empty database whole or not at all: one whose tables are half made, by a killed run or by two at once, fails for ever."""
        new = self.memory_path.with_name("mlflow_new.db").absolute()
        new.parent.mkdir(parents=True, exist_ok=True)
        new.unlink(missing_ok=True)
        with _quiet_tables():
            self.package.MlflowClient(tracking_uri=_sqlite(new)).get_experiment_by_name(EXPERIMENT)
        write_new(path, new.read_bytes())  # unless a run beside this one was faster
        with contextlib.suppress(OSError):  # still open, where that matters
            new.unlink()

    def _experiment(self, name: str, artifacts: str | None) -> str:
        found = self._client.get_experiment_by_name(name)
        if found is None:
            try:
                return str(self._client.create_experiment(name, artifact_location=artifacts))
            except Exception:
                found = self._client.get_experiment_by_name(name)
                if found is None:  # else a run beside this one was faster
                    raise
        return str(found.experiment_id)

    def _new_run(self, artifacts: str | None) -> str:
        name = os.environ.get("MLFLOW_EXPERIMENT_NAME", EXPERIMENT)
        experiment_id = self._experiment(name, artifacts)
        about = {"group": self.memory.group, "tags": ",".join(self.run.tags), "run_dir": str(self.run.run_dir)}
        tags = {key: value for key, value in about.items() if value}
        return str(self._client.create_run(experiment_id, run_name=self.run.name, tags=tags).info.run_id)


@contextlib.contextmanager
def _quiet_tables() -> Iterator[None]:
    """Keep what MLflow tells of the tables that it makes out of the run's progress."""
    loggers = [logging.getLogger(name) for name in ("mlflow.store.db.utils", "alembic")]
    levels = [logger.level for logger in loggers]
    try:
        for logger in loggers:
            logger.setLevel(logging.WARNING)
        yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)


def _sqlite(path: Path) -> str:
    return f"sqlite:///{path.as_posix()}"


def allowed_name(name: str) -> str:
    """Return a column's name as MLflow takes it: ")" goes, whatever else it does not allow becomes "_"."""
    kept = "".join(c if c.isalnum() or c in "_-. :/" else "_" for c in name.replace(")", ""))
    return "/".join(part if part.strip(".") else f"{part}_" for part in kept.split("/"))


def _flat(config: dict[str, Any], prefix: str = "") -> Iterable[tuple[str, Any]]:
    for key, value in config.items():
        if isinstance(value, dict):
            yield from _flat(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value
