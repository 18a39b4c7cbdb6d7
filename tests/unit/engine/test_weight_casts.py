"""Weights that are cast together give the numbers of autocast's own casts, bit for bit, in few operators."""

from __future__ import annotations

import copy
from collections import Counter
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from libreyolo import build, schema
from libreyolo.assembly import assembly_for
from libreyolo.assembly.parts import Seat
from libreyolo.engine import weight_casts
from libreyolo.engine.progress import Progress
from libreyolo.engine.step import TrainStep
from libreyolo.engine.weight_casts import cast_together
from libreyolo.interfaces.term import Term
from tests.dist.equality.shards import DATASETS
from tests.unit.engine.operators import Operators
from tests.unit.engine.toy import CPU, ToyTask, toy_batches

HALF = torch.bfloat16


class Mixed(nn.Module):
    """Layers that take casts, in several places and with one weight too, and those that must not: frozen, with autocast off, read by other code."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.conv = nn.Conv2d(2, 6, 1)
        self.frozen = nn.Conv2d(6, 6, 1).requires_grad_(False)
        self.grouped = nn.Conv2d(6, 6, 1, groups=2, bias=False)
        self.attention = nn.MultiheadAttention(6, 2, batch_first=True)
        self.first = self.again = nn.Linear(6, 6)
        self.tied = nn.Linear(6, 6)
        self.tied.weight = self.first.weight
        self.exact = nn.Linear(6, 6)
        self.last = nn.Linear(6, 1)

    def forward(self, x: Tensor) -> Tensor:
        x = self.grouped(self.frozen(self.conv(x[:, :, None, None])).relu()).flatten(1)
        x = x + self.attention(x[None], x[None], x[None], need_weights=False)[0][0]
        x = self.tied(self.again(self.first(x).relu()).relu()).relu()
        with torch.autocast("cpu", enabled=False):
            x = self.exact(x.float())
        found: Tensor = self.last(x)
        return found


class Float(ToyTask):
    """The toy's error, of outputs in float32."""

    def terms(self, net: nn.Module, batch: Any, facts: dict[str, int]) -> dict[str, Term]:
        return super().terms(lambda x: net(x).float(), batch, facts)  # type: ignore[arg-type]


def step_of(net: nn.Module) -> TrainStep:
    trained = [p for p in net.parameters() if p.requires_grad]
    optimizer = torch.optim.SGD(trained, lr=0.01, momentum=0.9)
    return TrainStep(net, Float(), optimizer, device=CPU, amp_dtype=HALF, clip_max_norm=1.0)


def test_three_steps_are_those_of_autocast_s_own_casts_bit_for_bit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(weight_casts, "CHUNK", 3)
    net = Mixed().train()
    plain = copy.deepcopy(net)
    steps = step_of(net), step_of(plain)
    with cast_together(net, HALF):
        for seed in range(3):
            window = toy_batches(2, seed=seed)
            for step in steps:
                step.backward(window, [4, 4])
            for (name, found), expected in zip(net.named_parameters(), plain.parameters(), strict=True):
                assert (found.grad is None) == (expected.grad is None), name
                assert found.grad is None or expected.grad is None or torch.equal(found.grad, expected.grad), name
            for step in steps:
                assert step.move().wait()[0] == 0
    assert all(torch.equal(a, b) for a, b in zip(net.parameters(), plain.parameters(), strict=True))
    assert not torch.equal(net.last.weight, Mixed().last.weight)


def test_a_layer_that_runs_without_a_gradient_first_still_gets_one() -> None:
    net = Mixed().train()
    forward = net.forward

    def looks_first(x: Tensor) -> Tensor:
        with torch.no_grad():
            forward(x)
        return forward(x)

    net.forward = looks_first  # type: ignore[method-assign]
    with cast_together(net, HALF), torch.autocast("cpu", HALF):
        net(torch.randn(3, 2)).sum().backward()
    assert all(p.grad is not None for module in (net.conv, net.grouped, net.first, net.last) for p in module.parameters())


def operators(num_layers: int) -> Counter[str]:
    net = nn.Sequential(nn.Linear(2, 4), *[nn.Linear(4, 4) for _ in range(num_layers)], nn.Linear(4, 1)).train()
    step = step_of(net)
    with cast_together(net, HALF), Operators() as counted:
        step.backward(toy_batches(1), [4])
    assert all(p.grad is not None and p.grad.dtype == torch.float32 for p in net.parameters())
    return counted.seen


def test_casts_are_two_operators_for_each_chunk_however_many_layers_there_are() -> None:
    few, many = operators(2), operators(46)  # 8 and 96 parameters
    assert (few["_foreach_copy_"], many["_foreach_copy_"]) == (2, 6)
    assert few["_to_copy"] == many["_to_copy"]  # of pictures and outputs


def test_gradients_of_late_layers_are_there_before_early_ones_are_reached(monkeypatch: pytest.MonkeyPatch) -> None:
    """So under DDP their all-reduce has a backward to hide behind."""
    monkeypatch.setattr(weight_casts, "CHUNK", 2)
    net = nn.Sequential(*[nn.Linear(2, 2, bias=False) for _ in range(4)]).train()
    order: list[str] = []
    net[3].weight.register_post_accumulate_grad_hook(lambda parameter: order.append("late weight"))  # type: ignore[operator]
    net[1].register_full_backward_pre_hook(lambda module, gradient: order.append("early layer"))
    with cast_together(net, HALF), torch.autocast("cpu", HALF):
        net(torch.randn(3, 2)).sum().backward()
    assert order == ["late weight", "early layer"]


def test_only_a_training_forward_of_the_network_in_this_precision_casts_together() -> None:
    net = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 1)).train()
    x = torch.randn(3, 2)

    def casts(run: Any, **autocast: Any) -> bool:
        with torch.autocast("cpu", **{"dtype": HALF, **autocast}), Operators() as counted:
            run(x)
        return counted.seen["_foreach_copy_"] > 0

    with cast_together(net, HALF):
        assert casts(net)
        assert not casts(net, dtype=torch.float16)
        assert not casts(net, enabled=False)
        assert not casts(net[0])
        with torch.no_grad():
            assert not casts(net)
        assert not casts(net.eval())
        net.train()
        with pytest.raises(RuntimeError):
            net(torch.randn(3, 5))  # fails midway
        assert not casts(net[0])
    assert not casts(net)
    assert not any("forward" in layer.__dict__ for layer in net)
    assert not net._forward_hooks and not net._forward_pre_hooks


@pytest.mark.parametrize("compile", [False, True])
def test_a_training_in_mixed_precision_casts_together_and_leaves_the_network_as_it_was(
    compile: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where the network is compiled, its compiler does better."""
    monkeypatch.setattr(build, "amp_dtype", lambda recipe, device: HALF)
    monkeypatch.setattr(build, "compiled", lambda net, wish: nullcontext())
    family = schema.family("fomo")
    keys = {"data": str(DATASETS[family.task](tmp_path, 4)), "imgsz": 64, "batch": 2, "workers": 0, "val": False, "device": "cpu", "compile": compile}
    recipe = schema.resolve(family, next(iter(family.sizes)), keys)
    assembly = assembly_for(family)(family, recipe, family.input, tmp_path)
    net = build.training_network(family, recipe, len(assembly.names), build.Start(None, {}, ""))
    training = build.training(
        family, recipe, assembly, net, Seat(0, 1, 1, CPU), progress=Progress(), save=lambda summary: None, tell=lambda name, event: None
    )
    taken = ["forward" in module.__dict__ for module in training.bare.modules() if type(module) is nn.Conv2d]
    assert taken and all(taken) == any(taken) == (not compile)
    training.close()
    assembly.close()
    assert not any("forward" in module.__dict__ for module in training.bare.modules())


@pytest.mark.parametrize(("net", "dtype"), [(nn.Sequential(nn.Linear(2, 2)), None), (nn.Sequential(nn.BatchNorm1d(2)), HALF)])
def test_without_mixed_precision_or_layers_nothing_is_changed(net: nn.Sequential, dtype: torch.dtype | None) -> None:
    with cast_together(net, dtype):
        assert "forward" not in net[0].__dict__ and not net._forward_pre_hooks
