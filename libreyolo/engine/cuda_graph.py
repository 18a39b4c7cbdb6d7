"""`cuda_graph=true`: the network's forward and backward are recorded once and replayed, so that a step costs two launches and not thousands.

Small networks at small batches wait for the host: thousands of kernels a step, each launched from Python. A CUDA graph holds them all. What is
captured is the network alone; augmentation, loss and optimiser stay as they are, and so does every number.
"""

from __future__ import annotations

import inspect
import logging
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from libreyolo.errors import UserError

log = logging.getLogger(__name__)

# Before the capture: lazily made handles and tuned kernels must not be made inside it. They run on the stream of the training, on which autograd's
# nodes for the parameters then are; that is right as long as no graph of theirs is alive when the capture begins (TrainStep sees to it), since a
# capture finds the nodes that are alive and makes those that are not, on its own stream.
EAGER_STEPS = 3

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
        self._kept: dict[int, Tensor] = {}  # gradients of the window under way that no replay writes to, by id

    def forward(self, *inputs: Any) -> Any:
        if self._eager or not self.training:
            return self.net(*inputs)
        if not all(isinstance(value, Tensor) for value in inputs):
            return self._stay_eager("the network takes more than pictures in training, of shapes that follow the targets", inputs)
        shapes = tuple((value.shape, value.dtype) for value in inputs)
        if self._replay is not None:
            if shapes != self._shapes:
                return self.net(*inputs)
            self._keep_gradients()
            return self._replay(*inputs)
        self._seen = self._seen + 1 if shapes == self._shapes else 1
        self._shapes = shapes
        if self._seen <= EAGER_STEPS:
            return self.net(*inputs)
        return self._capture_and_run(inputs)

    def _capture_and_run(self, inputs: tuple[Tensor, ...]) -> Any:
        flat = _FlatOutput(self.net)
        before = [buffer.clone() for buffer in self.net.buffers()]
        devices = [inputs[0].device.index] if inputs[0].is_cuda else []
        refusal = ""
        try:
            # Capturing runs the network on this batch some more times; neither BatchNorm's statistics nor dropout's generator must count it again.
            with torch.random.fork_rng(devices):
                replay = self._capture(flat, inputs)
        except torch.OutOfMemoryError:
            raise
        except RuntimeError as error:
            refusal = f"the network can't be captured ({str(error).splitlines()[0]})"
        finally:  # before this batch's own forward, which changes them and saves them for its backward
            with torch.no_grad():
                for buffer, value in zip(self.net.buffers(), before, strict=True):
                    buffer.copy_(value)
        if refusal:
            return self._stay_eager(refusal, inputs)
        self._replay = lambda *given: flat.rebuild(replay(*given))
        log.info("cuda_graph=true: forward and backward replay a CUDA graph for batches of %d pictures; others run eagerly.", len(inputs[0]))
        return self._replay(*inputs)

    def _keep_gradients(self) -> None:
        """Move gradients of an earlier micro-batch out of the graph's own memory, where autograd leaves them and the next replay writes."""
        held = [(p, p.grad) for p in self.parameters() if p.grad is not None]
        if not held:
            self._kept = {}
        endangered = [(p, gradient) for p, gradient in held if id(gradient) not in self._kept]
        if not endangered:
            return
        copies = [torch.empty_like(gradient) for _, gradient in endangered]
        torch._foreach_copy_(copies, [gradient for _, gradient in endangered])
        for (parameter, _), copy in zip(endangered, copies, strict=True):
            parameter.grad = copy
        self._kept |= {id(copy): copy for copy in copies}

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
    """Capture forward and backward with torch's own tool, under the autocast that is active now.

    Raises RuntimeError, with nothing begun, for a network that waits for the device; UserError where the capture itself fails: torch's allocator
    then still diverts and defers what it would do without one, and a training would slowly fill the memory.
    """
    device = inputs[0].device
    kind = device.type
    with ExitStack() as stack:
        stack.enter_context(torch.cuda.device(device))
        stack.enter_context(torch.cuda.stream(torch.cuda.current_stream(device)))  # a capture that fails leaves its own one current
        # Casts of weights must be part of the graph: a cached one would be that of the capture for ever.
        autocast = torch.autocast(kind, dtype=torch.get_autocast_dtype(kind), enabled=torch.is_autocast_enabled(kind), cache_enabled=False)
        stack.enter_context(autocast)
        samples = tuple(value.detach().clone().requires_grad_(value.requires_grad) for value in inputs)
        _refuse_waiting(module, samples)
        options = stack.enter_context(_other_threads_go_on())
        try:
            graphed: Any = torch.cuda.make_graphed_callables(module, samples, allow_unused_input=True, **options)
        except torch.OutOfMemoryError:
            raise
        except RuntimeError as error:
            raise UserError(f"cuda_graph=true: torch can't capture this network ({str(error).splitlines()[0]}); use cuda_graph=false.") from error
    return graphed


def _refuse_waiting(module: nn.Module, samples: tuple[Tensor, ...]) -> None:
    """Run forward and backward once, as they will be captured; raises RuntimeError where the host waits for the device."""
    before = torch.cuda.get_sync_debug_mode()
    torch.cuda.set_sync_debug_mode("error")
    try:
        outputs = [output for output in module(*samples) if output.requires_grad]
        wanted = [parameter for parameter in module.parameters() if parameter.requires_grad]
        torch.autograd.grad(outputs, wanted, [torch.zeros_like(output) for output in outputs], allow_unused=True)
    finally:
        torch.cuda.set_sync_debug_mode(before)


@contextmanager
def streams_may_differ() -> Iterator[None]:
    """Keep torch from warning, in the block, of gradients that come from another stream than that of the node which takes them.

    A captured graph holds its nodes, made on the capture's stream, and replays run on the training's; autograd lets the one wait for the other.
    """
    tell: Callable[[bool], None] | None = getattr(torch.autograd.graph, "set_warn_on_accumulate_grad_stream_mismatch", None)
    if tell is None:  # older torch says nothing
        yield
        return
    tell(False)
    try:
        yield
    finally:
        tell(True)


@contextmanager
def _other_threads_go_on() -> Iterator[dict[str, Any]]:
    """Yield the options that let the loader's pinning thread use CUDA during a capture; older torch has none, but its `graph` has it."""
    mode: dict[str, Any] = {"capture_error_mode": "thread_local"}
    if "capture_error_mode" in inspect.signature(torch.cuda.make_graphed_callables).parameters:
        yield mode
        return
    plain = torch.cuda.graph
    torch.cuda.graph = partial(plain, **mode)  # type: ignore[misc,assignment]
    try:
        yield {}
    finally:
        torch.cuda.graph = plain  # type: ignore[misc]
