"""The average against a loop by hand."""

from __future__ import annotations

import math

import torch
from torch import nn

from libreyolo.engine.ema import EMA
from tests.unit.engine.toy import toy_net


def move(net: nn.Module, step: int) -> None:
    """Change every tensor of the network, as training does."""
    with torch.no_grad():
        for index, tensor in enumerate(net.state_dict().values()):
            tensor.add_(1 if not tensor.is_floating_point() else 0.1 * (step + 1) * (index + 1))


def test_it_follows_a_loop_by_hand() -> None:
    net = toy_net()
    ema = EMA(net, decay=0.9, tau=3.0)
    expected = {name: tensor.clone() for name, tensor in net.state_dict().items()}
    for step in range(4):
        move(net, step)
        ema.update(net)
        keep = 0.9 * (1 - math.exp(-(step + 1) / 3.0))
        for name, tensor in net.state_dict().items():
            expected[name] = keep * expected[name] + (1 - keep) * tensor if tensor.is_floating_point() else tensor.clone()
    for name, tensor in ema.average.state_dict().items():
        torch.testing.assert_close(tensor, expected[name], msg=name)
    assert ema.updates == 4


def test_statistics_are_averaged_and_counters_copied() -> None:
    net = toy_net()
    ema = EMA(net, decay=0.5, tau=1e-9)  # no ramp: exactly one half
    with torch.no_grad():
        net[1].running_mean.fill_(4.0)
        net[1].num_batches_tracked.fill_(7)
    ema.update(net)
    assert ema.average[1].running_mean.tolist() == [2.0] * 3
    assert ema.average[1].num_batches_tracked == 7


def test_a_shared_tensor_moves_once() -> None:
    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = nn.Linear(2, 2, bias=False), nn.Linear(2, 2, bias=False)
            self.b.weight = self.a.weight

    net = Tied()
    ema = EMA(net, decay=0.5, tau=1e-9)
    before = net.a.weight.detach().clone()
    with torch.no_grad():
        net.a.weight.add_(1.0)
    ema.update(net)
    torch.testing.assert_close(ema.average.a.weight, before + 0.5)
    assert ema.average.a.weight is ema.average.b.weight


def test_the_average_is_for_evaluation_and_never_for_training() -> None:
    ema = EMA(toy_net().train(), decay=0.9, tau=1.0)
    assert not ema.average.training
    assert not any(p.requires_grad for p in ema.average.parameters())


def test_updating_leaves_the_trained_network_alone() -> None:
    net = toy_net()
    before = {name: tensor.clone() for name, tensor in net.state_dict().items()}
    EMA(net, decay=0.9, tau=1.0).update(net)
    assert all(torch.equal(tensor, before[name]) for name, tensor in net.state_dict().items())


def test_it_goes_on_from_a_loaded_state() -> None:
    """What resume does: a new average takes the saved tensors and count, after which both move alike."""
    net = toy_net()
    first = EMA(net, decay=0.9, tau=3.0)
    move(net, 0)
    first.update(net)
    second = EMA(net, decay=0.9, tau=3.0)
    second.average.load_state_dict(first.average.state_dict())
    second.updates = first.updates
    move(net, 1)
    first.update(net)
    second.update(net)
    for name, tensor in first.average.state_dict().items():
        assert torch.equal(tensor, second.average.state_dict()[name]), name
