"""Mixed precision's casts of weights, and of their gradients back, many in one launch: autocast makes one for each of hundreds of layers.

Only what is launched differs: a copy is rounded as autocast rounds it, every user of a weight shares one copy, and gradients add up in it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

# Cast in one launch. The gradients of a chunk come when all of them are there: under DDP the chunks before it then still have a backward to do.
CHUNK = 32


class _Cast(torch.autograd.Function):
    """Casts a chunk's float32 parameters to another type and their gradients back."""

    @staticmethod
    def forward(ctx: Any, chunk: Chunk, dtype: torch.dtype, *tensors: Tensor) -> tuple[Tensor, ...]:
        ctx.set_materialize_grads(False)
        ctx.chunk = chunk
        return tuple(_copies(tensors, dtype))

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor | None) -> tuple[Tensor | None, ...]:
        if ctx.chunk.take is not None and ctx.chunk.take(gradients):
            return (None,) * (2 + len(gradients))
        cast = iter(_copies([g for g in gradients if g is not None], torch.float32))
        return None, None, *(next(cast) if g is not None else None for g in gradients)


def _copies(tensors: Sequence[Tensor], dtype: torch.dtype) -> list[Tensor]:
    copies = [torch.empty_like(t, dtype=dtype) for t in tensors]
    if copies:
        torch._foreach_copy_(copies, list(tensors))
    return copies


class Chunk:
    """Parameters that are cast together, and their casts in the forward under way, once one of them was asked for.

    take: is given their gradients in the casts' type, one for each parameter (None: it has none), in the backward that finds them, and says whether
    it keeps them; then the parameters get none from here. None: nobody asks.
    """

    def __init__(self, parameters: list[nn.Parameter]) -> None:
        self.parameters = parameters
        self.casts: tuple[Tensor, ...] | None = None
        self.take: Callable[[Sequence[Tensor | None]], bool] | None = None


class _Casts:
    """The casts of a network's weights during its training forward."""

    def __init__(self, parameters: list[nn.Parameter], dtype: torch.dtype) -> None:
        self.dtype, self.kind = dtype, parameters[0].device.type
        self.chunks = [Chunk(parameters[first : first + CHUNK]) for first in range(0, len(parameters), CHUNK)]
        self.places = {id(p): (chunk, place) for chunk in self.chunks for place, p in enumerate(chunk.parameters)}
        self.under_way = False

    def begin(self, net: nn.Module, given: Any) -> None:
        self.under_way = net.training

    def end(self, net: nn.Module, given: Any, found: Any) -> None:
        self.under_way = False
        for chunk in self.chunks:
            chunk.casts = None

    def of(self, parameter: Tensor | None) -> Tensor | None:
        """Return the parameter's cast where autocast would make one that has a gradient, else the parameter.

        A chunk is cast where its first layer is, so that its backward comes right after that layer's and not at the end of all.
        """
        held = self.places.get(id(parameter)) if parameter is not None else None
        if held is None or not self._wanted():
            return parameter
        chunk, place = held
        if chunk.casts is None:
            chunk.casts = _Cast.apply(chunk, self.dtype, *chunk.parameters)
        return chunk.casts[place]

    def _wanted(self) -> bool:
        active = self.under_way and torch.is_grad_enabled() and torch.is_autocast_enabled(self.kind)
        return active and torch.get_autocast_dtype(self.kind) == self.dtype


def _conv2d(layer: Any, casts: _Casts, input: Tensor) -> Tensor:
    own = layer._parameters  # what a module finds by attribute it looks for in several places
    weight, bias = casts.of(own["weight"]), casts.of(own["bias"])
    if layer.padding_mode == "zeros":
        return torch.conv2d(input, weight, bias, layer.stride, layer.padding, layer.dilation, layer.groups)  # type: ignore[arg-type]
    found: Tensor = layer._conv_forward(input, weight, bias)
    return found


def _linear(layer: Any, casts: _Casts, input: Tensor) -> Tensor:
    return F.linear(input, casts.of(layer.weight), casts.of(layer.bias))  # type: ignore[arg-type]


FORWARDS: dict[type[nn.Module], Callable[..., Tensor]] = {nn.Conv2d: _conv2d, nn.Linear: _linear}


@contextmanager
def cast_together(net: nn.Module, dtype: torch.dtype | None) -> Iterator[Sequence[Chunk]]:
    """For the block, let convolutions and linear layers of `net` take weights that are cast together in its training forward. Gives their chunks.

    dtype: that of mixed precision; None, or a network without such layers to train, changes nothing. Where autocast is off or has another type,
    and in evaluation, a layer takes its own weights. So it does where the network's code reads them itself; autocast then casts them, as always.
    """
    layers = [m for m in net.modules() if type(m) in FORWARDS]
    own = {id(p): p for m in layers for p in m.parameters(recurse=False) if p.requires_grad and p.dtype == torch.float32}
    if dtype is None or not own:
        yield ()
        return
    casts = _Casts(list(own.values()), dtype)
    hooks = [net.register_forward_pre_hook(casts.begin), net.register_forward_hook(casts.end, always_call=True)]
    for layer in layers:
        layer.__dict__["forward"] = partial(FORWARDS[type(layer)], layer, casts)
    try:
        yield casts.chunks
    finally:
        for hook in hooks:
            hook.remove()
        for layer in layers:
            del layer.__dict__["forward"]
