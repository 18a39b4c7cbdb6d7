"""A signal in the middle of an epoch or of a validation: what is saved leads to the run that nobody interrupted, bit for bit."""

from __future__ import annotations

import copy
import signal
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.distributed import TCPStore

from libreyolo.engine import collectives, interruption, rank_state
from libreyolo.engine.interruption import Interrupted, Interruption
from libreyolo.engine.loss_log import LossLog
from libreyolo.engine.progress import Progress
from libreyolo.engine.schedule import Schedule
from tests.unit.engine.test_refused import everything
from tests.unit.engine.toy import ToyRun, ToyTask, toy_run

CURVE = Schedule("yoloxwarmcos", 0.05, 15, warmup_steps=4, tail_steps=3, momentum=0.9, warmup_momentum=0.5)


class Asking(ToyTask):
    """Asks to leave in a forward of training or of validation, both counted from 1; the wish of a signal handler, without the signal."""

    def __init__(self, wish: Interruption, *, in_step: int = 0, in_validation: int = 0) -> None:
        super().__init__(values=(0.5, 0.4, 0.6, 0.3, 0.7))
        self.wish, self.in_step, self.in_validation = wish, in_step, in_validation
        self.steps, self.forwards = 0, 0

    def terms(self, net: nn.Module, batch: Any, facts: dict[str, int]) -> Any:
        self.steps += 1
        if self.steps == self.in_step:
            self.wish.ask(15)
        return super().terms(net, batch, facts)

    def forward(self, net: nn.Module, batch: Any) -> Tensor:
        self.forwards += 1
        if self.forwards == self.in_validation:
            self.wish.ask(10)
        return super().forward(net, batch)


class Life:
    """A run that may be interrupted, and what it saved then."""

    def __init__(self, task: ToyTask, wish: Interruption, before: Life | None = None, **plan: Any) -> None:
        numbers: dict[str, Any] = {"epochs": 3, "num_batches": 5, "schedule": CURVE, "log_interval": 2, **plan}
        progress = Progress.from_dict(before.saved["progress"]) if before else None
        self.run: ToyRun = toy_run(task=task, progress=progress, **numbers)
        trainer = self.run.trainer
        trainer.interruption, trainer.step.asked_to_leave = wish, wish.asked
        trainer.save_midway = self.save
        self.saved: dict[str, Any] = {}
        if before:
            self.restore(before.saved)

    @property
    def modules(self) -> list[nn.Module]:
        assert self.run.trainer.ema is not None
        return [self.run.trainer.bare, self.run.trainer.ema.average]

    def save(self, losses: LossLog) -> None:
        trainer = self.run.trainer
        assert trainer.ema is not None
        parts = {"progress": trainer.progress.as_dict(), "modules": [m.state_dict() for m in self.modules], "updates": trainer.ema.updates}
        parts |= {"optimizer": trainer.step.optimizer.state_dict(), "ranks": rank_state.gathered(losses, self.modules)}
        self.saved = copy.deepcopy(parts)

    def restore(self, saved: dict[str, Any]) -> None:
        trainer = self.run.trainer
        assert trainer.ema is not None
        for module, state in zip(self.modules, saved["modules"], strict=True):
            module.load_state_dict(state)
        trainer.ema.updates = saved["updates"]
        trainer.step.optimizer.load_state_dict(saved["optimizer"])
        trainer.earlier_losses = rank_state.put_back(saved["ranks"], self.modules)


def rows(*lives: Life) -> list[dict[str, Any]]:
    return [{k: v for k, v in row.items() if k != "time" and not k.startswith(("speed/", "system/"))} for life in lives for row in life.run.rows]


def unbroken(**plan: Any) -> Life:
    life = Life(Asking(Interruption()), Interruption(), **plan)
    life.run.trainer.fit()
    return life


def assert_goes_on(first: Life, whole: Life, validations: int, **plan: Any) -> None:
    task = Asking(Interruption())
    task.validations = validations  # the metric of the toy is told by its number
    second = Life(task, Interruption(), before=first, **plan)
    second.run.trainer.fit()
    found, expected = everything(second.run), everything(whole.run)
    assert all(torch.equal(found[name], expected[name]) for name in expected)
    assert rows(first, second) == rows(whole)


@pytest.mark.parametrize("accumulate", [1, 2])
@pytest.mark.parametrize("step", [1, 2, 4, 5, 7])
def test_an_interrupted_epoch_goes_on_where_it_was_left(step: int, accumulate: int) -> None:
    """Five micro-batches an epoch; forward 4 is so late that the epoch's last step is taken, forward 5 its last."""
    wish = Interruption()
    first = Life(Asking(wish, in_step=step), wish, accumulate=accumulate)
    with pytest.raises(Interrupted) as ended:
        first.run.trainer.fit()
    assert ended.value.code == 143
    progress = first.saved["progress"]
    assert progress["epoch"] == (step - 1) // 5
    assert 0 < progress["step_in_epoch"] <= 5
    assert progress["epoch"] * 5 + progress["step_in_epoch"] - step <= 2 * accumulate, "it leaves after the step under way and one more"
    assert_goes_on(first, unbroken(accumulate=accumulate), progress["epoch"], accumulate=accumulate)


@pytest.mark.parametrize("forward", [1, 2, 4])
def test_an_interrupted_validation_is_left_and_made_again(forward: int) -> None:
    """Two batches a validation; asked in the last forward of one, its result counts and the next epoch begins, or not."""
    wish = Interruption()
    first = Life(Asking(wish, in_validation=forward), wish)
    with pytest.raises(Interrupted) as ended:
        first.run.trainer.fit()
    assert ended.value.code == 138
    if forward == 1:
        assert first.run.rows == []
        assert (first.saved["progress"]["epoch"], first.saved["progress"]["step_in_epoch"]) == (0, 5)
        assert_goes_on(first, unbroken(), 0)
    else:
        assert len(first.run.rows) == forward // 2
        assert first.run.saved[-1].epoch == forward // 2 - 1  # the checkpoint of the epoch's end is all there is to save
        assert not first.saved


def test_a_wish_that_comes_with_the_last_epoch_s_end_changes_nothing() -> None:
    wish = Interruption()
    life = Life(Asking(wish, in_validation=6), wish)
    life.run.trainer.fit()
    assert len(life.run.rows) == 3 and life.run.trainer.completed


def test_outside_of_training_a_wish_ends_the_process_at_once() -> None:
    wish = Interruption()
    with pytest.raises(Interrupted) as ended:
        wish.ask(15)
    assert (ended.value.code, str(ended.value)) == (143, "SIGTERM")
    wish.ask(10)  # and is not disturbed in leaving
    assert wish.number == 15


def test_a_rank_that_leaves_for_another_s_wish_is_not_disturbed_in_it_either(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(collectives, "max_integers", lambda values, device: dict.fromkeys(values, 10))
    wish = Interruption()
    assert wish.agreed(torch.device("cpu")) == 10
    wish.ask(10)  # the launcher tells every rank once one has left


def test_the_losses_of_an_epoch_go_on_with_another_number_of_ranks() -> None:
    log = LossLog(torch.device("cpu"))
    log.add({"box": torch.tensor(2.0)}, 4)
    states = [{"losses": log.state(), "buffers": [torch.tensor([1.0])]}, {"losses": log.state(), "buffers": [torch.tensor([4.0])]}]
    norm = nn.Module()
    norm.register_buffer("mean", torch.zeros(1))
    earlier = rank_state.put_back(states, [norm])
    assert norm.mean.tolist() == [2.5]
    again = LossLog(torch.device("cpu"), earlier)
    assert again.read().wait() == {"box": 4.0}  # 2 on each of two ranks, over 4 pictures of both
    assert (again.pictures, again.pictures_before) == (4, 4)


def test_a_store_that_cannot_be_reached_is_a_wish_to_leave(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever started the ranks holds it: torchrun's agent, say, which another signal has ended."""
    server = TCPStore("127.0.0.1", 0, 1, is_master=True, wait_for_workers=False)
    mine = TCPStore("127.0.0.1", server.port, 1, is_master=False, wait_for_workers=False)
    monkeypatch.setattr(collectives, "_store", lambda: mine)
    monkeypatch.setattr(collectives, "world_size", lambda: 2)
    monkeypatch.setattr(interruption, "LOOK_SECONDS", 0.0)
    wish, asked = Interruption(), Interruption()
    with wish.held():
        assert not wish.asked_anywhere()
        del server
        assert wish.asked_anywhere() and wish.number == signal.SIGTERM
        assert wish.asked_anywhere()  # and is asked once
    with asked.held():
        asked.ask(signal.SIGUSR1)
        assert asked.asked_anywhere() and asked.number == signal.SIGUSR1
