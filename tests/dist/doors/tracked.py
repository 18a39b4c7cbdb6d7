"""Reads tracker runs back: offline files of wandb, event files of TensorBoard, MLflow's database."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

FILE_HEADER, BLOCK, RECORD_HEADER = 7, 32768, 7  # of wandb's files: LevelDB's log format behind seven bytes of its own
FIRST, MIDDLE = 2, 3

Scalars = dict[str, list[tuple[int, float]]]  # column -> (step, value), in the order in which they were written


@dataclass
class WandbRun:
    """One offline run: a folder that `wandb sync` would take."""

    id: str
    group: str
    config: dict[str, Any]
    scalars: Scalars
    exit_code: int | None


def wandb_runs(run_dir: Path) -> list[WandbRun]:
    """Return the offline runs of a run directory, oldest first."""
    return [_wandb_run(path) for path in sorted(run_dir.glob("wandb/offline-run-*/run-*.wandb"), key=lambda p: p.stat().st_mtime)]


def tensorboard_scalars(run_dir: Path) -> Scalars:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(run_dir / "tensorboard"), size_guidance={"scalars": 0})
    events.Reload()
    return {name: [(event.step, event.value) for event in events.Scalars(name)] for name in events.Tags()["scalars"]}


def mlflow_runs(database: Path) -> list[tuple[Any, Scalars]]:
    """Return every run of the experiment with its scalars, oldest first."""
    from mlflow import MlflowClient

    client = MlflowClient(tracking_uri=f"sqlite:///{database}")
    experiment = client.get_experiment_by_name("libreyolo")
    runs = client.search_runs([experiment.experiment_id], order_by=["attributes.start_time ASC"])
    return [(run, {key: [(m.step, m.value) for m in client.get_metric_history(run.info.run_id, key)] for key in run.data.metrics}) for run in runs]


def _wandb_run(path: Path) -> WandbRun:
    from wandb.proto.wandb_internal_pb2 import Record

    found = WandbRun("", "", {}, {}, None)
    for content in _contents(path.read_bytes()):
        record = Record.FromString(content)
        kind = record.WhichOneof("record_type")
        if kind == "run":
            found.id, found.group = record.run.run_id, record.run.run_group
            found.config |= {item.key: json.loads(item.value_json) for item in record.run.config.update}
        elif kind == "history":
            for item in record.history.item:
                name = item.key or "/".join(item.nested_key)
                if not name.startswith("_"):
                    found.scalars.setdefault(name, []).append((record.history.step.num, float(json.loads(item.value_json))))
        elif kind == "exit":
            found.exit_code = record.exit.exit_code
    return found


def _contents(data: bytes) -> Iterator[bytes]:
    place, parts = FILE_HEADER, b""
    while place + RECORD_HEADER <= len(data):
        left = BLOCK - place % BLOCK
        if left < RECORD_HEADER:  # too little for a header: padding
            place += left
            continue
        length, kind = int.from_bytes(data[place + 4 : place + 6], "little"), data[place + 6]
        parts += data[place + RECORD_HEADER : place + RECORD_HEADER + length]
        place += RECORD_HEADER + length
        if kind not in (FIRST, MIDDLE):
            yield parts
            parts = b""
