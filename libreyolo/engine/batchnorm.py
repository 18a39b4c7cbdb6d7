"""BatchNorm over the global batch: conversion while training is distributed, plain BatchNorm in every file."""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn.modules.batchnorm import _BatchNorm

from libreyolo.engine import collectives
from libreyolo.nn.fused import available
from libreyolo.nn.fused.scratch import ALONE, Ranks, Scratch

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
        if not self.track_running_stats or self.running_mean is None or self.running_var is None or self.num_batches_tracked is None:
            return
        self.num_batches_tracked.add_(1)
        weight = 1.0 / float(self.num_batches_tracked) if self.momentum is None else self.momentum
        self.running_mean.lerp_(mean.to(self.running_mean.dtype), weight)
        self.running_var.lerp_(variance.to(self.running_var.dtype), weight)


class CudaSyncBatchNorm(SyncBatchNorm):
    """The same on a GPU, where the host must never wait for the device, nor the device for the host: few operators and few calls.

    Maps that the kernels of `nn.fused` take need two launches and one collective in each direction; others go through torch's own kernels, and
    what those don't take (float64, a cumulative mean, no weights) through plain operators.
    """

    over_ranks = True

    def __init__(self, *arguments: Any, scratch: Scratch, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self.scratch = scratch

    @torch.compiler.disable
    def forward(self, input: Tensor) -> Tensor:
        ranks = self.ranks()
        if ranks.size == 1 or not self._usual(input):
            return super().forward(input)
        if self.kernels_take(input):
            return self.by_kernels(input, 0, ranks)
        return self._by_torch_s(input, ranks) if torch_s_run_on(input.device) else super().forward(input)

    def ranks(self) -> Ranks:
        """Return the ranks whose pictures the statistics cover."""
        return collectives.ranks() if self.over_ranks and self.training else ALONE

    def kernels_take(self, x: Tensor) -> bool:
        """Return whether the kernels of `nn.fused` take this map."""
        return self._usual(x) and x.dim() == 4 and x.is_contiguous(memory_format=torch.channels_last) and available.runs_on(x.device)

    def by_kernels(self, x: Tensor, act: int, ranks: Ranks) -> Tensor:
        """Return the normalised map after an activation of `nn.fused.kernels`, 0 for none; moves the running statistics."""
        from libreyolo.nn.fused.norm_act import Running, norm_act

        assert self.running_mean is not None and self.running_var is not None and self.num_batches_tracked is not None and self.momentum is not None
        running = Running(self.running_mean, self.running_var, self.num_batches_tracked, self.momentum)
        return norm_act(x, self.weight, self.bias, running, eps=self.eps, act=act, ranks=ranks, scratch=self.scratch)

    def _usual(self, x: Tensor) -> bool:
        return (
            self.training
            and self.momentum is not None  # None while statistics are recomputed: a mean over all batches, of a weight that is on the device
            and self.affine
            and self.running_mean is not None
            and self.weight.dtype == torch.float32
            and x.dtype in (torch.float32, torch.bfloat16, torch.float16)
            and x.numel() > 0
        )

    def _by_torch_s(self, x: Tensor, ranks: Ranks) -> Tensor:
        assert self.num_batches_tracked is not None
        self.num_batches_tracked.add_(1)
        found: Tensor = _TorchKernels.apply(x, self.weight, self.bias, self.running_mean, self.running_var, self.eps, self.momentum, ranks)
        return found


def torch_s_run_on(device: torch.device) -> bool:
    """Return whether torch's kernels for synchronised BatchNorm run on this device."""
    return device.type == "cuda"


class _TorchKernels(torch.autograd.Function):
    """Synchronised BatchNorm by torch's kernels for CUDA.

    Torch's own function makes the host wait in every layer, to leave out ranks without pictures; here no rank is.
    """

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor, bias: Tensor, running_mean: Tensor, running_var: Tensor, eps: float, momentum: float, ranks: Ranks
    ) -> Tensor:
        x = _dense(x)
        mean, rstd = torch.batch_norm_stats(x, eps)
        channels = len(mean)
        table = mean.new_empty((ranks.size, 2 * channels + 1))
        torch.cat((mean, rstd, _as_tensor(x.numel() // channels, x.device)), out=table[ranks.rank])
        ranks.gather(table)
        means, rstds, counts = table.split((channels, channels, 1), dim=1)
        counts = counts.reshape(-1)
        mean, rstd = torch.batch_norm_gather_stats_with_counts(x, means, rstds, running_mean, running_var, momentum, eps, counts)
        ctx.save_for_backward(x, weight, mean, rstd, counts.to(torch.int32))
        ctx.ranks = ranks
        y: Tensor = torch.batch_norm_elemt(x, weight, bias, mean, rstd, eps)
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        x, weight, mean, rstd, counts = ctx.saved_tensors
        channels_last = x.dim() == 4 and x.is_contiguous(memory_format=torch.channels_last)
        gradient = gradients[0].contiguous(memory_format=torch.channels_last if channels_last else torch.contiguous_format)
        first, second, of_weight, of_bias = torch.batch_norm_backward_reduce(gradient, x, mean, rstd, weight, True, True, True)
        sums = torch.stack((first, second))
        ctx.ranks.add(sums)
        dx = torch.batch_norm_backward_elemt(gradient, x, mean, rstd, weight, sums[0], sums[1], counts)
        return dx, of_weight, of_bias, None, None, None, None, None


def _dense(x: Tensor) -> Tensor:
    return x if x.dim() == 4 and x.is_contiguous(memory_format=torch.channels_last) else x.contiguous()


@functools.lru_cache(maxsize=1024)
def _as_tensor(number: int, device: torch.device) -> Tensor:
    """Return the number as float32 [1] on the device, where it stays: to send it there would take a copy a layer."""
    return torch.full((1,), float(number), device=device)


def synchronise(net: nn.Module) -> nn.Module:
    """Return the network with every BatchNorm synchronised: `CudaSyncBatchNorm` on a GPU, else `SyncBatchNorm`. Call after the move to the device.

    Names, parameters and buffers stay the same tensors, so a state dict saved from the result is one of plain BatchNorm.
    """
    on_cuda = any(p.is_cuda for p in net.parameters())
    return _convert(net, functools.partial(CudaSyncBatchNorm, scratch=Scratch()) if on_cuda else SyncBatchNorm, {})


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
