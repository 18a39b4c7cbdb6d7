"""What stands before a network whose forward is replayed: which batches are replayed, and that nothing else changes."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import NamedTuple

import pytest
import torch
from torch import Tensor, nn

from libreyolo.engine.cuda_graph import EAGER_STEPS, GraphedNetwork


class Output(NamedTuple):
    maps: list[Tensor]
    extra: Tensor | None


class Small(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm = nn.Conv2d(3, 4, 1), nn.BatchNorm2d(4)

    def forward(self, x: Tensor, scale: float | None = None) -> Output:
        y = self.norm(self.conv(x))
        return Output([y, 2 * y], None)


class Recorder:
    """A capture that runs the module three times, as warming up does, and counts the replays."""

    def __init__(self) -> None:
        self.replays = 0

    def __call__(self, module: nn.Module, inputs: tuple[Tensor, ...]) -> Callable[..., tuple[Tensor, ...]]:
        for _ in range(3):
            module(*inputs)

        def replay(*given: Tensor) -> tuple[Tensor, ...]:
            self.replays += 1
            return module(*given)

        return replay


def test_full_batches_are_replayed_after_some_eager_ones_and_odd_ones_never() -> None:
    capture = Recorder()
    net = GraphedNetwork(Small(), capture)
    for _ in range(EAGER_STEPS):
        net(torch.rand(4, 3, 2, 2))
    assert capture.replays == 0
    net(torch.rand(4, 3, 2, 2))
    net(torch.rand(3, 3, 2, 2))
    net(torch.rand(4, 3, 2, 2))
    assert capture.replays == 2
    net.eval()
    net(torch.rand(4, 3, 2, 2))
    assert capture.replays == 2


def test_outputs_gradients_and_statistics_are_those_of_the_network_alone() -> None:
    torch.manual_seed(0)
    plain, graphed = Small(), Small()
    graphed.load_state_dict(plain.state_dict())
    net = GraphedNetwork(graphed, Recorder())
    for _ in range(EAGER_STEPS + 2):
        x = torch.rand(4, 3, 2, 2)
        expected, found = plain(x), net(x)
        assert isinstance(found, Output) and found.extra is None
        for a, b in zip(expected.maps, found.maps, strict=True):
            assert torch.equal(a, b)
            a.sum().backward(retain_graph=True), b.sum().backward(retain_graph=True)
    assert torch.equal(plain.conv.weight.grad, graphed.conv.weight.grad)
    for name, value in plain.state_dict().items():
        assert torch.equal(value, graphed.state_dict()[name]), name  # the capture's own runs did not count


@pytest.mark.parametrize("fault", ["not a tensor", "not capturable"])
def test_what_cannot_be_captured_trains_eagerly_and_is_told_once(fault: str, caplog: pytest.LogCaptureFixture) -> None:
    def refuse(module: nn.Module, inputs: tuple[Tensor, ...]) -> Callable[..., tuple[Tensor, ...]]:
        raise RuntimeError("operation not permitted when stream is capturing\nmore")

    net = GraphedNetwork(Small(), refuse)
    with caplog.at_level(logging.INFO):
        for _ in range(EAGER_STEPS + 3):
            x = torch.rand(2, 3, 2, 2)
            found = net(x, 1.0) if fault == "not a tensor" else net(x)
            assert found.maps[0].shape == (2, 4, 2, 2)
    (told,) = caplog.messages
    assert told.endswith("it trains eagerly.")


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="captures a CUDA graph")
@pytest.mark.parametrize("dtype", [None, torch.bfloat16])
def test_on_a_gpu_replayed_steps_give_the_numbers_of_eager_ones(dtype: torch.dtype | None) -> None:
    torch.manual_seed(0)
    plain, graphed = Small().cuda(), Small().cuda()
    graphed.load_state_dict(plain.state_dict())
    net = GraphedNetwork(graphed)
    optimizers = [torch.optim.SGD(n.parameters(), lr=0.1) for n in (plain, graphed)]
    for step in range(EAGER_STEPS + 4):
        x = torch.rand(2 if step == EAGER_STEPS + 2 else 4, 3, 8, 8, device="cuda")
        for called, optimizer in ((plain, optimizers[0]), (net, optimizers[1])):
            with torch.autocast("cuda", dtype=dtype, enabled=dtype is not None):
                loss = called(x).maps[1].float().square().mean()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
    for name, value in plain.state_dict().items():
        assert torch.allclose(value, graphed.state_dict()[name], rtol=1e-6, atol=1e-7), name
