"""Where a run stands, for programs that watch it: status.json while it runs, summary.json when it is done."""

from __future__ import annotations

import json
import math
import time
from pathlib import Path
from typing import Any

from libreyolo.interfaces.events import EpochEnd, Listener, StepEnd, TrainEnd, TrainFailed, TrainStart
from libreyolo.record.atomic import write_text

SCHEMA_VERSION = 1


class StatusFile(Listener):
    """Writes status.json at the start, after each epoch and at the end, and summary.json after a completed run; both in one step each.

    status.json: schema_version, state ("running", "completed", "failed", "interrupted"), progress in [0, 1], epoch (finished ones), epochs,
    eta_seconds, best_metric_name, best_metric, best_epoch, error, stopped_by, updated (seconds since 1970). What is not known is null. A run
    that patience or a callback ended early is "completed" with progress 1, and `stopped_by` says who; it is "interrupted" when it ends by
    KeyboardInterrupt or SystemExit (or a subclass: a signal), or by stop_after_epoch before its last epoch.
    """

    def __init__(self, run_dir: Path) -> None:
        self.path = Path(run_dir) / "status.json"
        self.summary_path = Path(run_dir) / "summary.json"
        self._status: dict[str, Any] = {}
        self._row: dict[str, Any] = {}

    def on_train_start(self, event: TrainStart) -> None:
        self._row = {}
        self._status = {
            "schema_version": SCHEMA_VERSION,
            "state": "running",
            "progress": event.start_epoch / max(event.epochs, 1),
            "epoch": event.start_epoch,
            "epochs": event.epochs,
            "eta_seconds": None,
            "best_metric_name": None,
            "best_metric": None,
            "best_epoch": None,
            "error": None,
            "stopped_by": None,
        }
        self._write()

    def on_step_end(self, event: StepEnd) -> None:
        self._status["eta_seconds"] = event.eta_seconds

    def on_epoch_end(self, event: EpochEnd) -> None:
        self._row = dict(event.row)
        best = {key: event.row[key] for key in ("best_metric_name", "best_metric", "best_epoch") if event.row.get(key) is not None}
        self._status |= {"epoch": event.epoch, "progress": min(event.epoch / max(self._status["epochs"], 1), 1.0), **best}
        self._write()

    def on_train_end(self, event: TrainEnd) -> None:
        if not event.completed:
            self._status |= {"state": "interrupted", "eta_seconds": None}
            self._write()
            return
        self._status |= {"state": "completed", "progress": 1.0, "eta_seconds": 0.0, "stopped_by": event.result.get("stopped_by")}
        best = {key: self._status[key] for key in ("epoch", "epochs", "best_metric_name", "best_metric", "best_epoch")}
        summary = {"schema_version": SCHEMA_VERSION, "state": "completed", **best, "last_row": self._row, "result": event.result}
        _write_json(self.summary_path, summary)
        self._write()

    def on_exception(self, event: TrainFailed) -> None:
        interrupted = isinstance(event.error, (KeyboardInterrupt, SystemExit))
        text = f"{type(event.error).__name__}: {event.error}".removesuffix(": ")
        self._status |= {"state": "interrupted" if interrupted else "failed", "eta_seconds": None, "error": text}
        self._write()

    def _write(self) -> None:
        _write_json(self.path, {**self._status, "updated": time.time()})


def _write_json(path: Path, content: dict[str, Any]) -> None:
    write_text(path, json.dumps(_plain(content), indent=2, ensure_ascii=False, allow_nan=False) + "\n")


def _plain(value: Any) -> Any:
    """Return a value as JSON knows it: paths and unknown kinds as text, numbers that are not finite as null."""
    if isinstance(value, dict):
        return {str(key): _plain(inner) for key, inner in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(inner) for inner in value]
    if hasattr(value, "tolist"):  # NumPy numbers and arrays, tensors
        return _plain(value.tolist())
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    return value if value is None or isinstance(value, (bool, int, str)) else str(value)
