"""A step whose loss or gradient is not finite: it moves nothing, is counted and named, and ends the run where that is the policy."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from libreyolo.engine.loss_log import LossLog
from libreyolo.engine.norm_statistics import NormStatistics
from libreyolo.engine.optimizer import SGD, step_unless
from libreyolo.engine.refusal import MOST_IN_A_ROW, not_finite_tensor
from libreyolo.engine.schedule import Schedule
from libreyolo.errors import UserError
from libreyolo.interfaces.term import Term
from tests.unit.engine.toy import ToyLoader, ToyRun, ToyTask, toy_run

NAN = float("nan")


class Broken(ToyTask):
    """Its loss is `breaks(loss)` in the given forwards, counted from 1."""

    def __init__(self, at: set[int], breaks: Callable[[Tensor], Tensor] = lambda total: total * NAN, values: tuple[float, ...] = (0.5,)) -> None:
        super().__init__(values)
        self.at, self.breaks, self.calls = at, breaks, 0

    def terms(self, net: nn.Module, batch: Any, facts: dict[str, int]) -> dict[str, Term]:
        self.calls += 1
        (term,) = super().terms(net, batch, facts).values()
        total = self.breaks(term.total) if self.calls in self.at else term.total
        return {"fit": Term(total, term.stats, term.scale, term.normaliser)}


def everything(run: ToyRun) -> dict[str, Tensor]:
    """Return network, average and momentum."""
    assert run.trainer.ema is not None
    momentum = {f"momentum {i}": s["momentum_buffer"] for i, s in enumerate(run.trainer.step.optimizer.state.values())}
    average = {f"average {n}": t for n, t in run.trainer.ema.average.state_dict().items()}
    return {**run.trainer.bare.state_dict(), **average, **momentum}


@pytest.mark.parametrize(
    "breaks",
    [
        lambda total: total * NAN,
        lambda total: total * math.inf,
        lambda total: total + math.inf,
        lambda total: total.sqrt() * 1e-40 / 1e-38 * 1e38 * 1e38,
    ],
    ids=["nan", "inf", "an infinity without a gradient", "overflow"],
)
def test_a_run_with_a_refused_step_is_the_run_that_never_had_its_batch(breaks: Callable[[Tensor], Tensor]) -> None:
    curve = Schedule("cos", 0.05, 12, warmup_steps=3, momentum=0.9, warmup_momentum=0.5)
    run = toy_run(task=Broken({2}, breaks), num_batches=3, epochs=1, schedule=curve)
    run.trainer.fit()
    other = toy_run(num_batches=3, epochs=1, schedule=curve)
    loader = other.trainer.train_loader
    assert isinstance(loader, ToyLoader)
    del loader.batches[1]  # type: ignore[attr-defined]
    other.trainer.fit()
    found, expected = everything(run), everything(other)
    assert all(torch.equal(found[name], expected[name]) for name in expected)
    assert run.trainer.ema is not None
    progress = run.trainer.progress
    assert (progress.global_step, progress.skipped_steps, run.trainer.ema.updates) == (2, 1, 2)
    assert run.rows[0]["train/fit_loss"] == other.rows[0]["train/fit_loss"]
    assert run.rows[0]["lr/group0"] == curve.lr(1)


def test_the_statistics_of_batchnorm_survive_a_picture_that_is_not_finite() -> None:
    run = toy_run(num_batches=3, epochs=1)
    loader = run.trainer.train_loader
    assert isinstance(loader, ToyLoader)
    loader.batches[1][0][0, 0] = math.inf
    run.trainer.fit()
    assert run.trainer.progress.skipped_steps == 1
    assert all(torch.isfinite(t).all() for t in everything(run).values())
    assert int(run.trainer.bare[1].num_batches_tracked) == 2  # type: ignore[index]


def test_a_refused_step_is_named_with_its_term_its_place_its_rank_and_its_pictures(caplog: pytest.LogCaptureFixture) -> None:
    run = toy_run(task=Broken({5}), num_batches=3, epochs=2, log_interval=1000)
    run.trainer.fit()
    (said,) = [record.getMessage() for record in caplog.records]
    where = "A step was skipped in epoch 2, batch 2 of 3 (after 4 optimiser steps)"
    assert said == f"{where}: the loss is not finite: fit is nan on rank 0 (1.png). 1 skipped so far."


def test_a_gradient_that_alone_is_infinite_names_every_rank_s_pictures(caplog: pytest.LogCaptureFixture) -> None:
    def root_at_zero(total: Tensor) -> Tensor:
        return total + (total - total.detach()).abs().sqrt()  # its value is finite, its slope is not

    run = toy_run(task=Broken({1}, root_at_zero), num_batches=2, epochs=1)
    run.trainer.fit()
    assert "the gradient is not finite, though every term of the loss is (rank 0: 0.png)" in caplog.text
    assert run.trainer.progress.skipped_steps == 1


def test_stop_ends_the_run_at_once_with_finite_weights_saved_at_their_place() -> None:
    run = toy_run(task=Broken({5}), num_batches=3, epochs=4, nonfinite="stop")
    saved: list[tuple[int, int, int]] = []

    def save_midway(losses: LossLog) -> None:
        progress = run.trainer.progress
        saved.append((progress.epoch, progress.step_in_epoch, progress.global_step))
        assert all(torch.isfinite(t).all() for t in everything(run).values())

    run.trainer.save_midway = save_midway
    with pytest.raises(
        UserError, match=r"^In epoch 2, batch 2 of 3 \(after 4 optimiser steps\): the loss is not finite: fit is nan on rank 0 \(1.png\); the"
    ):
        run.trainer.fit()
    assert saved == [(1, 2, 4)]
    assert [summary.epoch for summary in run.saved] == [0]
    # The step after it was under way already: nothing of it is left.
    whole = toy_run(task=Broken({5}), num_batches=3, epochs=4, max_steps=5)
    whole.trainer.fit()
    found, expected = everything(run), everything(whole)
    assert all(torch.equal(found[name], expected[name]) for name in expected if not name.startswith(("average", "1.")))


@pytest.mark.parametrize(("num_batches", "last"), [(100, MOST_IN_A_ROW), (3, 6)])
def test_too_many_in_a_row_end_the_run(num_batches: int, last: int) -> None:
    """Twenty, or all steps of two epochs."""
    task = Broken(set(range(2, 1000)))
    run = toy_run(task=task, num_batches=num_batches, epochs=9)
    with pytest.raises(UserError, match=rf"^{last} steps in a row were refused, the last one in epoch .*fit is nan on rank 0"):
        run.trainer.fit()
    assert run.trainer.progress.skipped_steps == last
    assert run.trainer.progress.global_step == 1


def test_a_run_that_never_moved_is_no_success() -> None:
    run = toy_run(task=Broken({1, 2}), num_batches=2, epochs=1)
    with pytest.raises(UserError, match="Not one of the 2 steps moved the weights"):
        run.trainer.fit()


def test_an_average_that_is_not_finite_starts_anew_and_weights_that_are_not_end_the_run(caplog: pytest.LogCaptureFixture) -> None:
    run = toy_run(num_batches=2, epochs=2)
    assert run.trainer.ema is not None
    average, bare = run.trainer.ema.average.state_dict(keep_vars=True), run.trainer.bare.state_dict(keep_vars=True)
    average["0.weight"].data[0, 0] = math.inf

    def weights_overflow(summary: Any) -> None:
        if summary.epoch == 0:
            assert all(torch.equal(average[name], bare[name]) for name in bare)
        bare["2.bias"].data[0] = math.nan if summary.epoch == 0 else 0.0

    run.trainer.save = weights_overflow
    with pytest.raises(UserError, match=r"The weights are not finite after epoch 2 \(tensor 2\.bias\)"):
        run.trainer.fit()
    assert "The average of the weights is not finite after epoch 1 (tensor 0.weight): it starts anew from them." in caplog.text


def test_weights_that_overflow_are_never_handed_on() -> None:
    run = toy_run(num_batches=2, epochs=3, schedule=Schedule("constant", math.inf, 100))
    with pytest.raises(UserError, match=r"The weights are not finite after epoch 1 \(tensor"):
        run.trainer.fit()
    assert run.saved == []


def two_optimizers(kind: type, **options: Any) -> tuple[list[nn.Parameter], Any, list[nn.Parameter], Any]:
    torch.manual_seed(0)
    one = [nn.Parameter(torch.randn(5, 3)), nn.Parameter(torch.randn(4))]
    other = copy.deepcopy(one)
    return one, kind(one, lr=0.1, fused=True, **options), other, kind(other, lr=0.1, **options)


WITH_MOMENTUM = {"momentum": 0.9, "nesterov": True}


@pytest.mark.parametrize(("kind", "options"), [(torch.optim.SGD, WITH_MOMENTUM), (SGD, WITH_MOMENTUM), (torch.optim.AdamW, {})])
def test_a_fused_optimiser_looks_at_the_flag_itself_also_in_its_first_step(kind: type, options: dict[str, Any]) -> None:
    """Steps 1 and 3 are refused; the other two must be the first two of an optimiser that never saw these."""
    one, fused, other, plain = two_optimizers(kind, **options)
    for number in range(4):
        refused = number % 2 == 0
        for index, (a, b) in enumerate(zip(one, other, strict=True)):
            a.grad = torch.full_like(a, NAN if refused else 0.1 * (number + index))
            b.grad = a.grad.clone()
        before = [p.detach().clone() for p in one]
        step_unless(torch.tensor([float(refused)]), fused)
        assert not hasattr(fused, "found_inf")
        if refused:
            assert all(torch.equal(a, b) for a, b in zip(before, one, strict=True))
        else:
            plain.step()
        for a, b in zip(one, other, strict=True):
            torch.testing.assert_close(a, b)
    for a, b in zip(one, other, strict=True):
        for name, value in plain.state[b].items():
            torch.testing.assert_close(fused.state[a][name], value, msg=name)


@pytest.mark.parametrize("kind", [torch.optim.SGD, SGD])
def test_a_parameter_whose_first_gradient_comes_late_and_is_refused_still_starts_from_no_momentum(kind: type) -> None:
    one, fused, other, plain = two_optimizers(kind, momentum=0.9)
    for number, refused in enumerate((False, True, False)):
        for index, (a, b) in enumerate(zip(one, other, strict=True)):
            if number > 0 or index == 0:
                a.grad = torch.full_like(a, NAN if refused else 0.1 * (number + 1))
                b.grad = a.grad.clone()
        step_unless(torch.tensor([float(refused)]), fused)
        if number == 1:
            assert not fused.state[one[1]]["momentum_buffer"].any()
        if not refused:
            plain.step()
    for a, b in zip(one, other, strict=True):
        torch.testing.assert_close(a, b)


def test_statistics_go_back_only_where_they_are_wanted() -> None:
    net = nn.Sequential(nn.Conv2d(3, 4, 1), nn.BatchNorm2d(4), nn.BatchNorm2d(4, track_running_stats=False), nn.BatchNorm2d(4))
    norms = NormStatistics(net)
    before = copy.deepcopy(net.state_dict())
    norms.take()
    net(torch.randn(2, 3, 5, 5))
    moved = copy.deepcopy(net.state_dict())
    norms.put_back(torch.zeros(1))
    assert all(torch.equal(value, moved[name]) for name, value in net.state_dict().items())
    assert torch.equal(norms.of(net[1].running_mean), before["1.running_mean"])
    norms.put_back(torch.ones(1))
    assert all(torch.equal(value, before[name]) for name, value in net.state_dict().items())
    assert not torch.equal(moved["3.running_var"], before["3.running_var"])


def test_a_network_without_batchnorm_has_nothing_to_put_back() -> None:
    norms = NormStatistics(nn.Linear(2, 2))
    norms.take()
    norms.put_back(torch.ones(1))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
@pytest.mark.parametrize("value", [NAN, math.inf, -math.inf])
def test_a_tensor_is_named_where_one_element_is_not_finite_and_not_where_all_are_large(dtype: torch.dtype, value: float) -> None:
    most = torch.finfo(dtype).max  # whose square is no number of this type any more
    state = {"count": torch.tensor(3), "large": torch.full((70, 3), most, dtype=dtype), "none": torch.zeros(0, dtype=dtype), "one": torch.ones(5)}
    assert not_finite_tensor(state) is None
    assert not_finite_tensor({}) is None
    state["broken"] = torch.ones((40, 9), dtype=dtype)
    state["broken"][39, 8] = value
    state["later"] = torch.tensor(NAN)
    assert not_finite_tensor(state) == "broken"
