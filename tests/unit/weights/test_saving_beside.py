"""An epoch's files are written beside the next one: what is in them, when they are told, and what a bad disk does."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch

from libreyolo.engine import checkpoint
from libreyolo.engine.progress import Progress
from libreyolo.engine.reports import EpochSummary
from libreyolo.engine.validate import Validation
from libreyolo.engine.writer_thread import WriterThread
from libreyolo.errors import UserError
from libreyolo.saving import Saver
from tests.unit.weights.test_killed_writer import saver_of

WEIGHT = "2.weight"


def summary(epoch: int, *, is_best: bool = False, value: float | None = None) -> EpochSummary:
    """After a zero-based epoch."""
    validation = None if value is None else Validation({"metrics/toy": value})
    return EpochSummary(epoch, {"a": 1.0}, [0.1], validation, is_best, 1.0)


class Slow:
    """A disk that waits with the first file until it is let go."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.go = threading.Event()
        write = checkpoint.write

        def slowly(content: Any, path: Path) -> None:
            assert self.go.wait(60)
            write(content, path)

        monkeypatch.setattr(checkpoint, "write", slowly)

    def let_go_when_somebody_waits(self, thread: WriterThread, monkeypatch: pytest.MonkeyPatch) -> None:
        wait = thread.wait

        def waiting() -> None:
            self.go.set()
            wait()

        monkeypatch.setattr(thread, "wait", waiting)


@contextmanager
def saving(folder: Path, **settings: Any) -> Iterator[tuple[Saver, list[tuple[str, int, bool]]]]:
    """A saver and what it tells."""
    saver, told = saver_of(folder, Progress(epoch=1)), []
    saver.progress.best_value = 0.5
    for name, value in settings.items():
        setattr(saver, name, value)
    saver.tell = lambda name, event: told.append((event.path.name, event.epoch, event.is_best))
    yield saver, told
    saver.close()


def weight_in(path: Path) -> float:
    return float(checkpoint.read(path)["train_model"][WEIGHT].flatten()[0])


def fill(saver: Saver, value: float) -> None:
    saver.bare.state_dict()[WEIGHT].fill_(value)


def test_training_goes_on_while_the_disk_works_and_the_files_hold_the_epoch_s_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    disk = Slow(monkeypatch)
    with saving(tmp_path, save_period=1) as (saver, told):
        fill(saver, 1.0)
        saver(summary(0, is_best=True))
        assert list(tmp_path.iterdir()) == []
        fill(saver, 2.0)  # the next epoch
        saver.tell_saved()
        assert told == []
        disk.go.set()
        saver.finish()
        names = ["best.pt", "last.pt", "epoch_1.pt"]
        assert [weight_in(tmp_path / name) for name in names] == [1.0] * 3
        assert told == [(name, 1, name == "best.pt") for name in names]


def test_the_next_save_waits_for_the_one_before_and_the_newest_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    disk = Slow(monkeypatch)
    with saving(tmp_path) as (saver, told):
        fill(saver, 1.0)
        saver(summary(0))
        disk.let_go_when_somebody_waits(saver._thread, monkeypatch)
        fill(saver, 2.0)
        saver(summary(1))
        assert told == [("last.pt", 1, False)]
        saver.finish()
        assert told[1:] == [("last.pt", 2, False)]
        assert weight_in(tmp_path / "last.pt") == 2.0


def test_what_is_complete_is_told_at_the_next_step_once(tmp_path: Path) -> None:
    with saving(tmp_path) as (saver, told):
        saver(summary(0))
        assert saver._thread._thread is not None
        saver._thread._thread.join()
        saver.tell_saved()
        saver.tell_saved()
        saver.finish()
        assert told == [("last.pt", 1, False)]


def test_where_somebody_waits_for_checkpoints_they_are_there_and_told_when_the_save_returns(tmp_path: Path) -> None:
    with saving(tmp_path, at_once=lambda: True) as (saver, told):
        saver(summary(0))
        assert told == [("last.pt", 1, False)] and (tmp_path / "last.pt").exists()


def test_a_save_in_the_middle_of_an_epoch_comes_after_the_epoch_s_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    disk = Slow(monkeypatch)
    with saving(tmp_path) as (saver, told):
        fill(saver, 1.0)
        saver(summary(0))
        fill(saver, 2.0)
        disk.let_go_when_somebody_waits(saver._thread, monkeypatch)
        saver.midway([])
        assert weight_in(tmp_path / "last.pt") == 2.0
        assert len(told) == 2


def test_what_could_not_be_written_is_raised_by_the_next_call_and_never_twice(tmp_path: Path) -> None:
    (tmp_path / "last.pt").mkdir()
    (tmp_path / "last.pt" / "held").touch()
    with saving(tmp_path) as (saver, told):
        saver(summary(0))
        assert saver._thread._thread is not None
        saver._thread._thread.join()
        saver.tell_saved()  # in the middle of an epoch: not the place for it
        with pytest.raises(UserError, match=r"last\.pt could not be written"):
            saver(summary(1))
        saver.finish()
        assert told == []


def test_after_another_error_a_failed_write_is_logged_and_does_not_hide_it(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "last.pt").mkdir()
    (tmp_path / "last.pt" / "held").touch()
    with saving(tmp_path) as (saver, _):
        saver(summary(0))
        saver.close()
    assert "last.pt could not be written" in caplog.text


def test_the_kept_weights_are_the_best_ones_of_their_epochs(tmp_path: Path) -> None:
    with saving(tmp_path, average_best=2) as (saver, _):
        for epoch, value in enumerate((0.3, 0.5, 0.1, float("nan"), 0.4)):
            saver.ema.average.state_dict()[WEIGHT].fill_(float(epoch))  # type: ignore[union-attr]
            saver(summary(epoch, value=value))
        saver.finish()
        kept = sorted(path.name for path in tmp_path.glob("candidate_*"))
        assert kept == ["candidate_2.pt", "candidate_5.pt"]
        average = saver.write_average()
        assert average is not None
        assert torch.all(checkpoint.read(average)["model"][WEIGHT] == 2.5)  # of epochs 1 and 4, counted from 0
        assert not list(tmp_path.glob("candidate_*"))


def test_the_average_is_in_the_file_once_under_both_its_names(tmp_path: Path) -> None:
    with saving(tmp_path) as (saver, _):
        path = saver.midway([])
    content = checkpoint.read(path)
    for name, value in content["model"].items():
        assert value.untyped_storage().data_ptr() == content["ema"][name].untyped_storage().data_ptr()
        assert value.untyped_storage().data_ptr() != content["train_model"][name].untyped_storage().data_ptr()


def test_a_thread_does_one_job_after_the_other_and_gives_back_what_it_raised_once() -> None:
    thread, done = WriterThread(), []
    assert not thread.succeeded()
    thread.wait()
    thread.start([lambda: done.append(1), lambda: 1 / 0, lambda: done.append(2)])
    with pytest.raises(ZeroDivisionError):
        thread.start([lambda: done.append(3)])
    thread.wait()
    assert done == [1]  # neither the rest of that job nor the refused one
    thread.start([lambda: done.append(4)])
    thread.wait()
    assert done == [1, 4]
