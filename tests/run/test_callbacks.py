"""The user's own listeners in one process: what they may be, that they may stop a run or end it, and what a run says at its end."""

from __future__ import annotations

import json
import shlex
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest

import launch
from libreyolo import LibreYOLO
from libreyolo.__main__ import main
from libreyolo.errors import UserError
from libreyolo.interfaces.events import Event, Listener
from libreyolo.record import shell
from libreyolo.record.tables import read_results
from tests.run.conftest import QUICK, ROOT, Run, train, train_py


class Told:
    """Notes the verbs, without inheriting anything; stops the run in one of them."""

    def __init__(self, stops_in: str = "") -> None:
        self.verbs: list[str] = []
        self.stops_in = stops_in

    def __getattr__(self, name: str) -> Any:
        if not name.startswith("on_"):
            raise AttributeError(name)

        def note(event: Event) -> None:
            self.verbs.append(name)
            if name == self.stops_in:
                event.stop("seen enough")

        return note


class Careless(Listener):
    def __init__(self, error: BaseException | None = None) -> None:
        self.error = error or LookupError("no room on the wall")

    def on_epoch_end(self, event: Event) -> None:
        raise self.error


class Misnamed(Listener):
    def on_epoch_ends(self, event: Event) -> None: ...


class OfAnotherKind:
    def on_epoch_end(self, trainer: object, epoch: int) -> None: ...


class Meddler:
    """Changes whatever it is told."""

    def on_train_start(self, event: Any) -> None:
        event.config["lr0"] = 99.0
        event.names[0] = "meddled"

    def on_validation_end(self, event: Any) -> None:
        event.metrics["metrics/mAP50-95"] = 77.0

    def on_epoch_end(self, event: Any) -> None:
        event.row["train/loss"] = -5.0

    def on_train_end(self, event: Any) -> None:
        event.result["best_metric"] = 123.0


class Holder(Listener):
    def __init__(self, held: Any) -> None:
        self.held = held


def epochs_in(run: Run) -> list[Any]:
    return [row["epoch"] for row in read_results(run.folder / "results.csv")]


def state(run_dir: Path) -> dict[str, Any]:
    return json.loads((run_dir / "status.json").read_text())


@pytest.mark.slow
@pytest.mark.parametrize("verb", ["on_step_end", "on_epoch_end", "on_checkpoint"])
def test_whichever_event_is_asked_ends_the_run_after_the_epoch_and_names_who_asked(tiny: Path, tmp_path: Path, verb: str) -> None:
    told = Told(verb)
    run = train(tiny, tmp_path, epochs=3, callbacks=[told])
    assert epochs_in(run) == [1]
    by = f"Told.{verb} (seen enough)"
    assert run.result["stopped_by"] == state(run.folder)["stopped_by"] == by
    assert state(run.folder)["state"] == "completed"
    assert f"The run was stopped after epoch 1 of 3 by {by}." in run.log
    assert f"Training is done after 1 of 3 epochs, stopped by {by}." in run.log
    expected = ["on_train_start", "on_step_end", "on_validation_end", "on_epoch_end", "on_checkpoint", "on_checkpoint", "on_train_end"]
    assert told.verbs == expected  # best.pt and last.pt
    if verb == "on_epoch_end":
        again = Run(LibreYOLO(run.folder / "weights" / "last.pt").train(resume=True))
        assert (epochs_in(again), again.result["stopped_by"]) == ([1, 2, 3], None)


@pytest.mark.slow
def test_a_function_a_lambda_and_a_logger_of_ones_own_work_in_one_process(tiny: Path, tmp_path: Path) -> None:
    seen: list[Any] = []
    own = Told()

    def closure(event: Any) -> None:
        seen.append(("closure", event.epoch))

    last = lambda event: seen.append(("lambda", event.row["epoch"]))  # noqa: E731
    run = train(tiny, tmp_path, callbacks=[Meddler(), closure, last], loggers=["csv", own])
    assert seen == [("closure", 1), ("lambda", 1), ("closure", 2), ("lambda", 2)]
    assert own.verbs.count("on_epoch_end") == 2
    assert run.checkpoint()["config"]["loggers"] == ["csv"]
    # What the first one did to its events reached nobody.
    assert (run.checkpoint()["config"]["lr0"], run.checkpoint()["names"][0]) == (0.01, "red")
    rows = read_results(run.folder / "results.csv")
    assert all(row["train/loss"] > 0 and row["metrics/mAP50-95"] <= 1 for row in rows) and run.result["best_metric"] <= 1


@pytest.mark.slow
@pytest.mark.parametrize(("error", "ends_as"), [(LookupError("no room on the wall"), "failed"), (SystemExit("no room on the wall"), "interrupted")])
def test_an_exception_in_a_callback_ends_the_run_with_its_name_and_every_other_is_told(tiny: Path, tmp_path: Path, error: Any, ends_as: str) -> None:
    told = Told()
    with pytest.raises(type(error), match="no room on the wall"):
        train(tiny, tmp_path, callbacks=[Careless(error), told])
    (status,) = tmp_path.glob("*/status.json")
    assert state(status.parent)["state"] == ends_as
    assert f"Careless.on_epoch_end raised {type(error).__name__}: no room on the wall" in (status.parent / "train.log").read_text()
    assert told.verbs[-1] == "on_exception"


@pytest.mark.parametrize("key", ["callbacks", "loggers"])
def test_what_cannot_be_sent_to_workers_is_named_before_one_starts(tiny: Path, tmp_path: Path, key: str) -> None:
    def closure(event: Any) -> None: ...

    with Path(__file__).open() as file:
        for value, words in (
            (lambda event: None, f"{key}[1] is a lambda"),
            (closure, f"{key}[1] is the function 'closure' defined inside"),
            (Holder(file), f"{key}[1].held is an open file"),
        ):
            with pytest.raises(launch.PayloadError) as caught:
                LibreYOLO("yolo9t").train(tiny, **{**QUICK, "project": str(tmp_path), "nproc": 2, key: [Careless(), value]})
            assert words in str(caught.value) and "the built-in loggers (loggers=[csv,tensorboard,wandb,mlflow])" in str(caught.value)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ({"callbacks": [Careless]}, r"callbacks\[0\] is the class Careless: pass an instance, Careless\(\)\."),
        ({"callbacks": [Careless(), 3]}, r"callbacks\[1\]=3 has none of the methods on_train_start, .* and is no function"),
        ({"callbacks": lambda event: None}, r"callbacks=.* must be a list"),
        ({"callbacks": [Misnamed()]}, r"callbacks\[0\]: Misnamed\.on_epoch_ends would never be called\. Did you mean 'on_epoch_end'\?"),
        ({"callbacks": [OfAnotherKind()]}, r"OfAnotherKind\.on_epoch_end\(.*\) cannot be called as it will be, with one argument, the event"),
        ({"loggers": ["csv", lambda: None]}, r"loggers\[1\]: .*<lambda>\(\) cannot be called as it will be"),
        ({"loggers": "wandb"}, r"loggers='wandb' must be a list: loggers=\['wandb'\]\."),
        ({"loggers": ["csv", 3]}, r"loggers\[1\]=3 has none of the methods"),
        ({"loggers": ["wandbb", Careless()]}, r"loggers=wandbb is not known: .* Did you mean 'wandb'\?"),
    ],
)
def test_what_would_never_be_called_is_refused(tiny: Path, given: dict[str, Any], sentence: str) -> None:
    with pytest.raises(UserError, match=sentence):
        LibreYOLO("yolo9t").train(tiny, **given)


@pytest.mark.slow
def test_the_commands_at_the_end_work_as_they_are_printed(tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    run = train(tiny, tmp_path / "a folder, with marks (2)", epochs=1)
    printed = run.log.split("What to run next:\n")[1].splitlines()
    validate, predict, go_on = [shlex.split(line)[1:] if "go on" not in line else shlex.split(line)[2:] for line in printed]
    interpreter, script = shlex.split(shell.train())
    assert Path(shutil.which(interpreter) or "").samefile(sys.executable) and Path(script).samefile(ROOT / "train.py")
    monkeypatch.chdir(tmp_path)
    assert validate[:3] == predict[:3] == [interpreter, "-m", "libreyolo"]
    assert main(validate[3:]) == 0
    (line,) = [line for line in capsys.readouterr().out.splitlines() if line.startswith("metrics/mAP50-95 ")]
    assert float(line.split()[1]) == pytest.approx(read_results(run.folder / "results.csv")[0]["metrics/mAP50-95"], abs=5e-5)
    assert main(predict[3:]) == 0
    assert (tmp_path / "predictions" / "0.png").exists() or list((tmp_path / "predictions").iterdir())
    assert go_on[:2] == [interpreter, script]
    answer = train_py(*go_on[2:], "device=cpu", cwd=tmp_path)
    assert answer.code == 0, answer.stderr
    assert epochs_in(run) == [1, 2]
