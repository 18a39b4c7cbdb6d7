"""A training in one process that is asked to leave: it saves where it is, and the same command goes on as if nothing had happened."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path
from typing import Any

import pytest

from libreyolo.record.tables import read_results
from tests.run.conftest import Run, train
from tests.run.test_resume import assert_same_run

pytestmark = [pytest.mark.slow, pytest.mark.skipif(os.name != "posix", reason="signals of POSIX")]

NUMBERS: dict[str, Any] = {"epochs": 2, "batch": 2, "log_interval": 1, "mixup_prob": 0.5}  # four steps an epoch


class Asks:
    """Sends this process a signal when step `at` of the first epoch is told, that is in the step after it."""

    def __init__(self, number: int, at: int) -> None:
        self.number, self.at = number, at

    def on_step_end(self, event: Any) -> None:
        if (event.epoch, event.step) == (1, self.at):
            os.kill(os.getpid(), self.number)


@pytest.mark.parametrize(("number", "at", "batches"), [(signal.SIGTERM, 1, (2, 3, 4)), (signal.SIGUSR1, 4, (4,))], ids=["inside", "at its end"])
def test_a_run_that_was_asked_to_leave_and_went_on_is_the_run_that_was_not(
    number: int, at: int, batches: tuple[int, ...], tiny: Path, tmp_path: Path
) -> None:
    before = signal.getsignal(number)
    with pytest.raises(SystemExit) as ended:
        train(tiny, tmp_path / "b", callbacks=[Asks(number, at)], **NUMBERS)
    assert ended.value.code == 128 + number
    assert signal.getsignal(number) is before
    broken = Run({"save_dir": str(tmp_path / "b" / "exp")})
    status = json.loads((broken.folder / "status.json").read_text())
    assert (status["state"], status["error"]) == ("interrupted", f"Interrupted: {signal.Signals(number).name}")
    progress = broken.checkpoint()["progress"]
    place = progress["step_in_epoch"] if progress["epoch"] == 0 else 4
    assert place in batches and progress["global_step"] == place
    resumed = train(tiny, tmp_path / "b", resume="auto", **NUMBERS)
    assert resumed.folder == broken.folder
    assert [row["epoch"] for row in read_results(resumed.folder / "results.csv")] == [1, 2]
    assert json.loads((resumed.folder / "status.json").read_text())["state"] == "completed"
    assert_same_run(train(tiny, tmp_path / "a", **NUMBERS), resumed)


def test_a_run_that_stop_after_epoch_ended_says_that_it_is_not_complete(tiny: Path, tmp_path: Path) -> None:
    run = train(tiny, tmp_path, stop_after_epoch=1, **NUMBERS)
    status = json.loads((run.folder / "status.json").read_text())
    assert (status["state"], status["progress"], (run.folder / "summary.json").exists()) == ("interrupted", 0.5, False)
