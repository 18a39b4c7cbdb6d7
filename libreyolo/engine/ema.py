"""Exponential moving average of the weights."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable

import torch
from torch import Tensor, nn


class EMA:
    """Keeps `average`, a copy of the network in eval mode whose floating tensors follow the trained ones.

    After update u (one-based) the average is lerped by 1 - decay * (1 - exp(-u / tau)); integer tensors are copied. Buffers are averaged like
    parameters: BatchNorm statistics belong to the weights that made them.
    """

    def __init__(self, net: nn.Module, *, decay: float, tau: float) -> None:
        self.average = copy.deepcopy(net).eval().requires_grad_(False)
        self.decay, self.tau, self.updates = decay, tau, 0
        self._pairs: tuple[list[torch.Tensor], list[torch.Tensor]] | None = None
        self._whole: list[tuple[list[torch.Tensor], list[torch.Tensor]]] = []  # one pair of lists for each dtype

    @torch.no_grad()
    def update(self, net: nn.Module, of: Callable[[Tensor], Tensor] = lambda tensor: tensor) -> None:
        """Move the average towards `net`, which must be the network that this average was made from.

        of: says which tensor to read in place of one of the network's; the same one in every call.
        """
        self.updates += 1
        if self._pairs is None:
            self._pair_up(net, of)
        assert self._pairs is not None
        weight = 1.0 - self.decay * (1.0 - math.exp(-self.updates / self.tau))
        torch._foreach_lerp_(self._pairs[0], self._pairs[1], weight)
        for mine, theirs in self._whole:
            torch._foreach_copy_(mine, theirs)  # one launch: a network may have hundreds of BatchNorm counters

    @torch.no_grad()
    def start_anew(self, net: nn.Module) -> None:
        """Make the average the network as it is now; the number of updates stays."""
        self.average.load_state_dict(net.state_dict())

    def _pair_up(self, net: nn.Module, of: Callable[[Tensor], Tensor]) -> None:
        mine, theirs = self.average.state_dict(keep_vars=True), net.state_dict(keep_vars=True)
        # A tensor that the network shares has several names and must be moved once.
        names = list({id(tensor): name for name, tensor in reversed(mine.items())}.values())[::-1]
        floating = [k for k in names if mine[k].is_floating_point()]
        self._pairs = ([mine[k].data for k in floating], [of(theirs[k]).data for k in floating])
        whole = [k for k in names if not mine[k].is_floating_point()]
        kinds = dict.fromkeys(mine[k].dtype for k in whole)
        self._whole = [
            ([mine[k].data for k in whole if mine[k].dtype == d], [of(theirs[k]).data for k in whole if mine[k].dtype == d]) for d in kinds
        ]
