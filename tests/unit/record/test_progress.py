"""What a run says while it runs."""

from __future__ import annotations

import io
import itertools
import logging
import shlex
import sys
from dataclasses import replace

import pytest
from hydra.core.override_parser.overrides_parser import OverridesParser
from rich.console import Console

from libreyolo.interfaces.events import StepEnd, TrainEnd, TrainFailed, ValidationEnd
from libreyolo.record import shell
from libreyolo.record.progress import ProgressListener, duration
from libreyolo.record.summary import end_text
from tests.unit.record.conftest import row_of, start_event, step_event


def plain(seconds_between_looks: float = 100.0) -> ProgressListener:
    """A listener without a terminal whose clock goes on by so much at each look."""
    ticks = itertools.count(step=seconds_between_looks)
    return ProgressListener(Console(file=io.StringIO(), force_terminal=False), clock=lambda: next(ticks))


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
    expected = "epoch 2/5  step 10/20  loss 4  box_loss 2  lr 0.01  100 images/s  data wait 5 %  3.2 GB  ETA 0:01:05"
    assert said()[-1] == expected


def test_a_validation_is_one_line_with_the_main_metrics(said):
    plain().on_validation_end(ValidationEnd(1, {"metrics/recall": 0.25, "metrics/mAP50(B)": 0.9, "metrics/mAP50-95": 0.5}))
    assert said() == ["epoch 1/0  validation  mAP50-95 0.5000  recall 0.2500"]


def test_a_task_of_its_own_shows_its_first_metrics(said):
    plain().on_validation_end(ValidationEnd(1, {"metrics/fancy": 0.25}))
    assert said() == ["epoch 1/0  validation  fancy 0.2500"]


def test_lines_of_short_epochs_are_half_a_minute_apart(said):
    listener = plain(seconds_between_looks=10.0)
    for epoch in range(1, 10):
        listener.on_step_end(StepEnd(epoch, 1, 1, epoch, {}, 0.01, 50.0, 0.1, 60.0, 0.0))
    assert [line.split()[1] for line in said()] == ["1/0", "4/0", "7/0"]


def test_the_end_is_a_table_of_the_best_and_last_epoch_with_paths_and_commands(tmp_path):
    worse = {**row_of(5), "metrics/mAP50-95": 0.25, "best_metric": 0.3, "best_epoch": 3}
    start = replace(start_event(tmp_path), example=tmp_path / "my picture.png", config={"report": True})
    rows = [row_of(1), row_of(2, validated=False), row_of(3), row_of(4, validated=False), worse]
    best, last = tmp_path / "weights" / "best.pt", tmp_path / "weights" / "last.pt"
    end = TrainEnd(tmp_path, {"best_checkpoint": best, "last_checkpoint": last, "stopped_by": None})
    assert end_text(start, end, rows).splitlines() == [
        "Training is done after 5 of 5 epochs.",
        "  metric                   best: epoch 3     last: epoch 5",
        "  mAP50-95                        0.3000            0.2500",
        "  precision(B)                    0.5000            0.5000",
        "  best result   mAP50-95 0.3000 at epoch 3",
        f"  best weights  {best}",
        f"  last weights  {last}",
        f"  results       {tmp_path / 'results.csv'}",
        f"  report        {tmp_path / 'report.html'}",
        "What to run next:",
        f"  validate      {shell.module('val', best)}",
        f"  predict       {shell.python()} -m libreyolo predict {best} '{tmp_path}/my picture.png'",
        f"  go on         {shell.train(f'resume={tmp_path}', 'epochs=10')}",
    ]


def test_a_run_that_was_stopped_says_by_whom_and_how_to_go_on(tmp_path):
    end = TrainEnd(tmp_path / "a b", {"best_checkpoint": "best.pt", "stopped_by": "Careful.on_epoch_end (flat)"})
    lines = end_text(start_event(tmp_path), end, [row_of(1)]).splitlines()
    assert lines[0] == "Training is done after 1 of 5 epochs, stopped by Careful.on_epoch_end (flat)."
    assert lines[1].split(maxsplit=1) == ["metric", "best: epoch 1"]  # it is also the last one, and stands there once
    (override,) = shlex.split(lines[-1])[4:]
    parsed = OverridesParser.create().parse_override(override)
    assert (parsed.key_or_group, parsed.value()) == ("resume", str(tmp_path / "a b"))


def test_a_run_without_validation_points_to_its_last_weights(said, tmp_path):
    listener = plain()
    listener.on_train_start(start_event(tmp_path))
    listener.on_train_end(TrainEnd(tmp_path, {"best_checkpoint": None, "last_checkpoint": "last.pt"}))
    assert "none: no validation was run" in said()[-1]
    assert shell.module("val", "last.pt") in said()[-1]


@pytest.mark.parametrize("fails", [False, True])
def test_on_a_terminal_a_bar_shows_the_epoch_and_the_streams_are_given_back(fails, tmp_path):
    screen = io.StringIO()
    before = (sys.stdout, sys.stderr)
    listener = ProgressListener(Console(file=screen, force_terminal=True, width=80))
    listener.on_train_start(start_event(tmp_path))
    assert "epoch 1/5" in screen.getvalue()  # before its first step
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
