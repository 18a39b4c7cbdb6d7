"""What a norm by kernels needs beside its tensors: memory to work in, and the ranks whose rows are one batch. Neither needs triton."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from libreyolo.nn.fused.exchange import WIDEST, Exchange

FLOATS, TICKETS = 1 << 17, 64  # enough for every map of at most 4096 channels on a GPU of 512 multiprocessors, as `plan_for` shares it


class Scratch:
    """Memory that a kernel uses while it runs, one piece for each stream, because kernels of one stream run one after the other.

    exchange: where the kernels of all ranks meet; None where they don't, and collectives bring their numbers together.
    """

    def __init__(self, exchange: Exchange | None = None) -> None:
        self.exchange = exchange
        self._kept: dict[tuple[torch.device, int], tuple[Tensor, Tensor]] = {}

    def __deepcopy__(self, memo: Any) -> Scratch:
        return Scratch()  # an average of the network does not train

    def of(self, device: torch.device, stream: int, floats: int, tickets: int) -> tuple[Tensor, Tensor]:
        """Return at least `floats` numbers of any value, and `tickets` integers that are 0 and that whoever changes them sets to 0 again.

        stream: CUDA's number of the device's current one.
        """
        if device.type == "cuda" and torch.cuda.is_current_stream_capturing():  # a graph has its own, as long as it lives
            return _pieces(device, floats, tickets)
        kept = self._kept.get((device, stream))
        if kept is None or kept[0].numel() < floats or kept[1].numel() < tickets:
            kept = self._kept[device, stream] = _pieces(device, max(floats, FLOATS), max(tickets, TICKETS))
        return kept

    def next_turn(self, ranks: Ranks, channels: int, otherwise: Tensor) -> tuple[bool, Tensor, int]:
        """Return whether the ranks' sums of so many channels meet inside the kernel that comes next, in which place, and the number of the turn.

        otherwise: what stands for the place where they don't; the number is 0 then.
        """
        if self.exchange is None or ranks.size == 1 or channels > WIDEST:
            return False, otherwise, 0
        return True, *self.exchange.next_turn()


class Ranks(NamedTuple):
    """The ranks whose rows are one batch; each of them holds some.

    gather: given [size, ...], in which every rank wrote its own row, brings all of them to every rank, in place. add: sums over ranks, in place.
    """

    rank: int
    size: int
    gather: Callable[[Tensor], Any]
    add: Callable[[Tensor], Any]


def _as_it_is(tensor: Tensor) -> Tensor:
    return tensor


ALONE = Ranks(0, 1, _as_it_is, _as_it_is)


def _pieces(device: torch.device, floats: int, tickets: int) -> tuple[Tensor, Tensor]:
    return torch.empty(floats, device=device), torch.zeros(tickets, dtype=torch.int32, device=device)
