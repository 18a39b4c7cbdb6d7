"""What a run says while it runs."""

from __future__ import annotations

import io
import logging
import sys

import pytest
from rich.console import Console

from libreyolo.interfaces.events import StepEnd, TrainEnd, TrainFailed, ValidationEnd
from libreyolo.record.progress import ProgressListener, duration
from tests.unit.record.conftest import start_event, step_event


def plain() -> ProgressListener:
    return ProgressListener(Console(file=io.StringIO(), force_terminal=False))


@pytest.fixture
def said(caplog):
    caplog.set_level(logging.INFO, logger="libreyolo")
    return lambda: [record.getMessage() for record in caplog.records]


def test_without_a_terminal_a_long_epoch_is_told_in_ten_lines(said):
    listener = plain()
    for step in range(1, 1001):
        listener.on_step_end(StepEnd(3, step, 1000, step, {"loss": 1.0}, 0.01, 50.0, 0.1, 60.0, 0.0))
    steps = [line.split("step ")[1].split()[0] for line in said()]
    assert steps == [f"{hundred * 100}/1000" for hundred in range(1, 11)]


def test_a_short_epoch_is_told_at_every_event(said):
    listener = plain()
    for epoch in (1, 2):
        for step in (1, 2, 3):
            listener.on_step_end(StepEnd(epoch, step, 3, step, {}, 0.01, 50.0, 0.1, 60.0, 0.0))
    assert len(said()) == 6


def test_a_step_line_has_losses_rate_speed_waiting_memory_and_time_left(said):
    listener = plain()
    listener.on_train_start(start_event("runs/x"))
    listener.on_step_end(step_event(2, 10))
    expected = "epoch 2/5  step 10/20  loss 4  box_loss 2  lr 0.01  100 images/s  waiting 5 %  3.2 GB  ETA 0:01:05"
    assert said()[-1] == expected


def test_a_validation_is_one_line_with_the_main_metrics(said):
    plain().on_validation_end(ValidationEnd(1, {"metrics/recall": 0.25, "metrics/mAP50(B)": 0.9, "metrics/mAP50-95": 0.5}))
    assert said() == ["epoch 1/0  validation  mAP50-95 0.5000  recall 0.2500"]


def test_a_task_of_its_own_shows_its_first_metrics(said):
    plain().on_validation_end(ValidationEnd(1, {"metrics/fancy": 0.25}))
    assert said() == ["epoch 1/0  validation  fancy 0.2500"]


def test_the_end_tells_the_best_where_it_lies_and_what_to_run_next(said, run_epochs, tmp_path):
    run_epochs([plain()], tmp_path, 5)
    best = tmp_path / "weights" / "best.pt"
    assert said()[-1].splitlines() == [
        "Training is done.",
        "  best result   mAP50-95 0.5000 at epoch 5",
        f"  best weights  {best}",
        f"  last weights  {tmp_path / 'weights' / 'last.pt'}",
        f"  results       {tmp_path / 'results.csv'}",
        f"  next          python -m libreyolo val {best} --data pets.yaml",
    ]


def test_a_run_without_validation_points_to_its_last_weights(said, tmp_path):
    listener = plain()
    listener.on_train_start(start_event(tmp_path))
    listener.on_train_end(TrainEnd(tmp_path, {"best_checkpoint": None, "last_checkpoint": "last.pt"}))
    assert "none: no validation was run" in said()[-1]
    assert "python -m libreyolo val last.pt --data pets.yaml" in said()[-1]


@pytest.mark.parametrize("fails", [False, True])
def test_on_a_terminal_a_bar_shows_the_epoch_and_the_streams_are_given_back(fails, tmp_path):
    screen = io.StringIO()
    before = (sys.stdout, sys.stderr)
    listener = ProgressListener(Console(file=screen, force_terminal=True, width=80))
    listener.on_train_start(start_event(tmp_path))
    listener.on_step_end(step_event(2, 10))
    text = screen.getvalue()
    assert all(part in text for part in ("epoch 2/5", "10/20", "loss 4", "100 images/s", "ETA 0:01:05"))
    listener.on_exception(TrainFailed(tmp_path, RuntimeError())) if fails else listener.on_train_end(TrainEnd(tmp_path, {}))
    assert (sys.stdout, sys.stderr) == before


@pytest.mark.parametrize(
    ("seconds", "text"), [(0, "0:00:00"), (59.6, "0:01:00"), (3723, "1:02:03"), (90000, "1 d 1:00:00"), (float("inf"), "?"), (-1, "?")]
)
def test_durations_are_written_for_people(seconds, text):
    assert duration(seconds) == text
