"""DistributedDataParallel, with the gradients of small parameters averaged in one go."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from typing import Any

import torch
from torch import nn

from libreyolo.engine import collectives

_Plain = nn.parallel.DistributedDataParallel
# torch renamed the argument and warns of the old name.
_SYNC_BUFFERS = "forward_sync_buffers" if "forward_sync_buffers" in inspect.signature(_Plain).parameters else "broadcast_buffers"


class DataParallel(_Plain):
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
        self._groups = [_Group([p for p in distinct if p.dtype == dtype]) for dtype in dict.fromkeys(p.dtype for p in distinct)]

    @torch.no_grad()
    def finish_gradients(self) -> None:
        """Average the gradients that DDP leaves alone over ranks. One that is None counts as 0."""
        for group in self._groups:
            group.average()


class _Group:
    """Vectors of one type; in the beginning they are made those of rank 0, as DDP does with the others."""

    def __init__(self, parameters: list[nn.Parameter]) -> None:
        self.parameters = parameters
        self.flat = torch.cat([p.detach().reshape(-1) for p in parameters])
        self.parts = [part.view(p.shape) for part, p in zip(self.flat.split([p.numel() for p in parameters]), parameters, strict=True)]
        collectives.broadcast_(self.flat)
        with torch.no_grad():
            torch._foreach_copy_([p.detach() for p in parameters], self.parts)

    def average(self) -> None:
        gradients = [p.grad for p in self.parameters]
        present = [(part, g) for part, g in zip(self.parts, gradients, strict=True) if g is not None]
        if len(present) < len(self.parts):
            self.flat.zero_()
        if present:
            torch._foreach_copy_([part for part, _ in present], [g for _, g in present])
        collectives.average_(self.flat)
        for parameter, part in zip(self.parameters, self.parts, strict=True):
            parameter.grad = part


def _vectors(net: nn.Module) -> Iterator[tuple[str, nn.Parameter]]:
    """Yield name and parameter of what trains and has one axis or none, under every name that it has."""
    for prefix, module in net.named_modules(remove_duplicate=False):
        for name, parameter in module.named_parameters(recurse=False):
            if parameter.requires_grad and parameter.dim() <= 1:
                yield f"{prefix}.{name}" if prefix else name, parameter


def data_parallel(net: nn.Module, device: torch.device) -> nn.Module:
    """Return the network for training on all ranks, or itself when alone.

    Buffers are not broadcast in the forward: synchronised BatchNorm needs none, and the others are averaged before they are used.
    """
    if collectives.world_size() == 1:
        return net
    ids = [device.index] if device.type == "cuda" else None
    options: dict[str, Any] = {_SYNC_BUFFERS: False}
    return DataParallel(net, device_ids=ids, gradient_as_bucket_view=True, **options)


def finish_gradients(net: nn.Module) -> None:
    """Let a network that trains on all ranks have its gradients; nothing to do for any other."""
    finish: Any = getattr(net, "finish_gradients", None)
    if finish is not None:
        finish()
