"""Experiment trackers: the numbers of results.csv, under the same names, sent to TensorBoard, Weights & Biases or MLflow."""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence

from libreyolo.errors import UserError, nearest
from libreyolo.record.trackers.base import TrackedRun, Tracker, import_package, numbers_of
from libreyolo.record.trackers.mlflow import Mlflow
from libreyolo.record.trackers.tensorboard import TensorBoard
from libreyolo.record.trackers.together import Trackers
from libreyolo.record.trackers.wandb import Wandb

TRACKERS: dict[str, type[Tracker]] = {kind.name: kind for kind in (TensorBoard, Wandb, Mlflow)}
TABLES = "csv"  # always written; named in `loggers` it changes nothing


def trackers_of(names: Sequence[str], run: TrackedRun) -> Trackers:
    """Return the trackers in `names` ("tensorboard", "wandb", "mlflow"; "csv" is always written and adds none).

    An unknown name and a missing package are UserErrors.
    """
    known = [TABLES, *TRACKERS]
    for name in names:
        if name not in known:
            raise UserError(f"loggers={list(names)}: '{name}' is not one of {', '.join(known)}.{nearest(name, known)}")
    return Trackers([TRACKERS[name](run) for name in dict.fromkeys(names) if name != TABLES])


def require_packages(names: Sequence[str]) -> None:
    """Raise UserError for the first tracker whose package is not there; imports none, for callers that only want to know in time."""
    for name in names:
        if name in TRACKERS and not _is_installed(name):
            import_package(f"{name}", name)


def _is_installed(package: str) -> bool:
    try:
        return importlib.util.find_spec(package) is not None
    except ValueError:  # in sys.modules as nothing, or without a spec
        return False


__all__ = ["TRACKERS", "TrackedRun", "Tracker", "Trackers", "numbers_of", "require_packages", "trackers_of"]
