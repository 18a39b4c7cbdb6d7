"""BatchNorm and activation as one differentiable function of a channels_last map, with statistics of this rank or of all ranks."""

from __future__ import annotations

import functools
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from libreyolo.nn.fused import available, kernels
from libreyolo.nn.fused.launching import launch
from libreyolo.nn.fused.scratch import ALONE, Ranks, Scratch

# Numbers of a map that a program holds at once. 8 warps have 256 threads: 8192 are four loads of 16 bytes for each in bfloat16, which with two
# programs on a multiprocessor keep its memory busy. Sums of gradients hold two maps and both sums: with more than 4096 only one such program fits.
TILE, GRADIENT_TILE, PARTS_TILE, WARPS = 8192, 4096, 4096, 8
PROGRAMS_PER_MULTIPROCESSOR = 2  # of kernels that sum: one round of programs that all run, and few parts for the last of them to add up


class Running(NamedTuple):
    """A norm's running statistics, float32 [C], moved in the forward by `momentum` towards those of the batch, and its count of batches, int64."""

    mean: Tensor
    var: Tensor
    tracked: Tensor
    momentum: float


class NormAct(torch.autograd.Function):
    """act(batch_norm(x)) in training; see `norm_act`."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor, running: Running, eps: float, act: int, ranks: Ranks, scratch: Scratch) -> Tensor:
        device, channels = x.device, x.shape[1]
        rows = x.numel() // channels
        plan = plan_for(rows, channels, device)
        with available.current(device):
            parts, tickets = scratch.of(device, plan.floats, plan.blocks)
            table = torch.empty((ranks.size, 3, channels), dtype=torch.float32, device=device)
            launch(
                plan.ready, ("sums", x.dtype), kernels.sums_kernel, plan.sum_programs, (x, parts, tickets, table),
                (rows, channels, plan.parts, ranks.rank), **plan.sum_tile, BP=plan.parts_rows, num_warps=WARPS,
            )  # fmt: skip
            ranks.gather(table)
            y = torch.empty_like(x)
            launch(
                plan.ready, ("apply", x.dtype, act, ranks.size), kernels.apply_kernel, plan.programs,
                (x, y, table, weight, bias, running.mean, running.var, running.tracked), (rows, channels, eps, running.momentum),
                **plan.tile, RANKS=ranks.size, ACT=act, num_warps=WARPS,
            )  # fmt: skip
        ctx.save_for_backward(x, table, weight, bias)
        ctx.rest = plan, eps, act, ranks, scratch
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        x, table, weight, bias = ctx.saved_tensors
        plan, eps, act, ranks, scratch = ctx.rest
        gradient = gradients[0].contiguous(memory_format=torch.channels_last)
        device, channels = x.device, x.shape[1]
        rows = x.numel() // channels
        with available.current(device):
            parts, tickets = scratch.of(device, plan.floats, plan.blocks)
            # Those of weight and bias are of this rank: DDP averages them like those of every parameter. The second pair becomes that of all ranks.
            sums = torch.empty((min(ranks.size, 2), 2, channels), dtype=torch.float32, device=device)
            kind = x.dtype, gradient.dtype, act, ranks.size
            launch(
                plan.ready, ("gradient sums", *kind), kernels.gradient_sums_kernel, plan.gradient_sum_programs,
                (x, gradient, parts, tickets, sums, table, weight, bias), (rows, channels, plan.gradient_parts, eps),
                **plan.gradient_sum_tile, BP=plan.parts_rows, RANKS=ranks.size, ACT=act, num_warps=WARPS,
            )  # fmt: skip
            if ranks.size > 1:
                ranks.add(sums[1])
            dx = torch.empty_like(x)
            launch(
                plan.ready, ("gradient", *kind), kernels.gradient_kernel, plan.programs, (x, gradient, dx, sums, table, weight, bias),
                (rows, channels, eps), **plan.tile, RANKS=ranks.size, ACT=act, num_warps=WARPS,
            )  # fmt: skip
        of_bias, of_weight = sums[0].unbind()
        return dx, of_weight, of_bias, None, None, None, None, None


def norm_act(
    x: Tensor, weight: Tensor, bias: Tensor, running: Running, *, eps: float, act: int, ranks: Ranks = ALONE, scratch: Scratch | None = None
) -> Tensor:
    """Return act((x - mean) / sqrt(var + eps) * weight + bias), move the running statistics and count the batch.

    x: [B, C, H, W], channels_last and contiguous, at least one row, of a type that a GPU computes with; weight and bias float32 [C]. act: a
    constant of `kernels`. ranks: statistics cover the rows of all of them. scratch: kept between calls by who makes many. Differentiable once, in x,
    weight and bias.
    """
    found: Tensor = NormAct.apply(x, weight, bias, running, eps, act, ranks, scratch or Scratch())
    return found


class Plan(NamedTuple):
    """How the kernels share a map: numbers of programs, tiles of rows and columns, parts of its sums and what those need of the scratch.

    ready: kernels as they were compiled for it.
    """

    programs: int
    tile: dict[str, int]
    sum_programs: int
    sum_tile: dict[str, int]
    parts: int
    gradient_sum_programs: int
    gradient_sum_tile: dict[str, int]
    gradient_parts: int
    parts_rows: int
    blocks: int
    floats: int
    ready: dict[Any, Any]


@functools.lru_cache(maxsize=4096)
def plan_for(rows: int, channels: int, device: torch.device) -> Plan:
    """Return the plan for a map of this size. The same for the same device, so sums are the same in every run."""
    columns = _block_of_columns(channels)
    blocks = -(-channels // columns)
    at_once = PROGRAMS_PER_MULTIPROCESSOR * _multiprocessors(device)

    def parts(tile: int) -> int:
        return max(1, min(-(-rows * columns // tile), at_once // blocks))

    return Plan(
        programs=-(-rows * columns // TILE) * blocks,
        tile={"BM": TILE // columns, "BC": columns},
        sum_programs=parts(TILE) * blocks,
        sum_tile={"BM": TILE // columns, "BC": columns},
        parts=parts(TILE),
        gradient_sum_programs=parts(GRADIENT_TILE) * blocks,
        gradient_sum_tile={"BM": GRADIENT_TILE // columns, "BC": columns},
        gradient_parts=parts(GRADIENT_TILE),
        parts_rows=PARTS_TILE // columns,
        blocks=blocks,
        floats=2 * max(parts(TILE), parts(GRADIENT_TILE)) * channels,
        ready={},
    )


def _block_of_columns(channels: int) -> int:
    """Return 64 columns, which are a cache line of bfloat16, or 32 where those leave fewer lanes without a column; 16 for the narrowest maps."""
    if channels <= 16:
        return 16
    return 64 if -channels % 64 == -channels % 32 else 32


def _multiprocessors(device: torch.device) -> int:
    return int(torch.cuda.get_device_properties(device).multi_processor_count) if device.type == "cuda" else 4
