"""The trainer's rules: what is validated when, what is best, when it ends, and that it goes on where it stopped."""

from __future__ import annotations

import copy
import math

import pytest
import torch

from libreyolo.engine.progress import Progress
from libreyolo.engine.schedule import Schedule
from tests.graphs import Watched
from tests.unit.engine.test_schedule import KINDS
from tests.unit.engine.toy import ToyMetric, ToyRun, ToyTask, toy_run

NAN = float("nan")


def validated(run: ToyRun) -> list[int]:
    return [row["epoch"] for row in run.rows if row["validated"]]


def test_a_best_of_exactly_zero_is_still_a_best() -> None:
    run = toy_run(values=[0.0, 0.0, 0.0, 0.0])
    run.trainer.fit()
    assert [row["is_best"] for row in run.rows] == [True, False, False, False]
    assert (run.trainer.progress.best_value, run.trainer.progress.best_epoch) == (0.0, 1)


def test_a_metric_that_is_nan_is_never_best() -> None:
    run = toy_run(values=[NAN, 0.3, NAN, 0.2])
    run.trainer.fit()
    assert [row["is_best"] for row in run.rows] == [False, True, False, False]
    assert run.trainer.progress.best_epoch == 2


def test_the_metrics_of_the_best_epoch_are_remembered() -> None:
    run = toy_run(values=[0.1, 0.7, 0.4, 0.5])
    run.trainer.fit()
    assert run.trainer.progress.best_metrics["metrics/toy"] == 0.7
    assert [row["best_metric"] for row in run.rows] == [0.1, 0.7, 0.7, 0.7]


def test_loader_processes_of_a_validation_start_when_one_more_step_is_left_before_it():
    run = toy_run(num_batches=3, epochs=3, eval_interval=2)
    seen = []
    run.trainer.val_loader.start = lambda epoch: seen.append((epoch, run.trainer.progress.epoch, run.trainer.progress.global_step))
    run.trainer.fit()
    assert seen == [(0, 1, 4), (0, 2, 7)]  # of epochs 2 and 3, whose second step of three is under way: the one before it is counted


@pytest.mark.parametrize(("interval", "expected"), [(1, [1, 2, 3, 4, 5]), (2, [2, 4, 5]), (3, [3, 5]), (9, [5]), (0, [])])
def test_validation_comes_every_few_epochs_and_after_the_last(interval: int, expected: list[int]) -> None:
    run = toy_run(epochs=5, eval_interval=interval)
    run.trainer.fit()
    assert validated(run) == expected


def test_without_a_validation_split_nothing_is_validated_and_no_epoch_is_best() -> None:
    run = toy_run(validate=False)
    run.trainer.fit()
    assert validated(run) == []
    assert not any(row["is_best"] for row in run.rows)
    assert len(run.saved) == 4


def test_patience_counts_epochs_since_the_best() -> None:
    run = toy_run(values=[0.1, 0.5, 0.4, 0.4, 0.4, 0.4], epochs=20, patience=3)
    run.trainer.fit()
    assert len(run.rows) == 5  # best after epoch 2, three epochs without a better one


def test_only_a_validation_ends_a_run_by_patience() -> None:
    """With a validation every 4 epochs and a patience of 2, the epochs in between prove nothing."""
    run = toy_run(values=[0.1, 0.5, 0.4], epochs=20, patience=2, eval_interval=4)
    run.trainer.fit()
    assert validated(run) == [4, 8, 12]
    assert len(run.rows) == 12


def test_patience_of_zero_never_ends_a_run() -> None:
    run = toy_run(values=[0.5, 0.1], epochs=6, patience=0)
    run.trainer.fit()
    assert len(run.rows) == 6


def test_a_run_that_patience_ended_does_not_go_on_when_resumed() -> None:
    first = toy_run(values=[0.5, 0.1], epochs=20, patience=2)
    first.trainer.fit()
    second = toy_run(epochs=20, patience=2, progress=Progress.from_dict(first.trainer.progress.as_dict()))
    assert second.trainer.fit() == []


def test_max_steps_ends_within_an_epoch_and_still_validates_and_saves() -> None:
    run = toy_run(num_batches=3, epochs=4, max_steps=5, eval_interval=4)
    run.trainer.fit()
    assert run.trainer.progress.global_step == 5
    assert validated(run) == [2]
    assert len(run.saved) == 2
    assert run.trainer.stopped_by == "max_steps=5"
    left = [event.eta_seconds for name, event in run.told if name == "on_step_end"]
    assert left[0] > 0 == left[-1]  # the time to max_steps, not to the last epoch


@pytest.mark.parametrize("epochs", [1, 2])  # inside the last epoch, and at the end of the one before it
def test_max_steps_is_named_as_what_stopped_the_run(epochs: int) -> None:
    run = toy_run(num_batches=4 // epochs, epochs=epochs, max_steps=2)
    run.trainer.fit()
    assert run.trainer.stopped_by == "max_steps=2"


def test_max_steps_that_are_all_steps_stopped_nothing() -> None:
    run = toy_run(num_batches=3, epochs=2, max_steps=6)
    run.trainer.fit()
    assert (run.trainer.progress.global_step, run.trainer.stopped_by) == (6, "")


def test_stop_after_epoch_does_nothing_that_an_unbroken_run_would_not() -> None:
    looked = []
    run = toy_run(epochs=6, eval_interval=4, stop_after_epoch=2, before_last_validation=lambda net, epoch: looked.append(epoch))
    run.trainer.fit()
    assert (len(run.rows), validated(run), looked) == (2, [], [])


def test_the_hook_before_the_last_validation_also_runs_when_patience_ends_the_run_and_may_make_it_the_best() -> None:
    """Validations: 0.5, 0.1, 0.1 (patience is out), and the one after the hook."""
    looked = []
    hook = lambda net, epoch: looked.append(epoch)  # noqa: E731
    run = toy_run(values=[0.5, 0.1, 0.1, 0.9], epochs=20, patience=2, before_last_validation=hook)
    run.trainer.fit()
    assert looked == [2]
    assert [row["current_metric"] for row in run.rows] == [0.5, 0.1, 0.9]
    assert (run.rows[-1]["is_best"], run.trainer.progress.best_epoch, run.trainer.completed) == (True, 3, True)
    saved = run.trainer.progress.as_dict()
    assert toy_run(epochs=20, patience=2, progress=Progress.from_dict(saved)).trainer.fit() == []
    assert len(toy_run(epochs=4, patience=3, progress=Progress.from_dict(saved)).trainer.fit()) == 1  # more patience than ended it


def test_the_hook_before_the_last_validation_runs_once_on_the_judged_network() -> None:
    looked = []
    run = toy_run(epochs=3, before_last_validation=lambda net, epoch: looked.append((net, epoch)))
    run.trainer.fit()
    assert run.trainer.ema is not None
    assert looked == [(run.trainer.ema.average, 2)]


def weights(run: ToyRun) -> list[torch.Tensor]:
    assert run.trainer.ema is not None
    return [*run.trainer.bare.state_dict().values(), *run.trainer.ema.average.state_dict().values()]


@pytest.mark.parametrize("accumulate", [1, 2])
def test_a_run_in_two_parts_equals_an_unbroken_one(accumulate: int) -> None:
    curve = Schedule("yoloxwarmcos", 0.05, 18, warmup_steps=7, tail_steps=3, momentum=0.9, warmup_momentum=0.5)
    whole = toy_run(epochs=6, schedule=curve, accumulate=accumulate)
    whole.trainer.fit()
    first = toy_run(epochs=6, schedule=curve, accumulate=accumulate, stop_after_epoch=2)
    first.trainer.fit()
    second = toy_run(epochs=6, schedule=curve, accumulate=accumulate, progress=Progress.from_dict(first.trainer.progress.as_dict()))
    second.trainer.bare.load_state_dict(first.trainer.bare.state_dict())
    assert second.trainer.ema is not None
    assert first.trainer.ema is not None
    second.trainer.ema.average.load_state_dict(first.trainer.ema.average.state_dict())
    second.trainer.ema.updates = first.trainer.ema.updates
    second.trainer.step.optimizer.load_state_dict(copy.deepcopy(first.trainer.step.optimizer.state_dict()))
    second.trainer.fit()
    assert all(torch.equal(a, b) for a, b in zip(weights(whole), weights(second), strict=True))
    ours, theirs = [
        [{k: v for k, v in row.items() if k != "time" and not k.startswith(("speed/", "system/"))} for row in rows]
        for rows in (whole.rows[2:], second.rows)
    ]
    assert ours == theirs


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("stops", [(1,), (2,), (1, 2, 3)])
def test_the_learning_rate_of_every_step_is_the_same_with_stops_inside_the_warm_up(kind: str, stops: tuple[int, ...]) -> None:
    """Three steps an epoch, a warm-up of seven: stops after 1 and 2 epochs fall into it."""
    curve = Schedule(kind, 0.05, 15, warmup_steps=7, lr_start=0.001, min_ratio=0.1, tail_steps=3, drop_step=11, momentum=0.9, warmup_momentum=0.5)

    def series(run: ToyRun) -> list[tuple[float, float]]:
        seen: list[tuple[float, float]] = []
        optimizer = run.trainer.step.optimizer
        optimizer.register_step_pre_hook(lambda *_: seen.append((optimizer.param_groups[0]["lr"], optimizer.param_groups[0]["momentum"])))
        run.trainer.fit()
        return seen

    straight = series(toy_run(epochs=5, schedule=curve))
    assert straight == [(curve.lr(step), curve.momentum_at(step)) for step in range(15)]
    broken: list[tuple[float, float]] = []
    progress = Progress()
    for stop in (*stops, None):
        run = toy_run(epochs=5, schedule=curve, progress=Progress.from_dict(progress.as_dict()), stop_after_epoch=stop)
        broken += series(run)
        progress = run.trainer.progress
    assert broken == straight


class Exploding(ToyTask):
    """Its loss becomes infinite from the given forward on."""

    def __init__(self, at: int) -> None:
        super().__init__()
        self.at, self.calls = at, 0

    def terms(self, net, batch, facts):  # type: ignore[no-untyped-def]
        self.calls += 1
        found = super().terms(net, batch, facts)
        if self.calls < self.at:
            return found
        term = found["fit"]
        return {"fit": type(term)(term.total * math.inf, term.stats, term.scale, term.normaliser)}


def test_the_reported_loss_is_the_mean_over_the_pictures_of_the_epoch() -> None:
    run = toy_run(num_batches=3, epochs=1, ema=False, schedule=Schedule("constant", 0.0, 10))
    run.trainer.bare.eval()  # the expected value is computed with the same statistics
    net = copy.deepcopy(run.trainer.bare).train()
    expected = [(net(x) - y).square().mean().item() for x, y in run.trainer.train_loader.batches]  # type: ignore[attr-defined]
    run.trainer.fit()
    assert run.rows[0]["train/loss"] == pytest.approx(sum(expected) / 3, rel=1e-5)
    assert run.rows[0]["train/fit_loss"] == run.rows[0]["train/loss"]


def test_step_events_come_every_log_interval_and_at_the_end_of_an_epoch() -> None:
    run = toy_run(num_batches=5, epochs=1, log_interval=2)
    run.trainer.fit()
    events = [event for name, event in run.told if name == "on_step_end"]
    assert [event.step for event in events] == [2, 4, 5]
    assert all(math.isfinite(event.losses["fit"]) for event in events)


def test_a_listener_that_asks_for_the_end_gets_it_after_the_epoch_whose_checkpoint_is_saved() -> None:
    asked = iter(["", "Flat.on_epoch_end (flat)"])
    run = toy_run(epochs=9, stop_asked=lambda: next(asked))
    run.trainer.fit()
    assert (len(run.rows), len(run.saved)) == (2, 2)
    assert run.trainer.stopped_by == "Flat.on_epoch_end (flat)"


def test_nobody_stopped_a_run_that_reached_its_last_epoch() -> None:
    run = toy_run(epochs=1, stop_asked=lambda: "Late.on_epoch_end")
    run.trainer.fit()
    assert run.trainer.stopped_by == ""


def test_patience_is_named_as_what_stopped_the_run() -> None:
    run = toy_run(values=[0.5, 0.1], epochs=20, patience=2)
    run.trainer.fit()
    assert run.trainer.stopped_by == "patience (no better metrics/toy for 2 epochs)"


class ClassyMetric(ToyMetric):
    def class_metrics(self) -> list[tuple[str, dict[str, float]]]:
        return [("cat", {"hit": 0.25}), ("dog", {"hit": 0.5}), ("dog", {"hit": 0.75})]


class ClassyTask(ToyTask):
    def metric(self) -> ToyMetric:
        return ClassyMetric(0.5)


def test_a_row_has_speed_waiting_and_memory_and_then_the_metrics_of_every_class() -> None:
    run = toy_run(epochs=2, eval_interval=2, task=ClassyTask())
    run.trainer.fit()
    first, second = run.rows
    assert list(first)[-3:] == ["system/images_per_second", "system/waiting_share", "system/gpu_memory_gb"]
    assert first["system/images_per_second"] > 0
    assert (first["system/waiting_share"], first["system/gpu_memory_gb"]) == (0.0, 0.0)
    classes = {"class/cat/hit": 0.25, "class/dog 1/hit": 0.5, "class/dog 2/hit": 0.75}
    assert dict(list(second.items())[-3:]) == classes
    (told,) = [event for name, event in run.told if name == "on_validation_end"]
    assert told.classes == classes


def test_no_graph_of_an_earlier_step_is_alive_when_the_network_is_called_in_training() -> None:
    run = toy_run(epochs=2, accumulate=2, val_loss=True)
    watched = Watched(run.trainer.bare)
    run.trainer.fit()
    assert (watched.look(), watched.calls) == (0, 2 * 3)  # the average is what is validated


def test_an_epoch_is_recorded_when_the_one_before_it_is_saved() -> None:
    run, order = toy_run(epochs=3), []
    trainer, tell, save = run.trainer, run.trainer.tell, run.trainer.save
    trainer.tell = lambda name, event: (order.append(f"{name} {event.epoch}") if name == "on_epoch_end" else None, tell(name, event))[1]
    trainer.save = lambda summary: (order.append(f"save {summary.epoch + 1}"), save(summary))[1]
    trainer.tell_saved = lambda *, wait=False: order.append("wait") if wait else None
    trainer.fit()
    assert order == [word for number in (1, 2, 3) for word in ("wait", f"on_epoch_end {number}", f"save {number}")]
