"""float16's scaler: a step that it refuses moves nothing, neither weights nor counters. Runs on the CPU, where torch has a scaler too."""

from __future__ import annotations

import copy

import pytest
import torch

from libreyolo.engine.schedule import Schedule
from libreyolo.engine.step import TrainStep
from libreyolo.errors import UserError
from tests.unit.engine.test_trainer import Exploding
from tests.unit.engine.toy import CPU, ToyRun, ToyTask, toy_run


def float16_run(task: ToyTask, **plan: int) -> ToyRun:
    run = toy_run(task=task, schedule=Schedule("constant", 0.01, 100, momentum=0.9), **plan)
    run.trainer.step = TrainStep(run.trainer.net, task, run.trainer.step.optimizer, device=CPU, amp_dtype=torch.float16)
    # Its usual 65536 overflows the gradients of a loss as large as the toy's; a step that is refused for that is not what is tested here.
    run.trainer.step.scaler = torch.amp.GradScaler("cpu", init_scale=128.0)
    return run


def test_a_refused_step_moves_neither_weights_nor_average_nor_momentum_nor_counters() -> None:
    run = float16_run(Exploding(at=1), num_batches=1, epochs=1)
    parameters = [p.clone() for p in run.trainer.bare.parameters()]
    assert run.trainer.ema is not None
    average = copy.deepcopy(dict(run.trainer.ema.average.named_parameters()))
    with pytest.raises(UserError, match="Not one of the 1 steps moved the weights"):
        run.trainer.fit()
    assert all(torch.equal(a, b) for a, b in zip(parameters, run.trainer.bare.parameters(), strict=True))
    assert all(torch.equal(average[name], p) for name, p in run.trainer.ema.average.named_parameters())
    assert not run.trainer.step.optimizer.state
    progress = run.trainer.progress
    assert (progress.global_step, progress.skipped_steps, run.trainer.ema.updates) == (0, 1, 0)


def test_steps_average_and_schedule_stay_equal_after_a_refused_step() -> None:
    class OnceInfinite(Exploding):
        def terms(self, net, batch, facts):  # type: ignore[no-untyped-def]
            found = super().terms(net, batch, facts)
            self.at = 10**9 if self.calls == 2 else self.at
            return found

    run = float16_run(OnceInfinite(at=2), num_batches=4, epochs=2)
    run.trainer.fit()
    progress = run.trainer.progress
    assert run.trainer.ema is not None
    assert (progress.global_step, progress.skipped_steps, run.trainer.ema.updates) == (7, 1, 7)
    assert all(torch.isfinite(p).all() for p in run.trainer.bare.parameters())
    assert all(row["train/loss"] < 1e6 for row in run.rows), "the infinite loss of a refused step is in no mean"


def test_an_epoch_of_refused_steps_reports_no_loss_rather_than_zero() -> None:
    run = float16_run(Exploding(at=2), num_batches=1, epochs=2)
    run.trainer.fit()
    assert [row["train/loss"] is None for row in run.rows] == [False, True]


def test_the_scaler_unscales_before_the_weights_move() -> None:
    """One step in float16 lands where float32 does, within half precision."""
    half, whole = (
        float16_run(ToyTask(), num_batches=1, epochs=1),
        toy_run(num_batches=1, epochs=1, schedule=Schedule("constant", 0.01, 100, momentum=0.9)),
    )
    before = [p.clone() for p in half.trainer.bare.parameters()]
    half.trainer.fit(), whole.trainer.fit()
    for start, a, b in zip(before, half.trainer.bare.parameters(), whole.trainer.bare.parameters(), strict=True):
        assert torch.allclose(a - start, b - start, rtol=0.02, atol=1e-4)
    assert half.trainer.step.scaler.get_scale() == 128.0
