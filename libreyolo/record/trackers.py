"""Experiment trackers: the numbers of results.csv, under the same names, sent to TensorBoard, Weights & Biases or MLflow.

Step = epoch, counted from 1 over the whole run, resumed or not.
"""

from __future__ import annotations

import importlib
import logging
import math
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from numbers import Real
from pathlib import Path
from typing import Any, ClassVar

from libreyolo.errors import UserError, nearest
from libreyolo.interfaces.events import EpochEnd, Listener, TrainEnd, TrainFailed, TrainStart
from libreyolo.record.atomic import write_text

log = logging.getLogger(__name__)

MAX_FAILURES = 3


class Tracker(Listener, ABC):
    """What every tracker does: it is started, gets numbers, and is closed, as failed where the run failed.

    The package is imported on construction, so a missing one stops the run before it trains. A tracker that cannot start stops it too, with
    a sentence; once started, no failure of a tracker stops training: the first is warned about, after three in a row it is left alone.
    """

    name: ClassVar[str]
    module: ClassVar[str]

    def __init__(self, run_dir: Path, config: dict[str, Any], project: str) -> None:
        self.run_dir = Path(run_dir)
        self.config = config
        self.project = project
        self._started = False
        self._warned = False
        self._num_failures = 0
        self.package = _import(self.module, self.name)

    @abstractmethod
    def start(self, start_epoch: int, *, resumed: bool) -> None:
        """Open the run, the earlier one again where this is a resumed training; `start_epoch` epochs are already there."""

    @abstractmethod
    def send(self, values: dict[str, float], epoch: int) -> None:
        """Send one epoch's numbers."""

    @abstractmethod
    def close(self, *, failed: bool) -> None:
        """Close the run."""

    def on_train_start(self, event: TrainStart) -> None:
        try:
            self.start(event.start_epoch, resumed=event.resumed or event.start_epoch > 0)
        except Exception as error:
            raise UserError(f"{self.name} could not be started ({_one_line(error)}); mend that or leave it out of loggers=.") from error
        self._started = True

    def on_epoch_end(self, event: EpochEnd) -> None:
        if self._started and self._num_failures < MAX_FAILURES:
            self._attempt(lambda: self.send(numbers_of(event.row), event.epoch))

    def on_train_end(self, event: TrainEnd) -> None:
        self._close(failed=False)

    def on_exception(self, event: TrainFailed) -> None:
        self._close(failed=True)

    def _close(self, *, failed: bool) -> None:
        if self._started:
            self._started = False
            self._attempt(lambda: self.close(failed=failed))

    def _attempt(self, action: Callable[[], None]) -> None:
        try:
            action()
            self._num_failures = 0
        except Exception as error:
            self._num_failures += 1
            if not self._warned:
                self._warned = True
                log.warning("%s failed (%s); training goes on, and results.csv has every number.", self.name, _one_line(error))


class TensorBoard(Tracker):
    """Event files in run_dir/tensorboard."""

    name = "tensorboard"
    module = "torch.utils.tensorboard"

    def start(self, start_epoch: int, *, resumed: bool) -> None:
        # What a run wrote after the checkpoint it is resumed from is hidden, or the curve would run backwards.
        purge = start_epoch + 1 if resumed else None
        self._writer = self.package.SummaryWriter(log_dir=str(self.run_dir / "tensorboard"), purge_step=purge)

    def send(self, values: dict[str, float], epoch: int) -> None:
        for name, value in values.items():
            self._writer.add_scalar(name, value, epoch)
        self._writer.flush()

    def close(self, *, failed: bool) -> None:
        self._writer.close()


class Wandb(Tracker):
    """One run at Weights & Biases; its id is kept in run_dir/wandb_id.txt, so a resumed training goes on in the same run."""

    name = "wandb"
    module = "wandb"

    def start(self, start_epoch: int, *, resumed: bool) -> None:
        id_file = self.run_dir / "wandb_id.txt"
        run_id = _read_id(id_file) if resumed else None
        self._run = self.package.init(
            project=self.project,
            name=self.run_dir.name,
            dir=str(self.run_dir),
            config=self.config,
            id=run_id,
            resume="allow",
            allow_val_change=True,
        )
        write_text(id_file, f"{self._run.id}\n")

    def send(self, values: dict[str, float], epoch: int) -> None:
        self._run.log(values, step=epoch)

    def close(self, *, failed: bool) -> None:
        self._run.finish(exit_code=1 if failed else 0)


class Mlflow(Tracker):
    """One run at MLflow (where MLFLOW_TRACKING_URI says, else as MLflow's default); its id is kept in run_dir/mlflow_id.txt.

    MLflow allows no brackets in names: "metrics/mAP50(B)" is "metrics/mAP50_B" there.
    """

    name = "mlflow"
    module = "mlflow"

    def start(self, start_epoch: int, *, resumed: bool) -> None:
        # Through the client, not the module's "active run": that one is global, and may be the user's own.
        self._client = self.package.MlflowClient()
        id_file = self.run_dir / "mlflow_id.txt"
        run_id = _read_id(id_file) if resumed else None
        if run_id is None:
            experiment = self._client.get_experiment_by_name(self.project)
            experiment_id = experiment.experiment_id if experiment else self._client.create_experiment(self.project)
            run_id = self._client.create_run(experiment_id, run_name=self.run_dir.name).info.run_id
            write_text(id_file, f"{run_id}\n")
            params = [self.package.entities.Param(key, str(value)[:500]) for key, value in _flat(self.config)]
            for first in range(0, len(params), 100):  # the server takes 100 in one call
                self._client.log_batch(run_id, params=params[first : first + 100])
        else:
            self._client.update_run(run_id, status="RUNNING")
        self._run_id = run_id

    def send(self, values: dict[str, float], epoch: int) -> None:
        now = int(time.time() * 1000)
        names = {name: name.replace("(", "_").replace(")", "") for name in values}
        self._client.log_batch(self._run_id, metrics=[self.package.entities.Metric(names[name], value, now, epoch) for name, value in values.items()])

    def close(self, *, failed: bool) -> None:
        self._client.set_terminated(self._run_id, "FAILED" if failed else "FINISHED")


TRACKERS: dict[str, type[Tracker]] = {kind.name: kind for kind in (TensorBoard, Wandb, Mlflow)}
TABLES = "csv"  # always written; named in `loggers` it changes nothing


def tracker_listeners(names: Sequence[str], run_dir: Path, config: dict[str, Any], *, project: str = "libreyolo") -> list[Listener]:
    """Return a listener for each tracker in `names` ("tensorboard", "wandb", "mlflow"; "csv" is always written and adds none).

    `config` is the resolved configuration as plain builtins. An unknown name and a missing package are UserErrors.
    """
    known = [TABLES, *TRACKERS]
    for name in names:
        if name not in known:
            raise UserError(f"loggers={list(names)}: '{name}' is not one of {', '.join(known)}.{nearest(name, known)}")
    return [TRACKERS[name](run_dir, config, project) for name in dict.fromkeys(names) if name != TABLES]


def numbers_of(row: dict[str, Any]) -> dict[str, float]:
    """Return a row's finite numbers (booleans as 0 or 1), without the epoch, which is the step."""
    finite = {name: float(value) for name, value in row.items() if isinstance(value, Real) and name != "epoch"}
    return {name: value for name, value in finite.items() if math.isfinite(value)}


def _import(module: str, name: str) -> Any:
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise UserError(f"loggers=[{name}] needs the package {name}, which is not installed; run: pip install 'libreyolo-train[trackers]'") from error


def _read_id(path: Path) -> str | None:
    return (path.read_text(encoding="utf-8").strip() or None) if path.exists() else None


def _flat(config: dict[str, Any], prefix: str = "") -> Iterable[tuple[str, Any]]:
    for key, value in config.items():
        if isinstance(value, dict):
            yield from _flat(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


def _one_line(error: BaseException) -> str:
    return " ".join(f"{type(error).__name__}: {error}".split())[:300]
