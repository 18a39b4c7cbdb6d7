"""`fused=true`: on a GPU, BatchNorm and the activation behind it in one function that reads and writes each map as few times as it must."""

from __future__ import annotations

import importlib.util
import logging
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from libreyolo.engine import collectives
from libreyolo.engine.batchnorm import SyncBatchNorm

log = logging.getLogger(__name__)

ACTIVATIONS: dict[type[nn.Module], int] = {nn.SiLU: 1, nn.ReLU: 2}  # as in nn.fused.kernels, which only a machine with triton can import


class FusedNormAct(SyncBatchNorm):
    """A BatchNorm that also applies the activation behind it; the same parameters and buffers under the same names.

    Maps that the kernels don't take (on the CPU, not channels_last, in eval mode, with a cumulative mean) go through plain operators, with
    statistics of the same ranks.
    """

    def __init__(self, norm: nn.BatchNorm2d, act: nn.Module, *, over_ranks: bool) -> None:
        super().__init__(norm.num_features, norm.eps, norm.momentum, norm.affine, norm.track_running_stats)
        self._parameters, self._buffers, self.training = norm._parameters, norm._buffers, norm.training
        self.act = act  # it has no state
        self.over_ranks = over_ranks

    def forward(self, input: Tensor) -> Tensor:
        if not self._takes(input):
            normalised = super().forward(input) if self.over_ranks else _BatchNorm.forward(self, input)
            found: Tensor = self.act(normalised)
            return found
        from libreyolo.nn.fused.norm_act import Running, norm_act

        assert self.running_mean is not None and self.running_var is not None and self.momentum is not None
        if self.num_batches_tracked is not None:  # else the network counts for its layers
            self.num_batches_tracked.add_(1)
        running = Running(self.running_mean, self.running_var, self.momentum)
        shared = collectives.sum_ if self.over_ranks and collectives.world_size() > 1 else None
        return norm_act(input, self.weight, self.bias, running, eps=self.eps, act=ACTIVATIONS[type(self.act)], over_ranks=shared)

    def _takes(self, x: Tensor) -> bool:
        return (
            self.training
            and self.momentum is not None  # None while statistics are recomputed: a mean over all batches, of a weight that is on the device
            and x.device.type in kernel_devices()
            and x.dtype in (torch.float32, torch.bfloat16, torch.float16)
            and self.weight.dtype == torch.float32
            and x.numel() > 0
            and x.is_contiguous(memory_format=torch.channels_last)
        )


def kernel_devices() -> tuple[str, ...]:
    """Return the kinds of device on which the kernels run."""
    return ("cuda",)


def fuse(net: nn.Module, *, over_ranks: bool) -> nn.Module:
    """Replace, in the layers that say so, BatchNorm and activation by one module; return the network.

    A layer says so with `NORM_ACT`, the names of the two children that its forward applies one after the other. over_ranks: statistics cover all
    ranks. Names of parameters and buffers stay. Without triton nothing is replaced, and the log says so.
    """
    if importlib.util.find_spec("triton") is None:
        log.info("fused=true needs triton, which torch brings along on CUDA machines: BatchNorm and activation stay apart.")
        return net
    count = 0
    for layer in net.modules():
        names: Any = getattr(layer, "NORM_ACT", None)
        if names is None:
            continue
        norm, act = getattr(layer, names[0]), getattr(layer, names[1])
        if type(norm) is not nn.BatchNorm2d or type(act) not in ACTIVATIONS or norm.momentum is None or not norm.affine:
            continue
        if not norm.track_running_stats:
            continue
        setattr(layer, names[0], FusedNormAct(norm, act, over_ranks=over_ranks))
        setattr(layer, names[1], nn.Identity())
        count += 1
    log.info("fused=true: %d pairs of BatchNorm and activation run as one.", count)
    return net
