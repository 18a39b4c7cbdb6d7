"""Parameter groups: what decays, in which order, at which rate."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

from libreyolo.engine.optimizer import SGD, build_optimizer, load_state, parameter_groups, step_unless
from libreyolo.models.yolo9.network import build
from tests.unit.engine.toy import CPU


class Net(nn.Module):
    """A weight, norms of three kinds, a parameter of its own, and an embedding that its head shares."""

    def __init__(self) -> None:
        super().__init__()
        self.backbone = nn.Sequential(nn.Conv2d(3, 4, 1), nn.BatchNorm2d(4), nn.GroupNorm(2, 4))
        self.norm = nn.LayerNorm(4)
        self.scale = nn.Parameter(torch.ones(4))
        self.embedding = nn.Embedding(5, 4)
        self.head = nn.Linear(4, 5)
        self.head.weight = self.embedding.weight


def names(net: nn.Module, **arguments: object) -> list[list[str]]:
    return [group["names"] for group in parameter_groups(net, 0.1, **arguments)]  # type: ignore[misc, arg-type]


def test_norms_come_first_then_weights_then_biases_and_the_rest() -> None:
    assert names(Net()) == [
        ["backbone.1.weight", "backbone.2.weight", "norm.weight"],
        ["backbone.0.weight", "embedding.weight"],
        ["scale", "backbone.0.bias", "backbone.1.bias", "backbone.2.bias", "norm.bias", "head.bias"],
    ]


def test_only_weights_decay() -> None:
    assert [group["weight_decay"] for group in parameter_groups(Net(), 0.1)] == [0.0, 0.1, 0.0]


def test_the_projections_of_attention_are_weights() -> None:
    assert names(nn.MultiheadAttention(4, 2)) == [["in_proj_weight", "out_proj.weight"], ["in_proj_bias", "out_proj.bias"]]


def test_a_shared_parameter_is_listed_once() -> None:
    net = Net()
    listed = [id(p) for group in parameter_groups(net, 0.1) for p in group["params"]]  # type: ignore[attr-defined]
    assert sorted(listed) == sorted({id(p) for p in net.parameters()})


def test_frozen_parameters_are_left_out() -> None:
    net = Net()
    net.backbone.requires_grad_(False)
    assert not [n for group in names(net) for n in group if n.startswith("backbone")]


def test_the_longest_prefix_decides_the_rate_and_the_base_rate_comes_first() -> None:
    groups = parameter_groups(Net(), 0.1, {"backbone": 0.1, "backbone.0": 0.5})
    assert [group["lr_scale"] for group in groups] == [1.0, 1.0, 1.0, 0.5, 0.5, 0.1, 0.1]
    assert [group["names"] for group in groups[3:]] == [
        ["backbone.0.weight"],
        ["backbone.0.bias"],
        ["backbone.1.weight", "backbone.2.weight"],
        ["backbone.1.bias", "backbone.2.bias"],
    ]


def test_yolo9_has_three_groups_that_hold_every_parameter() -> None:
    net = build("t", 3)
    groups = parameter_groups(net, 0.1)
    assert len(groups) == 3
    assert sum(len(group["params"]) for group in groups) == len(list(net.parameters()))  # type: ignore[arg-type]
    assert all(".bn." in name for name in groups[0]["names"])  # type: ignore[attr-defined]


def test_sgd_moves_by_the_rate_times_gradient_and_decay_with_nesterov_momentum() -> None:
    layer = nn.Linear(1, 1, bias=False)
    with torch.no_grad():
        layer.weight.fill_(2.0)
    optimizer = build_optimizer(parameter_groups(layer, 0.5), name="sgd", lr=0.1, momentum=0.9, nesterov=True, device=CPU)
    layer.weight.grad = torch.full((1, 1), 3.0)
    optimizer.step()
    # d = 3 + 0.5 * 2 = 4; the buffer is 4; Nesterov looks ahead: 4 + 0.9 * 4 = 7.6
    assert layer.weight.item() == pytest.approx(2.0 - 0.1 * 7.6)


@pytest.mark.parametrize(("name", "expected"), [("adam", 2.0 - 0.1), ("adamw", 2.0 * (1 - 0.1 * 0.5) - 0.1)])
def test_adam_decays_through_the_gradient_and_adamw_apart_from_it(name: str, expected: float) -> None:
    layer = nn.Linear(1, 1, bias=False)
    with torch.no_grad():
        layer.weight.fill_(2.0)
    optimizer = build_optimizer(parameter_groups(layer, 0.5), name=name, lr=0.1, betas=(0.8, 0.9), device=CPU)
    assert optimizer.param_groups[0]["betas"] == (0.8, 0.9)
    layer.weight.grad = torch.full((1, 1), 3.0)
    optimizer.step()  # Adam's first step is the rate, whatever the gradient's size
    assert layer.weight.item() == pytest.approx(expected, abs=1e-6)


def test_nesterov_without_momentum_is_plain_sgd() -> None:
    optimizer = build_optimizer(parameter_groups(nn.Linear(1, 1), 0.0), name="sgd", lr=0.1, momentum=0.0, nesterov=True, device=CPU)
    assert optimizer.param_groups[0]["nesterov"] is False


def test_sgd_that_keeps_its_lists_steps_as_torchs_through_rates_missing_gradients_and_a_loaded_state() -> None:
    torch.manual_seed(0)
    one, other = nn.Linear(3, 2), nn.Linear(3, 2)
    other.load_state_dict(one.state_dict())

    def sgd(kind: type[torch.optim.SGD], net: nn.Linear) -> torch.optim.SGD:
        return kind([{"params": [net.weight], "weight_decay": 0.1}, {"params": [net.bias]}], lr=0.1, momentum=0.9, nesterov=True, fused=True)

    kept, plain = sgd(SGD, one), sgd(torch.optim.SGD, other)
    torchs_steps: list[int] = []
    saved: dict[str, object] = {}
    for number in range(9):
        for net, optimizer in ((one, kept), (other, plain)):
            net.zero_grad()
            net(torch.full((4, 3), 0.1 * number)).square().sum().backward()
            if number == 4:
                net.bias.grad = None
            for group in optimizer.param_groups:
                group["lr"], group["momentum"] = 0.1 / (1 + number), 0.8 + 0.01 * number
            if number == 6:
                load_state(optimizer, copy.deepcopy(saved))
            step_unless(torch.zeros(1), optimizer)
            if optimizer is kept and number == 0:
                kept.register_step_pre_hook(lambda *given: torchs_steps.append(1))
        saved = copy.deepcopy(kept.state_dict()) if number == 2 else saved
        assert torch.equal(one.weight, other.weight)
        assert torch.equal(one.bias, other.bias)
    for a, b in zip(one.parameters(), other.parameters(), strict=True):
        assert torch.equal(kept.state[a]["momentum_buffer"], plain.state[b]["momentum_buffer"])
    assert len(torchs_steps) == 1, "after the first step only the one with a gradient missing is torch's own"


@pytest.mark.parametrize("fused", [True, False])
def test_a_state_from_another_device_leaves_how_the_optimiser_runs(fused: bool) -> None:
    """A run that a GPU began goes on on a CPU, and the other way round."""
    torch.manual_seed(0)
    one, other = nn.Linear(3, 2), nn.Linear(3, 2)
    other.load_state_dict(one.state_dict())
    first, second = (torch.optim.AdamW(net.parameters(), lr=0.1, fused=how) for net, how in ((one, not fused), (other, fused)))
    x = torch.rand(4, 3)
    one(x).sum().backward()
    first.step()
    other.load_state_dict(one.state_dict())
    load_state(second, first.state_dict())
    assert [group["fused"] for group in second.param_groups] == [fused]
    assert second.param_groups[0]["lr"] == 0.1
    for net, optimizer in ((one, first), (other, second)):
        net.zero_grad()
        net(x).sum().backward()
        optimizer.step()
    assert torch.allclose(one.weight, other.weight)
    with pytest.raises(ValueError, match="different number of parameter groups"):
        load_state(second, {**first.state_dict(), "param_groups": []})


@pytest.mark.parametrize("kind", ["sgd", "adamw"])
def test_a_state_takes_the_memory_format_that_weights_have_here(kind: str) -> None:
    torch.manual_seed(0)
    nets = [nn.Sequential(nn.Conv2d(3, 4, 3), nn.Conv2d(4, 2, 1)) for _ in range(2)]
    nets[1].load_state_dict(nets[0].state_dict())
    nets[1].to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    first, second = (build_optimizer(parameter_groups(net, 0.1), name=kind, lr=0.1, device=CPU) for net in nets)
    x = torch.rand(2, 3, 8, 8)
    nets[0](x).sum().backward()
    first.step()
    load_state(second, first.state_dict())
    for parameter, twin in zip(nets[0].parameters(), nets[1].parameters(), strict=True):
        for name, value in first.state[parameter].items():
            found = second.state[twin][name]
            assert torch.equal(found, value)
            assert found.shape != twin.shape or found.stride() == twin.stride()
            assert not found.requires_grad
