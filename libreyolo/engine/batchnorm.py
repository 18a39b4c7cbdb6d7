"""BatchNorm over the global batch: conversion while training is distributed, plain BatchNorm in every file."""

from __future__ import annotations

import logging
from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from libreyolo.engine import collectives

log = logging.getLogger(__name__)

# Fewer pictures than this on a rank give BatchNorm statistics that differ too much between ranks.
SMALL_BATCH = 16


class SyncBatchNorm(_BatchNorm):
    """BatchNorm whose training statistics cover the pictures of all ranks; works on every device, with torch's names and state.

    Each rank gives its count, means and sums of squared deviations in one differentiable all-reduce (the gradient of a sum over ranks is the sum
    of gradients over ranks); merged, they are what one rank computes on the whole batch. Ranks may hold different numbers of pictures, none 0.
    """

    def _check_input_dim(self, input: Tensor) -> None:
        if input.dim() < 2:
            raise ValueError(f"expected at least a 2-dim input, got {input.dim()}")

    def forward(self, input: Tensor) -> Tensor:
        if not self.training or collectives.world_size() == 1:
            return super().forward(input)
        x = input.to(torch.promote_types(input.dtype, torch.float32))
        dims = [0, *range(2, x.dim())]
        shape = [1, -1] + [1] * (x.dim() - 2)
        own_mean = x.mean(dims)
        # Deviations from the rank's own mean, not raw squares: E[x^2] - E[x]^2 cancels where the mean is large.
        own_squares = (x - own_mean.reshape(shape)).square().sum(dims)
        row = torch.cat([own_mean, own_squares, x.new_full((1,), x.numel() / x.shape[1])])
        seat = torch.arange(collectives.world_size(), device=x.device) == collectives.rank()
        table = collectives.differentiable_sum(seat.to(x.dtype)[:, None] * row)  # [ranks, 2 C + 1]
        means, squares, counts = table.split([x.shape[1], x.shape[1], 1], dim=1)
        total = counts.sum()
        mean = (counts * means).sum(0) / total
        variance = (squares + counts * (means - mean).square()).sum(0) / total
        self._track(mean, variance * total / (total - 1).clamp(min=1.0))
        normalised = (x - mean.reshape(shape)) * (variance.reshape(shape) + self.eps).rsqrt()
        if self.affine:
            normalised = normalised * self.weight.reshape(shape) + self.bias.reshape(shape)
        return normalised.to(input.dtype)

    @torch.no_grad()
    def _track(self, mean: Tensor, variance: Tensor) -> None:
        if not self.track_running_stats or self.running_mean is None or self.running_var is None:
            return
        if self.num_batches_tracked is not None:  # else the network counts for its layers
            self.num_batches_tracked.add_(1)
        weight = self.momentum
        if weight is None:
            assert self.num_batches_tracked is not None  # who needs the number counts by itself
            weight = 1.0 / float(self.num_batches_tracked)
        self.running_mean.lerp_(mean.to(self.running_mean.dtype), weight)
        self.running_var.lerp_(variance.to(self.running_var.dtype), weight)


class CudaSyncBatchNorm(nn.SyncBatchNorm):
    """Torch's, which makes the host wait for the device in every layer, to leave out ranks without pictures; here no rank is.

    It does not where a CUDA graph is being captured, and asks for that with a function of its own module.
    """

    COMPILES = False  # see engine.compilation

    def forward(self, input: Tensor) -> Tensor:
        asked = torch.cuda.is_current_stream_capturing
        torch.cuda.is_current_stream_capturing = _yes
        try:
            return super().forward(input)
        finally:
            torch.cuda.is_current_stream_capturing = asked


def _yes() -> bool:
    return True


def synchronise(net: nn.Module, kind: Callable[..., _BatchNorm] | None = None) -> nn.Module:
    """Return the network with every BatchNorm synchronised. Call after the move to the device.

    kind: makes the new layers, from what BatchNorm is made from; not given, that is torch's for CUDA there and `SyncBatchNorm` elsewhere. Names,
    parameters and buffers stay the same tensors, so a state dict saved from the result is one of plain BatchNorm.
    """
    on_cuda = any(p.is_cuda for p in net.parameters())
    return _convert(net, kind or (CudaSyncBatchNorm if on_cuda else SyncBatchNorm), {})


def _convert(module: nn.Module, kind: Callable[..., _BatchNorm], done: dict[nn.Module, nn.Module]) -> nn.Module:
    """Return the module with its BatchNorms replaced; one that sits in several places stays one, one that synchronises stays."""
    if module in done:
        return done[module]
    converted = module
    if isinstance(module, _BatchNorm) and not isinstance(module, (SyncBatchNorm, nn.SyncBatchNorm)):
        converted = kind(module.num_features, module.eps, module.momentum, module.affine, module.track_running_stats)
        converted._parameters, converted._buffers, converted.training = module._parameters, module._buffers, module.training
    done[module] = converted
    for name, child in list(module._modules.items()):
        if child is not None:
            setattr(converted, name, _convert(child, kind, done))
    return converted


def warn_small_batch(net: nn.Module, batch_per_rank: int, world_size: int, sync_bn: bool) -> None:
    """Warn where BatchNorm is left to each rank's own few pictures."""
    has_norm = any(isinstance(m, _BatchNorm) for m in net.modules())
    if world_size > 1 and not sync_bn and has_norm and batch_per_rank < SMALL_BATCH and collectives.rank() == 0:
        log.warning(
            "BatchNorm sees only %d pictures on each of %d ranks, fewer than %d: statistics differ between ranks. Use sync_bn=true or more pictures.",
            batch_per_rank,
            world_size,
            SMALL_BATCH,
        )
