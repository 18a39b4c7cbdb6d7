"""Five epochs through every listener at once, interrupted in the middle."""

from __future__ import annotations

import io
import json
import logging

import pytest
from rich.console import Console

from libreyolo.interfaces.events import EpochEnd, TrainEnd, TrainFailed
from libreyolo.record.plots.detection import DetectionValidationPictures
from libreyolo.record.plots.listener import PictureListener
from libreyolo.record.progress import ProgressListener
from libreyolo.record.run_log import run_log
from libreyolo.record.status import StatusFile
from libreyolo.record.tables import ResultsTable, read_results
from tests.unit.record.conftest import row_of, start_event, validation_of

NAMES = {0: "cat", 1: "dog"}


def listeners(run_dir):
    progress = ProgressListener(Console(file=io.StringIO(), force_terminal=False))
    return [ResultsTable(run_dir), StatusFile(run_dir), progress, DetectionValidationPictures(run_dir, NAMES, every=1)]


def test_a_run_that_is_interrupted_and_resumed_leaves_exactly_its_files(run_epochs, tmp_path):
    handlers_before = [list(logging.getLogger(name).handlers) for name in ("", "libreyolo", "launch", "py.warnings")]
    with run_log(tmp_path, append=False, console=False):
        first = listeners(tmp_path)
        run_epochs(first, tmp_path, 3, finish=False)
        for listener in first:
            listener.on_exception(TrainFailed(tmp_path, KeyboardInterrupt()))
    assert json.loads((tmp_path / "status.json").read_text())["state"] == "interrupted"
    with run_log(tmp_path, append=True, console=False):
        run_epochs(listeners(tmp_path), tmp_path, 5, start_epoch=2)  # the checkpoint was that of epoch 2

    files = sorted(str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*") if path.is_file())
    assert files == [
        "metrics.jsonl",
        "plots/confusion.png",
        "plots/curves.png",
        "plots/f1_curve.png",
        "plots/pr_curve.png",
        "plots/predictions.png",
        "results.csv",
        "status.json",
        "summary.json",
        "train.log",
    ]
    assert [row["epoch"] for row in read_results(tmp_path / "results.csv")] == [1, 2, 3, 4, 5]
    assert [row["epoch"] for row in read_results(tmp_path / "metrics.jsonl")] == [1, 2, 3, 4, 5]
    status = json.loads((tmp_path / "status.json").read_text())
    assert (status["state"], status["epoch"], status["best_epoch"]) == ("completed", 5, 5)
    log = (tmp_path / "train.log").read_text()
    assert log.count("Training stopped by KeyboardInterrupt") == 1
    assert log.count("validation") == 2 + 2  # epochs 1 and 3, then 3 and 5
    assert [list(logging.getLogger(name).handlers) for name in ("", "libreyolo", "launch", "py.warnings")] == handlers_before


def test_pictures_are_drawn_every_few_epochs_and_at_the_end(run_epochs, tmp_path, monkeypatch):
    drawn = []
    monkeypatch.setattr("libreyolo.record.plots.listener.plot_curves", lambda rows, path: drawn.append(len(rows)))
    monkeypatch.setattr("libreyolo.record.plots.detection.draw_validation", lambda event, names, folder: drawn.append(f"best {event.epoch}"))
    run_epochs([ResultsTable(tmp_path), DetectionValidationPictures(tmp_path, NAMES, every=3)], tmp_path, 5, epochs=5)
    # validated epochs are 1, 3, 5; all are best
    assert drawn == [3, "best 3", 5, "best 5"]


def test_without_a_wish_pictures_take_a_fiftieth_of_the_time_at_most(run_epochs, tmp_path, monkeypatch):
    drawn, now = [], [0.0]

    def draw(rows, path):
        drawn.append(len(rows))
        now[0] += 5.0  # it costs five seconds

    class AnEpochIsAMinute(ResultsTable):
        def on_epoch_end(self, event):
            super().on_epoch_end(event)
            now[0] += 60.0

    monkeypatch.setattr("libreyolo.record.plots.listener.plot_curves", draw)
    run_epochs([AnEpochIsAMinute(tmp_path), PictureListener(tmp_path, NAMES, clock=lambda: now[0])], tmp_path, 16, epochs=16)
    # Validated epochs are the odd ones. Three seconds are expected of the first drawing: 150 must have gone by; then five: 250.
    assert drawn == [3, 9, 15, 16]


def test_a_picture_that_cannot_be_drawn_warns_and_training_goes_on(run_epochs, tmp_path, monkeypatch, caplog):
    def fail(*_: object, **__: object) -> None:
        raise ZeroDivisionError("no ink")

    monkeypatch.setattr("libreyolo.record.plots.detection.draw_pr_curve", fail)
    with caplog.at_level(logging.WARNING):
        run_epochs([ResultsTable(tmp_path), DetectionValidationPictures(tmp_path, NAMES, every=9)], tmp_path, 1)
    (warning,) = caplog.records
    assert warning.getMessage() == f"The picture {tmp_path / 'plots' / 'pr_curve.png'} could not be drawn (ZeroDivisionError: no ink)."
    assert (tmp_path / "plots" / "confusion.png").exists()


def test_a_resumed_run_keeps_the_pictures_of_its_earlier_best_epoch(tmp_path, monkeypatch):
    drawn = []
    monkeypatch.setattr("libreyolo.record.plots.detection.draw_validation", lambda event, names, folder: drawn.append(event.epoch))
    (tmp_path / "plots").mkdir()
    (tmp_path / "plots" / "confusion.png").touch()
    listener = DetectionValidationPictures(tmp_path, NAMES, every=1)
    listener.on_train_start(start_event(tmp_path, start_epoch=3))
    for epoch, is_best in ((4, False), (5, True)):
        listener.on_validation_end(validation_of(epoch))
        listener.on_epoch_end(EpochEnd(epoch, row_of(epoch), is_best))
    assert drawn == [5]


@pytest.mark.parametrize("seen_best", [True, False])
def test_pictures_of_the_best_epoch_are_kept_when_later_ones_are_worse(tmp_path, monkeypatch, seen_best):
    drawn = []
    monkeypatch.setattr("libreyolo.record.plots.detection.draw_validation", lambda event, names, folder: drawn.append(event.epoch))
    listener = DetectionValidationPictures(tmp_path, NAMES, every=99)
    listener.on_train_start(start_event(tmp_path))
    for epoch in (1, 2, 3):
        listener.on_validation_end(validation_of(epoch))
        listener.on_epoch_end(EpochEnd(epoch, row_of(epoch), seen_best and epoch == 2))
    listener.on_train_end(TrainEnd(tmp_path, {}))
    assert drawn == ([2] if seen_best else [3])
