"""BatchNorm's running statistics as they were before a step, so that a step which is refused leaves no trace in them.

A picture that makes the loss infinite has gone through every BatchNorm on its way, and NaN stays in a running mean for ever.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase


@dataclass(frozen=True)
class _OfOneType:
    """live: the network's own tensors, `rows` the same as vectors. flat: one tensor that holds their copies, `copies` the parts of it in their
    shapes. chosen, choices: likewise, for what goes back. All views are made once: a step has no time for hundreds of them.
    """

    live: list[Tensor]
    rows: list[Tensor]
    flat: Tensor
    copies: list[Tensor]
    chosen: Tensor
    choices: list[Tensor]


class NormStatistics:
    """A copy of every running mean, running variance and counter in `net`; their number decides the cost, a few kernels in all."""

    def __init__(self, net: nn.Module) -> None:
        norms = [m for m in net.modules() if isinstance(m, _NormBase)]
        found = [t for m in norms for t in (m.running_mean, m.running_var, m.num_batches_tracked) if t is not None]
        tensors = list({id(t): t for t in found}.values())  # a norm that sits in several places counts once
        self._groups = [_group([t for t in tensors if t.dtype == dtype]) for dtype in dict.fromkeys(t.dtype for t in tensors)]
        self._copy_of = {id(live): copy for group in self._groups for live, copy in zip(group.live, group.copies, strict=True)}

    @torch.no_grad()
    def take(self) -> None:
        """Copy the statistics as they are now."""
        for group in self._groups:
            torch._foreach_copy_(group.copies, group.live)

    @torch.no_grad()
    def put_back(self, wanted: Tensor) -> None:
        """Put the copied statistics back where `wanted` ([1], on the device) is not 0; the host does not wait to know."""
        wanted = wanted != 0
        for group in self._groups:
            torch.cat(group.rows, out=group.chosen)
            torch.where(wanted, group.flat, group.chosen, out=group.chosen)
            torch._foreach_copy_(group.live, group.choices)

    def of(self, tensor: Tensor) -> Tensor:
        """Return the copy of one of the network's statistics, any other tensor as it is."""
        return self._copy_of.get(id(tensor), tensor)


@torch.no_grad()
def _group(tensors: list[Tensor]) -> _OfOneType:
    rows = [t.view(-1) for t in tensors]
    flat, chosen = torch.cat(rows), torch.cat(rows)
    return _OfOneType(tensors, rows, flat, _parts(flat, tensors), chosen, _parts(chosen, tensors))


def _parts(flat: Tensor, like: list[Tensor]) -> list[Tensor]:
    return [part.view(t.shape) for part, t in zip(flat.split([t.numel() for t in like]), like, strict=True)]
