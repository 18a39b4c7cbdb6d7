"""A network whose parts are found quickly is the same network, and an ordinary one again afterwards."""

from __future__ import annotations

import copy
from unittest.mock import patch

import torch
from torch import nn

from libreyolo.engine.quick_lookup import looked_up_quickly
from libreyolo.nn.conv import RepConv


def test_no_child_or_parameter_is_looked_up_in_torchs_own_code() -> None:
    net = RepConv(4, 4)
    x = torch.rand(2, 4, 8, 8)
    looked_up: list[str] = []
    original = nn.Module.__getattr__

    def watched(module: nn.Module, name: str) -> object:
        looked_up.append(name)
        return original(module, name)

    with patch.object(nn.Module, "__getattr__", watched):
        expected = net(x)
        assert {"conv1", "bn", "weight"} <= set(looked_up)
        looked_up.clear()
        with looked_up_quickly(net):
            assert torch.equal(net(x), expected)
        assert set(looked_up) <= {"running_mean", "running_var", "num_batches_tracked"}


def test_inside_the_block_assignments_are_found_and_copies_are_whole() -> None:
    net = RepConv(4, 4)
    before = {name: set(module.__dict__) for name, module in net.named_modules()}
    with looked_up_quickly(net):
        net.act = act = nn.SiLU()
        net.conv1.conv.weight = nn.Parameter(torch.zeros(4, 4, 3, 3))
        assert net.act is act
        assert not net.conv1.conv.weight.any()
        other = copy.deepcopy(net)
        assert other.conv2 is other._modules["conv2"] is not net.conv2
        assert other.conv2.conv.weight is dict(other.named_parameters())["conv2.conv.weight"]
    assert {name: set(module.__dict__) for name, module in net.named_modules()} == before
    assert net.act is act
