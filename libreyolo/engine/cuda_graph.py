"""`cuda_graph=true`: the network's forward and backward are recorded once and replayed, so that a step costs two launches and not thousands.

Small networks at small batches wait for the host: thousands of kernels a step, each launched from Python. A CUDA graph holds them all. What is
captured is the network alone; augmentation, loss and optimiser stay as they are, and so does every number.
"""

from __future__ import annotations

import inspect
import logging
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

log = logging.getLogger(__name__)

EAGER_STEPS = 3  # before the capture: lazily made handles and tuned kernels must not be made inside it

# A module -> the same, replaying its forward and backward for inputs of these shapes. Capturing runs the module a few times.
Capture = Callable[[nn.Module, tuple[Tensor, ...]], Callable[..., tuple[Tensor, ...]]]


class GraphedNetwork(nn.Module):
    """Stands before the network in training: replays batches of the captured shape, and runs every other one eagerly.

    The shape is the first that comes EAGER_STEPS times in a row, so a short last batch stays eager. A network whose forward takes more than
    tensors, or that can't be captured, trains eagerly; the log says once what was done.
    """

    def __init__(self, net: nn.Module, capture: Capture | None = None) -> None:
        super().__init__()
        self.net = net
        self._capture = capture or capture_on_cuda
        self._shapes: tuple[Any, ...] | None = None  # of the captured inputs, or of those that are waiting for it
        self._seen = 0
        self._replay: Callable[..., Any] | None = None
        self._eager = False

    def forward(self, *inputs: Any) -> Any:
        if self._eager or not self.training:
            return self.net(*inputs)
        if not all(isinstance(value, Tensor) for value in inputs):
            return self._stay_eager("the network takes more than pictures in training, of shapes that follow the targets", inputs)
        shapes = tuple((value.shape, value.dtype) for value in inputs)
        if self._replay is not None:
            return self._replay(*inputs) if shapes == self._shapes else self.net(*inputs)
        self._seen = self._seen + 1 if shapes == self._shapes else 1
        self._shapes = shapes
        if self._seen <= EAGER_STEPS:
            return self.net(*inputs)
        return self._capture_and_run(inputs)

    def _capture_and_run(self, inputs: tuple[Tensor, ...]) -> Any:
        flat = _FlatOutput(self.net)
        before = [buffer.clone() for buffer in self.net.buffers()]
        try:
            replay = self._capture(flat, inputs)
        except RuntimeError as error:
            return self._stay_eager(f"the network can't be captured ({str(error).splitlines()[0]})", inputs)
        finally:
            # Capturing runs the network on this batch some more times; BatchNorm's statistics must not count it again.
            with torch.no_grad():
                for buffer, value in zip(self.net.buffers(), before, strict=True):
                    buffer.copy_(value)
        self._replay = lambda *given: flat.rebuild(replay(*given))
        log.info("cuda_graph=true: forward and backward replay a CUDA graph for batches of %d pictures; others run eagerly.", len(inputs[0]))
        return self._replay(*inputs)

    def _stay_eager(self, reason: str, inputs: tuple[Any, ...]) -> Any:
        self._eager = True
        log.info("cuda_graph=true: %s; it trains eagerly.", reason)
        return self.net(*inputs)


class _FlatOutput(nn.Module):
    """The network with its output as a flat tuple of tensors, which is all that a graph can return."""

    def __init__(self, net: nn.Module) -> None:
        super().__init__()
        self.net = net
        self.spec: Any = None
        self.others: list[Any] = []  # leaves that are no tensors, in their places; None where a tensor belongs

    def forward(self, *inputs: Tensor) -> tuple[Tensor, ...]:
        leaves, self.spec = pytree.tree_flatten(self.net(*inputs))
        self.others = [_TENSOR if isinstance(leaf, Tensor) else leaf for leaf in leaves]
        return tuple(leaf for leaf in leaves if isinstance(leaf, Tensor))

    def rebuild(self, tensors: tuple[Tensor, ...]) -> Any:
        """Return the network's own output from the flat tuple."""
        given = iter(tensors)
        return pytree.tree_unflatten([next(given) if leaf is _TENSOR else leaf for leaf in self.others], self.spec)


_TENSOR = object()


def capture_on_cuda(module: nn.Module, inputs: tuple[Tensor, ...]) -> Callable[..., tuple[Tensor, ...]]:
    """Capture forward and backward with torch's own tool, under the autocast that is active now."""
    options: dict[str, Any] = {"allow_unused_input": True}
    if "capture_error_mode" in inspect.signature(torch.cuda.make_graphed_callables).parameters:
        options["capture_error_mode"] = "thread_local"  # the loader's pinning thread may go on
    kind = inputs[0].device.type
    # Casts of weights must be part of the graph: a cached one would be that of the capture for ever.
    with torch.autocast(kind, dtype=torch.get_autocast_dtype(kind), enabled=torch.is_autocast_enabled(kind), cache_enabled=False):
        samples = tuple(value.detach().clone().requires_grad_(value.requires_grad) for value in inputs)
        graphed: Any = torch.cuda.make_graphed_callables(module, samples, **options)
    return graphed
