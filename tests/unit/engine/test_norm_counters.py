"""BatchNorm's counters move together, and end as those that each layer moves by itself."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import nn

from libreyolo.engine.batchnorm import CudaSyncBatchNorm, SyncBatchNorm
from libreyolo.engine.cuda_graph import GraphedNetwork
from libreyolo.engine.fusion import FusedNormAct, fuse
from libreyolo.engine.norm_counters import NormCounters
from libreyolo.engine.step import TrainStep
from libreyolo.nn.conv import ConvBNAct
from libreyolo.nn.fused import available
from tests.unit.engine.operators import Operators
from tests.unit.engine.toy import CPU, ToyTask, toy_batches, toy_net


def every_kind() -> nn.Module:
    """Return one of each: plain, synchronised, fused, frozen, with a cumulative mean, without statistics, and one that never counts."""
    torch.manual_seed(0)
    kinds = [nn.BatchNorm2d(3), SyncBatchNorm(3), nn.BatchNorm2d(3), nn.BatchNorm2d(3, momentum=None), nn.BatchNorm2d(3, track_running_stats=False)]
    net = nn.Sequential(*kinds, nn.InstanceNorm2d(3, track_running_stats=True), ConvBNAct(3, 3)).train()
    net[2].eval()
    return net


def test_counters_and_statistics_are_those_of_layers_that_count_by_themselves(monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as as_on_a_gpu:
        as_on_a_gpu.setattr(available, "obstacle", lambda device: "")
        net = fuse(every_kind(), over_ranks=False)
    assert isinstance(net[-1].bn, FusedNormAct)  # type: ignore[index]
    alone = copy.deepcopy(net)
    counters = NormCounters(net)
    for _ in range(3):
        pictures = torch.randn(2, 3, 4, 4)
        with counters.one_forward():
            net(pictures)
        alone(pictures)
    found, expected = net.state_dict(), alone.state_dict()
    assert list(found) == list(expected) and all(torch.equal(found[name], expected[name]) for name in expected)
    assert [int(value) for name, value in found.items() if name.endswith("tracked")] == [3, 3, 0, 3, 0, 3]


def test_a_step_moves_all_counters_in_one_operator_for_each_forward() -> None:
    net = nn.Sequential(toy_net(), nn.BatchNorm1d(1), nn.BatchNorm1d(1)).train()
    step = TrainStep(net, ToyTask(), torch.optim.SGD(net.parameters(), lr=0.1), device=CPU, amp_dtype=None)
    with Operators() as operators:
        step.backward(toy_batches(2), [4, 4])
    assert operators.seen["_foreach_add_"] == 2
    assert operators.seen["add_ of counters"] == 0
    assert [int(value) for name, value in net.state_dict().items() if name.endswith("tracked")] == [2, 2, 2]


def test_taking_and_putting_back_statistics_costs_the_same_for_many_norms_as_for_one() -> None:
    costs = []
    for num_norms in (1, 20):
        net = nn.Sequential(*[nn.BatchNorm1d(2) for _ in range(num_norms)])
        step = TrainStep(net, ToyTask(), torch.optim.SGD(net.parameters(), lr=0.1), device=CPU, amp_dtype=None)
        with Operators() as operators:
            step.norms.take()
            step.norms.put_back(torch.ones(1))
        costs.append(operators.seen.total())
    assert costs[0] == costs[1]


def test_a_replayed_graph_goes_on_counting() -> None:
    def capture(module: nn.Module, inputs: Any) -> Any:
        for _ in range(3):
            module(*inputs)
        return lambda *given: tuple(value.clone() for value in module.eval()(*given))  # as a replay, it runs no Python of the layers

    graphed = GraphedNetwork(nn.Sequential(nn.BatchNorm1d(2)).train(), capture)
    counters = NormCounters(graphed)
    for _ in range(6):
        graphed.train()
        with counters.one_forward():
            graphed(torch.randn(4, 2))
    assert graphed._replay is not None
    assert int(graphed.net.get_buffer("0.num_batches_tracked")) == 6


def test_torch_s_synchronised_norm_keeps_a_counter_that_needs_no_device() -> None:
    net = CudaSyncBatchNorm(3, device="meta").train()
    own = net.num_batches_tracked
    with NormCounters(net).one_forward():
        held = net.num_batches_tracked
        assert held is not None and held.device == CPU
    assert net.num_batches_tracked is own


def test_a_forward_that_fails_gives_the_counters_back_as_they_were() -> None:
    net = nn.BatchNorm2d(3).train()
    own = net.num_batches_tracked
    with pytest.raises(ValueError, match="expected 4D input"), NormCounters(net).one_forward():
        net(torch.randn(2, 3))
    assert net.num_batches_tracked is own and int(own) == 0  # type: ignore[arg-type]
