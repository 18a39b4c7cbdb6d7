"""What is wandb's own among the trackers, with a stand-in for the service."""

from __future__ import annotations

import errno
import logging
from types import SimpleNamespace
from typing import Any

import pytest

from libreyolo.interfaces.events import TrainEnd
from libreyolo.record.trackers import base, numbers_of, trackers_of
from libreyolo.record.trackers.base import SECONDS_WITH_A_CHECKPOINT
from libreyolo.record.trackers.wandb import SECONDS_TO_FINISH, SECONDS_TO_STORE
from tests.unit.record.conftest import row_of, start_event
from tests.unit.record.services import epoch, listeners, tracked, unreachable


def test_wandb_gets_the_numbers_of_the_table_with_the_epoch_as_step(wandb, run_epochs, tmp_path):
    run_epochs(listeners("wandb", tmp_path, tags=["night"], group="day/time"), tmp_path, 2)
    (run,) = wandb.runs
    assert [step for step, _ in run["logged"]] == [1, 2]
    assert run["logged"][0][1] == numbers_of(row_of(1))
    assert run["logged"][0][1]["metrics/precision(B)"] == 0.5
    assert "best_metric_name" not in run["logged"][0][1]
    assert run["exit_code"] == 0
    expected = {"config": {"lr0": 0.01}, "name": tmp_path.name, "dir": str(tmp_path), "tags": ["night"], "group": "day/time", "id": None}
    assert {key: run["init"][key] for key in expected} == expected
    assert run["init"]["project"] == "libreyolo"


def test_wandb_goes_on_in_the_same_run_when_resumed_and_not_when_begun_anew(wandb, run_epochs, tmp_path):
    for start_epoch in (0, 2, 0):
        run_epochs(listeners("wandb", tmp_path, group="first" if start_epoch == 0 else ""), tmp_path, start_epoch + 2, start_epoch=start_epoch)
    assert [run["init"]["id"] for run in wandb.runs] == [None, "id7", None]
    assert [run["init"]["group"] for run in wandb.runs] == ["first", "first", "first"]  # a resumed job of a sweep stays in its group
    assert [[step for step, _ in run["logged"]] for run in wandb.runs] == [[1, 2], [3, 4], [1, 2]]


def test_a_run_that_cannot_go_online_is_kept_offline_with_one_warning(wandb, tmp_path, caplog):
    wandb.broken = unreachable
    tracker = trackers_of(["wandb"], tracked(tmp_path))
    with caplog.at_level(logging.WARNING):
        tracker.on_train_start(start_event(tmp_path))
        tracker.trackers[0]._background.put(lambda: setattr(wandb, "broken", lambda: None))
        for number in (1, 2):
            epoch(tracker, number)
        tracker.on_train_end(TrainEnd(tmp_path, {}))
    (warning,) = [record.getMessage() for record in caplog.records]
    assert warning == (
        f"wandb could not go online (ConnectionError: no network); the run is kept offline: send it with wandb sync {tmp_path}/wandb/run-1"
    )
    assert [step for step, _ in wandb.runs[0]["logged"]] == [1, 2]


def test_what_wandb_cannot_note_in_its_own_debug_log_is_told_to_nobody(wandb, run_epochs, tmp_path, monkeypatch, capsys):
    def refuse(text: str) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    logger, init = logging.getLogger("wandb"), wandb.init
    full = logging.StreamHandler(SimpleNamespace(write=refuse))

    def init_with_a_log(**kwargs: Any) -> SimpleNamespace:
        logger.addHandler(full)
        logger.error("a run begins")
        return init(**kwargs)

    monkeypatch.setattr(wandb, "init", init_with_a_log)
    run_epochs(listeners("wandb", tmp_path), tmp_path, 2)
    logger.error("something later")
    logger.removeHandler(full)
    assert "Logging error" not in capsys.readouterr().err
    assert logger.addHandler.__func__ is logging.Logger.addHandler  # as it was
    assert [step for step, _ in wandb.runs[0]["logged"]] == [1, 2]


def test_what_wandb_itself_warns_about_is_the_one_warning_and_afterwards_it_speaks_for_itself_again(wandb, tmp_path, caplog):
    tracker = trackers_of(["wandb"], tracked(tmp_path))
    tracker.on_train_start(start_event(tmp_path))
    tracker.trackers[0]._background.put(lambda: [wandb.speech[1].warning(f"wandb: WARNING {words}") for words in ("No room.", "Really none.")])
    tracker.on_train_end(TrainEnd(tmp_path, {}))
    (warning,) = [record.getMessage() for record in caplog.records]
    assert warning == "wandb: No room. Training goes on, and results.csv has every number."
    assert wandb.speech == (wandb.global_settings, None)


@pytest.mark.parametrize(("mode", "seconds"), [("online", SECONDS_TO_STORE), ("offline", None)])
def test_wandb_waits_for_the_best_checkpoint_where_there_is_somebody_to_take_it(wandb, tmp_path, monkeypatch, mode, seconds):
    init = wandb.init
    monkeypatch.setattr(wandb, "init", lambda **kwargs: init(**kwargs, mode=mode))
    (best := tmp_path / "best.pt").touch()
    tracker = trackers_of(["wandb"], tracked(tmp_path, log_checkpoint=True))
    tracker.on_train_start(start_event(tmp_path))
    tracker.on_train_end(TrainEnd(tmp_path, {"best_checkpoint": str(best)}))
    assert wandb.stored == [(str(best), seconds)]
    assert SECONDS_TO_STORE + SECONDS_TO_FINISH < SECONDS_WITH_A_CHECKPOINT and SECONDS_TO_FINISH < base.SECONDS_AT_THE_END


def test_without_a_key_wandb_never_asks_and_the_run_is_kept_offline(wandb, run_epochs, tmp_path, caplog):
    wandb.key = False
    run_epochs(listeners("wandb", tmp_path), tmp_path, 1)
    assert "no API key: run wandb login, or set WANDB_API_KEY" in caplog.text
    assert wandb.runs[0]["init"]["mode"] == "offline"
