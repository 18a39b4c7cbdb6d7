"""Gradients averaged over ranks, beside the backward that finds them, with few calls for hundreds of parameters."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from libreyolo.engine import collectives
from libreyolo.engine.weight_casts import Chunk

_Plain = nn.parallel.DistributedDataParallel
# torch renamed the argument and warns of the old name.
_SYNC_BUFFERS = "forward_sync_buffers" if "forward_sync_buffers" in inspect.signature(_Plain).parameters else "broadcast_buffers"


class ByBuckets(_Plain):
    """DDP for weights, in whose buckets every tensor costs the host a copy, and one all-reduce for all vectors.

    Two thirds of a convolutional network's parameters are BatchNorm's vectors: hundreds of copies a step for a hundredth of the bytes. Call
    `finish_gradients` after the backward that synchronises; gradients are those of DDP then, all of them averages over ranks.
    """

    def __init__(self, net: nn.Module, **options: Any) -> None:
        vectors = dict(_vectors(net))
        distinct = list({id(p): p for p in vectors.values()}.values())
        if len(distinct) == sum(p.requires_grad for p in net.parameters()):  # DDP refuses a network that leaves it nothing
            vectors, distinct = {}, []
        # DDP looks for those of the network itself in two places, under "name" and ".name".
        self._set_params_and_buffers_to_ignore_for_model(net, [*vectors, *(f".{name}" for name in vectors if "." not in name)])
        super().__init__(net, **options)
        _make_those_of_rank_0(distinct)
        self._groups = _groups_of(distinct)

    def finish_gradients(self) -> None:
        """Average the gradients that DDP leaves alone over ranks. One that is None counts as 0."""
        for group in self._groups:
            group.average()


class ByChunks(nn.Module):
    """A network whose weights are averaged where they are cast: a chunk's gradients come at once, and the backward goes on beside their all-reduce.

    DDP costs the host a hook and a copy for each weight. Here a chunk is copied, from the casts' type, into memory that one all-reduce takes. All
    else is averaged after the backward, where `finish_gradients` is called; gradients are averages over ranks then. Chunks are averaged in one order,
    the last one first, whichever gradients come first, so ranks that lack some of them still meet in the same all-reduces.
    """

    def __init__(self, net: nn.Module, chunks: Sequence[Chunk]) -> None:
        super().__init__()
        self.module = net
        self._synchronises = True
        _make_those_of_rank_0([*net.parameters(), *net.buffers()])
        self._chunks = [_InBackward(chunk.parameters) for chunk in reversed(chunks)]
        self._begun = 0
        for chunk, group in zip(reversed(chunks), self._chunks, strict=True):
            chunk.take = partial(self._take, group)
        cast = {id(p) for chunk in chunks for p in chunk.parameters}
        self._groups = _groups_of([p for p in net.parameters() if p.requires_grad and id(p) not in cast])

    def forward(self, *given: Any, **named: Any) -> Any:
        return self.module(*given, **named)

    @contextmanager
    def no_sync(self) -> Iterator[None]:
        """Let gradients of the block's backwards add up on each rank, until one outside it averages them."""
        before, self._synchronises = self._synchronises, False
        try:
            yield
        finally:
            self._synchronises = before

    def finish_gradients(self) -> None:
        """Average all that the backward left, and wait for what is under way. A gradient that is None counts as 0."""
        for chunk in self._chunks:
            if not chunk.taken:  # nobody asked for one of its weights
                chunk.take([None] * len(chunk.parameters))
        self._begin()
        for group in self._groups:
            group.average()
        for chunk in self._chunks:
            chunk.finish()
        self._begun = 0

    def _take(self, chunk: _InBackward, gradients: Sequence[Tensor | None]) -> bool:
        """Take a chunk's gradients; not a second time in a step, as where the network was called twice: those come as any parameter's do."""
        if not self._synchronises or chunk.taken:
            return False
        chunk.take(gradients)
        self._begin()
        return True

    def _begin(self) -> None:
        """Begin to average the chunks whose turn it is."""
        while self._begun < len(self._chunks) and self._chunks[self._begun].taken:
            self._chunks[self._begun].begin()
            self._begun += 1


class _Flat:
    """Parameters of one type, and memory for their gradients in one piece, in which each lies as its parameter does."""

    def __init__(self, parameters: list[nn.Parameter]) -> None:
        self.parameters = parameters
        self.flat = torch.zeros(sum(p.numel() for p in parameters), dtype=parameters[0].dtype, device=parameters[0].device)
        pieces = self.flat.split([p.numel() for p in parameters])
        self.parts = [piece.as_strided(p.shape, _dense_strides(p)) for piece, p in zip(pieces, parameters, strict=True)]

    def _put(self, gradients: Sequence[Tensor | None]) -> None:
        """Copy gradients into the memory; 0 where there is none."""
        present = [(part, g) for part, g in zip(self.parts, gradients, strict=True) if g is not None]
        if len(present) < len(self.parts):
            self.flat.zero_()
        if present:
            torch._foreach_copy_([part for part, _ in present], [g for _, g in present])

    def _hand_out(self) -> None:
        for parameter, part in zip(self.parameters, self.parts, strict=True):
            parameter.grad = part


class _Group(_Flat):
    """Parameters whose gradients are averaged when all of them are there."""

    @torch.no_grad()
    def average(self) -> None:
        self._put([p.grad for p in self.parameters])
        collectives.average_(self.flat)
        self._hand_out()


class _InBackward(_Flat):
    """Parameters whose gradients come at once: `take` keeps them, `begin` begins to average them, `finish` hands them out.

    What a parameter's gradient got in another way, where its weight was read without a cast, is averaged with them, or by itself where it came later.
    """

    def __init__(self, parameters: list[nn.Parameter]) -> None:
        super().__init__(parameters)
        self.taken = False
        self._wait: Callable[[], None] | None = None  # of the average under way

    @torch.no_grad()
    def take(self, gradients: Sequence[Tensor | None]) -> None:
        self._put(gradients)
        self._add_others()
        self.taken = True

    def begin(self) -> None:
        self._wait = collectives.begin_average(self.flat)

    @torch.no_grad()
    def finish(self) -> None:
        assert self._wait is not None
        self._wait()
        _in_one_piece([p.grad for p in self.parameters if p.grad is not None], collectives.average_)
        self._add_others()
        self._hand_out()
        self.taken, self._wait = False, None

    def _add_others(self) -> None:
        """Add what the parameters hold as their gradients, and take it from them."""
        others = [(part, p.grad) for part, p in zip(self.parts, self.parameters, strict=True) if p.grad is not None]
        if others:
            torch._foreach_add_([part for part, _ in others], [g for _, g in others])
            for parameter in self.parameters:
                parameter.grad = None


def _dense_strides(parameter: Tensor) -> tuple[int, ...]:
    """Return the strides of a tensor's like that has no gaps."""
    return torch.empty_like(parameter, device="meta").stride()


def _groups_of(parameters: Sequence[nn.Parameter]) -> list[_Group]:
    return [_Group([p for p in parameters if p.dtype == dtype]) for dtype in dict.fromkeys(p.dtype for p in parameters)]


def _make_those_of_rank_0(tensors: Sequence[Tensor]) -> None:
    """Let ranks begin with the same numbers, as DDP does with what it has: one broadcast for each type."""
    tensors = [t.detach() for t in tensors]
    for dtype in dict.fromkeys(t.dtype for t in tensors):
        _in_one_piece([t for t in tensors if t.dtype == dtype and t.numel()], collectives.broadcast_)


@torch.no_grad()
def _in_one_piece(tensors: Sequence[Tensor], collective: Callable[[Tensor], Any]) -> None:
    """Do a collective that works in place once for many tensors of one type."""
    if not tensors:
        return
    flat = torch.cat([t.reshape(-1) for t in tensors])
    collective(flat)
    for tensor, part in zip(tensors, flat.split([t.numel() for t in tensors]), strict=True):
        tensor.copy_(part.view(tensor.shape))


def _vectors(net: nn.Module) -> Iterator[tuple[str, nn.Parameter]]:
    """Yield name and parameter of what trains and has one axis or none, under every name that it has."""
    for prefix, module in net.named_modules(remove_duplicate=False):
        for name, parameter in module.named_parameters(recurse=False):
            if parameter.requires_grad and parameter.dim() <= 1:
                yield f"{prefix}.{name}" if prefix else name, parameter


def data_parallel(net: nn.Module, device: torch.device, chunks: Sequence[Chunk] = ()) -> nn.Module:
    """Return the network for training on all ranks, or itself when alone.

    chunks: weights that are cast together. Without any, gradients go through DDP's buckets. Buffers are not broadcast in the forward: synchronised
    BatchNorm needs none, and the others are averaged before they are used.
    """
    if collectives.world_size() == 1:
        return net
    if chunks:
        return ByChunks(net, chunks)
    ids = [device.index] if device.type == "cuda" else None
    options: dict[str, Any] = {_SYNC_BUFFERS: False}
    return ByBuckets(net, device_ids=ids, gradient_as_bucket_view=True, **options)


def finish_gradients(net: nn.Module) -> None:
    """Let a network that trains on all ranks have its gradients; nothing to do for any other."""
    finish: Any = getattr(net, "finish_gradients", None)
    if finish is not None:
        finish()
