"""BatchNorm and activation as one differentiable function of a channels_last map, with statistics of this rank or of all ranks."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from libreyolo.nn.fused import kernels

PARTS = 1024  # most programs that share the rows of a sum
BLOCK_ROWS, BLOCK_COLUMNS, BLOCK_PARTS = 64, 64, 32

# Sums a tensor over ranks in place and returns it.
SumOverRanks = Callable[[Tensor], Tensor]


@dataclass(frozen=True)
class Running:
    """A norm's running statistics, float32 [C], moved in the forward by `momentum` towards those of the batch."""

    mean: Tensor
    var: Tensor
    momentum: float


class NormAct(torch.autograd.Function):
    """act(batch_norm(x)) in training; see `norm_act`."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor, running: Running, eps: float, act: int, over_ranks: SumOverRanks | None) -> Tensor:
        rows, channels = _shape(x)
        sums, parts = _row_sums(kernels.sums_kernel, x, (), act=None)
        count: Tensor | None = None
        if over_ranks is None:
            mean, rstd = torch.empty(2, channels, device=x.device)
            kernels.statistics_kernel[_columns(channels)](
                x, sums, mean, rstd, running.mean, running.var, parts, channels, float(rows), eps, running.momentum,
                BP=BLOCK_PARTS, BC=BLOCK_COLUMNS,
            )  # fmt: skip
        else:
            mean, squares, count = _merged(x, sums, over_ranks)
            rstd = (squares / count + eps).rsqrt()
            running.mean.lerp_(mean, running.momentum)
            running.var.lerp_(squares / (count - 1.0).clamp(min=1.0), running.momentum)
        y = torch.empty_like(x)
        _by_row(kernels.apply_kernel, rows, channels, x, y, mean, rstd, weight, bias, act=act)
        ctx.save_for_backward(x, mean, rstd, weight, bias, *(() if count is None else (count,)))
        ctx.act, ctx.over_ranks = act, over_ranks
        return y

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        x, mean, rstd, weight, bias, *counts = ctx.saved_tensors
        gradient = gradients[0].contiguous(memory_format=torch.channels_last)
        rows, channels = _shape(x)
        sums, parts = _row_sums(kernels.gradient_sums_kernel, x, (gradient, mean, rstd, weight, bias), act=ctx.act)
        own, means = torch.empty(2, 2, channels, device=x.device)
        kernels.gradient_means_kernel[_columns(channels)](sums, own, means, parts, channels, float(rows), BP=BLOCK_PARTS, BC=BLOCK_COLUMNS)
        if ctx.over_ranks is not None:
            means = ctx.over_ranks(own.clone()) / counts[0]
        dx = torch.empty_like(x)
        _by_row(kernels.gradient_kernel, rows, channels, x, gradient, dx, mean, rstd, weight, bias, means[0], means[1], act=ctx.act)
        # Of this rank: DDP averages the gradients of weight and bias as those of every parameter.
        return dx, own[1], own[0], None, None, None, None


def norm_act(x: Tensor, weight: Tensor, bias: Tensor, running: Running, *, eps: float, act: int, over_ranks: SumOverRanks | None = None) -> Tensor:
    """Return act((x - mean) / sqrt(var + eps) * weight + bias) and move the running statistics.

    x: [B, C, H, W], channels_last and contiguous, at least one row, of a type that a GPU computes with; weight and bias float32 [C]. act: a
    constant of `kernels`. over_ranks: statistics cover the rows of all ranks, each of which must hold some; None: of this rank alone.
    Differentiable in x, weight and bias.
    """
    found: Tensor = NormAct.apply(x, weight, bias, running, eps, act, over_ranks)
    return found


def _shape(x: Tensor) -> tuple[int, int]:
    return x.numel() // x.shape[1], x.shape[1]


def _columns(channels: int) -> tuple[int]:
    return (-(-channels // BLOCK_COLUMNS),)


def _row_sums(kernel: Any, x: Tensor, others: tuple[Tensor, ...], *, act: int | None) -> tuple[Tensor, int]:
    """Return what a kernel of sums gives, [parts, 2, C], and the number of parts; each program takes a multiple of the block of rows."""
    rows, channels = _shape(x)
    blocks = -(-rows // BLOCK_ROWS)
    per_part = -(-blocks // min(blocks, PARTS)) * BLOCK_ROWS
    parts = -(-rows // per_part)
    sums = torch.empty((parts, 2, channels), device=x.device)
    gradient, rest = others[:1], others[1:]
    options = {} if act is None else {"ACT": act}
    kernel[(parts, _columns(channels)[0])](x, *gradient, sums, *rest, rows, channels, per_part, BM=BLOCK_ROWS, BC=BLOCK_COLUMNS, **options)
    return sums, parts


def _by_row(kernel: Any, rows: int, channels: int, *tensors: Tensor, act: int) -> None:
    kernel[(-(-rows // BLOCK_ROWS), _columns(channels)[0])](*tensors, rows, channels, BM=BLOCK_ROWS, BC=BLOCK_COLUMNS, ACT=act)


def _merged(x: Tensor, sums: Tensor, over_ranks: SumOverRanks) -> tuple[Tensor, Tensor, Tensor]:
    """Return mean and sum of squared deviations over the rows of all ranks, float32 [C], and how many rows those are, 0-dim.

    Two small sums: counts and means, then deviations from the common mean (Chan, Golub and LeVeque 1983).
    """
    count = torch.full((1,), float(_shape(x)[0]), device=x.device)
    first, second = sums.sum(0)
    mean = first / count + x[0, :, 0, 0].float()
    squares = (second - first.square() / count).clamp(min=0.0)
    together = over_ranks(torch.cat([mean * count, count]))
    common = together[:-1] / together[-1]
    return common, over_ranks(squares + count * (mean - common).square()), together[-1]
