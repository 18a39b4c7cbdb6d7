"""status.json and summary.json."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest

from libreyolo.interfaces.events import EpochEnd, TrainEnd, TrainFailed
from libreyolo.record.status import StatusFile
from tests.unit.record.conftest import row_of, start_event, step_event


def started(run_dir: Path, **kwargs: int) -> StatusFile:
    status = StatusFile(run_dir)
    status.on_train_start(start_event(run_dir, **kwargs))
    return status


def read(run_dir: Path) -> dict:
    return json.loads((run_dir / "status.json").read_text(encoding="utf-8"))


def test_a_running_run_tells_its_progress_and_its_best(tmp_path):
    status = started(tmp_path, epochs=4)
    assert (read(tmp_path)["state"], read(tmp_path)["progress"], read(tmp_path)["best_metric"]) == ("running", 0.0, None)
    status.on_step_end(step_event(1, 20))
    status.on_epoch_end(EpochEnd(1, row_of(1), True))
    content = read(tmp_path)
    content.pop("updated")
    assert content == {
        "schema_version": 1,
        "state": "running",
        "progress": 0.25,
        "epoch": 1,
        "epochs": 4,
        "eta_seconds": 65.0,
        "best_metric_name": "metrics/mAP50-95",
        "best_metric": 0.1,
        "best_epoch": 1,
        "error": None,
        "stopped_by": None,
    }


def test_the_best_stays_known_in_epochs_without_validation(tmp_path):
    status = started(tmp_path)
    status.on_epoch_end(EpochEnd(1, row_of(1), True))
    status.on_epoch_end(EpochEnd(2, row_of(2, validated=False), False))
    assert (read(tmp_path)["best_metric"], read(tmp_path)["epoch"]) == (0.1, 2)


def test_a_resumed_run_begins_where_it_stopped(tmp_path):
    started(tmp_path, epochs=4, start_epoch=3)
    assert (read(tmp_path)["progress"], read(tmp_path)["epoch"]) == (0.75, 3)


def test_a_run_that_somebody_stopped_is_completed_and_says_who(tmp_path):
    status = started(tmp_path, epochs=5)
    status.on_epoch_end(EpochEnd(1, row_of(1), True))
    status.on_train_end(TrainEnd(tmp_path, {"stopped_by": "Careful.on_epoch_end"}))
    assert [read(tmp_path)[key] for key in ("state", "epoch", "stopped_by")] == ["completed", 1, "Careful.on_epoch_end"]


def test_a_completed_run_leaves_a_summary(tmp_path):
    status = started(tmp_path, epochs=5)
    status.on_epoch_end(EpochEnd(1, row_of(1), True))
    status.on_train_end(TrainEnd(tmp_path, {"best_checkpoint": tmp_path / "best.pt", "final_loss": math.nan, "epoch_losses": [1.0, 2.0]}))
    assert (read(tmp_path)["state"], read(tmp_path)["progress"], read(tmp_path)["eta_seconds"]) == ("completed", 1.0, 0.0)
    summary = json.loads((tmp_path / "summary.json").read_text(), parse_constant=lambda name: 1 / 0)
    assert summary["result"] == {"best_checkpoint": str(tmp_path / "best.pt"), "final_loss": None, "epoch_losses": [1.0, 2.0]}
    assert (summary["schema_version"], summary["epoch"], summary["epochs"], summary["best_metric"]) == (1, 1, 5, 0.1)
    assert summary["last_row"]["train/loss"] == 8.0


@pytest.mark.parametrize(
    ("error", "state", "text"),
    [
        (RuntimeError("CUDA out of memory ü"), "failed", "RuntimeError: CUDA out of memory ü"),
        (KeyboardInterrupt(), "interrupted", "KeyboardInterrupt"),
        (SystemExit(1), "interrupted", "SystemExit: 1"),
    ],
)
def test_a_run_that_ends_early_tells_why(tmp_path, error, state, text):
    started(tmp_path).on_exception(TrainFailed(tmp_path, error))
    assert (read(tmp_path)["state"], read(tmp_path)["error"], read(tmp_path)["eta_seconds"]) == (state, text, None)
    assert not (tmp_path / "summary.json").exists()


def test_a_reader_never_sees_half_a_file(tmp_path, monkeypatch):
    status = started(tmp_path)
    before = (tmp_path / "status.json").read_bytes()

    def fail(*_: object) -> None:
        raise OSError("disk full")

    monkeypatch.setattr("libreyolo.record.atomic.os.fsync", fail)
    with pytest.raises(OSError, match="disk full"):
        status.on_epoch_end(EpochEnd(1, row_of(1), True))
    assert (tmp_path / "status.json").read_bytes() == before
    assert [path.name for path in tmp_path.iterdir()] == ["status.json"]


def test_a_run_that_stop_after_epoch_ended_is_interrupted_and_leaves_no_summary(tmp_path):
    status = started(tmp_path, epochs=4)
    status.on_epoch_end(EpochEnd(1, row_of(1), True))
    status.on_train_end(TrainEnd(tmp_path, {}, completed=False))
    assert (read(tmp_path)["state"], read(tmp_path)["progress"], read(tmp_path)["error"]) == ("interrupted", 0.25, None)
    assert not (tmp_path / "summary.json").exists()
