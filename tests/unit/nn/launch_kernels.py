"""Launch the kernels of `nn.fused` on a GPU that only takes notes: that a launch which leaves out what Triton does before each is the same launch."""

from __future__ import annotations

from typing import Any

import torch
import triton
from torch import Tensor
from triton.backends.compiler import GPUTarget

from libreyolo.nn.fused import launching
from libreyolo.nn.fused.norm_act import Running, norm_act, plan_for
from libreyolo.nn.fused.scratch import Scratch

shapes: dict[Any, Any] = {}  # of the tensors that the next launch gives as addresses, by address


def noted(tensors: tuple[Tensor, ...]) -> list[int]:
    """Return where they begin, and remember whose beginning that is."""
    shapes.clear()
    shapes.update((tensor.data_ptr(), tensor.shape) for tensor in tensors)
    return [tensor.data_ptr() for tensor in tensors]


class Binaries:
    """Loads machine code."""

    def load_binary(self, *_: Any) -> tuple[int, ...]:
        return 1, 2, 64, 0, 1024

    def unload_module(self, *_: Any) -> None:
        """Nothing was loaded."""

    def get_device_properties(self, _: int) -> dict[str, int]:
        return {"max_shared_mem": 232448}


class Launches:
    """Starts kernels; `seen` has those of all, by name: grid and arguments."""

    seen: list[tuple[Any, ...]] = []

    def __init__(self, source: Any, _: Any) -> None:
        self.name = source.name

    def __call__(self, *arguments: Any) -> None:
        x, y, z, _stream, _function, _metadata, _launch, _enter, _leave, *given = arguments
        self.seen.append((self.name, x, y, z, *(a.shape if isinstance(a, Tensor) else shapes.get(a, a) for a in given)))


class NotedGpu:
    """Triton's driver."""

    utils, launcher_cls = Binaries(), Launches

    def get_current_target(self) -> GPUTarget:
        return GPUTarget("cuda", 90, 32)

    def get_current_device(self) -> int:
        return 0

    def get_current_stream(self, _: int) -> int:
        return 0


def steps() -> list[list[tuple[Any, ...]]]:
    """Return the launches of forward and backward, by step: two alike, one with bias where no vector may be loaded from, one like the first."""
    triton.runtime.driver.set_active(NotedGpu())
    x = torch.randn(2, 64, 12, 12).to(torch.bfloat16, memory_format=torch.channels_last)
    launching.addresses_of = noted
    scratch, found = Scratch(), []
    for first in (0, 0, 1, 0):
        leaf, weight, bias = x.clone().requires_grad_(), torch.ones(64, requires_grad=True), torch.zeros(65)[first : 64 + first].requires_grad_()
        running = Running(torch.zeros(64), torch.ones(64), torch.tensor(0), 0.03)
        Launches.seen = []
        norm_act(leaf, weight, bias, running, eps=1e-3, act=1, scratch=scratch).backward(x)
        found.append(Launches.seen)
    return found


def check() -> int:
    """Return how many launches were alike."""
    first, again, apart, last = steps()
    assert [launch[0] for launch in first] == ["sums_kernel", "apply_kernel", "gradient_sums_kernel", "gradient_kernel"]
    assert first == again == apart == last
    ready = plan_for(288, 64, 1, torch.device("cpu")).ready
    assert len(ready) == (4 if launching.KEEPS else 0)
    return len(first)
