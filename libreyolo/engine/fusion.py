"""`fused=true`: on a GPU, layers that only move memory by kernels that read and write each map as few times as they must.

These are BatchNorm with the activation behind it, and 2x2 means.
"""

from __future__ import annotations

import logging
from typing import Any

from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from libreyolo.engine import collectives
from libreyolo.engine.kernel_norm import KernelBatchNorm
from libreyolo.nn.fused import available
from libreyolo.nn.fused.scratch import Scratch
from libreyolo.nn.neighbour_mean import NeighbourMean

log = logging.getLogger(__name__)

# As in nn.fused.kernels, which only a machine with triton can import.
ACTIVATIONS: dict[type[nn.Module], int] = {nn.Identity: 0, nn.SiLU: 1, nn.ReLU: 2}


class FusedNormAct(KernelBatchNorm):
    """A BatchNorm that also applies the activation behind it; the same parameters and buffers under the same names.

    Maps that the kernels don't take (on the CPU, not channels_last, in eval mode, with a cumulative mean) go through other operators, with
    statistics of the same ranks.
    """

    def __init__(self, norm: nn.BatchNorm2d, act: nn.Module, *, over_ranks: bool, scratch: Scratch) -> None:
        super().__init__(norm.num_features, norm.eps, norm.momentum, norm.affine, norm.track_running_stats, scratch=scratch)
        self._parameters, self._buffers, self.training = norm._parameters, norm._buffers, norm.training
        self.act = act  # it has no state
        self.over_ranks = over_ranks

    def forward(self, input: Tensor) -> Tensor:
        if self.kernels_take(input):
            return self.by_kernels(input, ACTIVATIONS[type(self.act)], self.ranks())
        normalised = super().forward(input) if self.over_ranks else _BatchNorm.forward(self, input)
        found: Tensor = self.act(normalised)
        return found


def fuse(net: nn.Module, *, over_ranks: bool) -> nn.Module:
    """Replace, in the layers that say so, BatchNorm and activation by one module, let 2x2 means use their kernel, and return the network.

    A layer says so with `NORM_ACT`, the names of the two children that its forward applies one after the other; an activation that is none makes the
    kernels no worse than torch's. over_ranks: statistics cover all ranks. Names of parameters and buffers stay. Where the kernels don't run nothing
    is replaced, and the log says so.
    """
    device = next(net.parameters()).device
    obstacle = available.obstacle(device)
    if obstacle:
        log.info("fused=true: %s; BatchNorm and activation stay apart.", obstacle)
        return net
    count, scratch = 0, Scratch(collectives.exchange(device) if over_ranks else None)
    for layer in net.modules():
        if isinstance(layer, NeighbourMean):
            layer.by_kernel = True
        names: Any = getattr(layer, "NORM_ACT", None)
        if names is None:
            continue
        norm, act = getattr(layer, names[0]), getattr(layer, names[1])
        if type(norm) is not nn.BatchNorm2d or type(act) not in ACTIVATIONS or norm.momentum is None or not norm.affine:
            continue
        if not norm.track_running_stats:
            continue
        setattr(layer, names[0], FusedNormAct(norm, act, over_ranks=over_ranks, scratch=scratch))
        setattr(layer, names[1], nn.Identity())
        count += 1
    log.info("fused=true: %d BatchNorms run as one with the activation behind them.", count)
    return net
