"""compile=: the network is compiled in place, told once, and plain again afterwards."""

from __future__ import annotations

import logging
import subprocess
import sys

import pytest
import torch
from torch import nn

from libreyolo.engine.compilation import compiled


@pytest.fixture
def without_code_generation(monkeypatch: pytest.MonkeyPatch) -> None:
    """Trace as torch.compile does, and run the traced graph as it is: generating code takes a C++ compiler half a minute."""
    original = nn.Module.compile
    monkeypatch.setattr(nn.Module, "compile", lambda self, mode=None: original(self, backend="eager"))


class Branching(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.layer(x)
        if float(y.sum()) > 1e9:  # what a graph can't hold: it is broken in two here
            return -y
        return y.relu()


@pytest.mark.slow
def test_a_compiled_network_keeps_its_names_and_numbers_and_is_plain_afterwards(
    without_code_generation: None, caplog: pytest.LogCaptureFixture
) -> None:
    torch.manual_seed(0)
    net, x = Branching(), torch.rand(5, 3)
    expected, names = net(x), list(net.state_dict())
    with caplog.at_level(logging.INFO), compiled(net, True):
        assert torch.allclose(net(x), expected)
        assert list(net.state_dict()) == names
        net(x).sum().backward()
        assert net.layer.weight.grad is not None
    assert net._compiled_call_impl is None
    assert caplog.messages[0].startswith("compile=true: the network is compiled when it is first run")
    assert caplog.messages[-1] == "compile: 2 graph(s) of the network were compiled, with 1 break(s) between them."


def test_without_the_wish_nothing_happens(caplog: pytest.LogCaptureFixture) -> None:
    net = Branching()
    with caplog.at_level(logging.INFO), compiled(net, False):
        assert net._compiled_call_impl is None
    assert caplog.messages == []


class Eager(nn.Linear):
    """A layer that is not for the compiler, and sees whether it was traced."""

    COMPILES = False

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        self.traced = torch.compiler.is_compiling()
        return super().forward(input)


class Between(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.middle, self.last = nn.Linear(3, 3), Eager(3, 3), nn.Linear(3, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = self.last(self.middle(self.first(x)))
        return found


@pytest.mark.slow
def test_layers_that_are_not_for_the_compiler_run_eagerly_between_two_graphs(without_code_generation: None, caplog: pytest.LogCaptureFixture) -> None:
    torch.manual_seed(0)
    net, x = Between(), torch.rand(5, 3)
    expected = net(x)
    with caplog.at_level(logging.INFO), compiled(net, True):
        assert torch.allclose(net(x), expected) and net.middle.traced is False
    assert caplog.messages[-1] == "compile: 2 graph(s) of the network were compiled, with 1 break(s) between them."
    assert "forward" not in vars(net.middle)


def test_nobody_imports_the_compiler_who_does_not_compile() -> None:
    # It takes every process one to two seconds.
    code = "import sys, train, libreyolo, libreyolo.door; assert not {'torch._dynamo', 'torchvision'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=120)
