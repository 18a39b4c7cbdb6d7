"""BatchNorm and activation as one differentiable function of a channels_last map, with statistics of this rank or of all ranks."""

from __future__ import annotations

import functools
import itertools
from typing import Any, NamedTuple

import torch
from torch import Tensor

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
        plan = plan_for(rows, channels, ranks.size, device)
        with available.current(device):
            stream = available.stream(device)
            parts, tickets = scratch.of(device, stream, plan.floats, plan.blocks)
            table = torch.empty((ranks.size, 3, channels), dtype=torch.float32, device=device)
            meet, place, turn = scratch.next_turn(ranks, channels, parts)
            launch(
                plan.ready, ("sums", x.dtype, not meet), kernels.sums_kernel, plan.sum_programs, stream,
                (x, parts, tickets, table, place), (rows, channels, plan.parts, ranks.rank, turn), plan.sums[meet],
            )  # fmt: skip
            if not meet and ranks.size > 1:
                ranks.gather(table)
            y = torch.empty_like(x)
            launch(
                plan.ready, ("apply", x.dtype, act), kernels.apply_kernel, plan.programs, stream,
                (x, y, table, weight, bias, running.mean, running.var, running.tracked), (rows, channels, eps, running.momentum), plan.apply[act],
            )  # fmt: skip
        ctx.save_for_backward(x, table, weight, bias)
        ctx.rest = plan, eps, act, ranks, scratch
        return y

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        if torch.is_grad_enabled():  # what torch's `once_differentiable` refuses later, and with more calls in every backward
            raise RuntimeError("norm_act is differentiable once: its gradient has no graph")
        x, table, weight, bias = ctx.saved_tensors
        plan, eps, act, ranks, scratch = ctx.rest
        device, channels = x.device, x.shape[1]
        gradient, apart = in_rows(gradients[0])
        rows = x.numel() // channels
        with available.current(device):
            stream = available.stream(device)
            parts, tickets = scratch.of(device, stream, plan.floats, plan.blocks)
            # Those of weight and bias are of this rank: DDP averages them like those of every parameter. The second pair becomes that of all ranks.
            sums = torch.empty((2, 2, channels) if ranks.size > 1 else (2, channels), dtype=torch.float32, device=device)
            meet, place, turn = scratch.next_turn(ranks, channels, parts)
            kind = x.dtype, gradient.dtype, act, apart
            launch(
                plan.ready, ("gradient sums", *kind, not meet), kernels.gradient_sums_kernel, plan.gradient_sum_programs, stream,
                (x, gradient, parts, tickets, sums, table, weight, bias, place),
                (rows, channels, apart, plan.gradient_parts, ranks.rank, turn, eps), plan.gradient_sums[meet, act, apart != channels],
            )  # fmt: skip
            if not meet and ranks.size > 1:
                ranks.add(sums[1])
            dx = torch.empty_like(x)
            launch(
                plan.ready, ("gradient", *kind), kernels.gradient_kernel, plan.programs, stream, (x, gradient, dx, sums, table, weight, bias),
                (rows, channels, apart, eps), plan.gradient[act, apart != channels],
            )  # fmt: skip
        of_bias, of_weight = (sums[0] if ranks.size > 1 else sums).unbind()
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


def in_rows(gradient: Tensor) -> tuple[Tensor, int]:
    """Return a gradient [B, C, H, W] whose C numbers of a place lie together, all places in a row, and by how many numbers the places lie apart.

    That of a map which was joined with others is a part of theirs, with places as far apart as all channels; it is taken as it lies, not copied.
    """
    _, channels, height, width = gradient.shape
    per_picture, per_channel, per_row, per_place = gradient.stride()
    together = per_channel == 1 and per_place >= channels
    if together and per_row == width * per_place and per_picture == height * per_row:
        return gradient, per_place
    return gradient.contiguous(memory_format=torch.channels_last), channels


class Plan(NamedTuple):
    """How the kernels share a map: numbers of programs, parts of its sums, what those need of the scratch, and constants of the kernels.

    sums: without and with a meeting of ranks; apply: by activation; gradient: by activation, and whether places of the gradient lie apart;
    gradient_sums: by all three. ready: kernels as they were compiled for this plan.
    """

    programs: int
    sum_programs: int
    parts: int
    gradient_sum_programs: int
    gradient_parts: int
    blocks: int
    floats: int
    sums: tuple[dict[str, int], dict[str, int]]
    apply: list[dict[str, int]]
    gradient: dict[tuple[int, bool], dict[str, int]]
    gradient_sums: dict[tuple[bool, int, bool], dict[str, int]]
    ready: dict[Any, Any]


@functools.lru_cache(maxsize=4096)
def plan_for(rows: int, channels: int, ranks: int, device: torch.device) -> Plan:
    """Return the plan for a map of this size on each of so many ranks. The same for the same device, so sums are the same in every run."""
    columns = _block_of_columns(channels)
    blocks = -(-channels // columns)
    at_once = PROGRAMS_PER_MULTIPROCESSOR * _multiprocessors(device)

    def parts(tile: int) -> int:
        return max(1, min(-(-rows * columns // tile), at_once // blocks))

    def sums(meet: bool) -> dict[str, int]:
        return {"BM": TILE // columns, "BC": columns, "BP": PARTS_TILE // columns, "RANKS": ranks, "MEET": meet, "num_warps": WARPS}

    def apply(act: int) -> dict[str, int]:
        return {"BM": TILE // columns, "BC": columns, "RANKS": ranks, "ACT": act, "num_warps": WARPS}

    def gradient(act: int, apart: bool) -> dict[str, int]:
        return {"BM": TILE // columns, "BC": columns, "RANKS": ranks, "ACT": act, "APART": apart, "num_warps": WARPS}

    def gradient_sums(meet: bool, act: int, apart: bool) -> dict[str, int]:
        tile = {"BM": GRADIENT_TILE // columns, "BC": columns, "BP": PARTS_TILE // columns}
        return {**tile, "RANKS": ranks, "ACT": act, "MEET": meet, "APART": apart, "num_warps": WARPS}

    kinds = list(itertools.product(kernels.ACTIVATIONS, (False, True)))

    return Plan(
        programs=-(-rows * columns // TILE) * blocks,
        sum_programs=parts(TILE) * blocks,
        parts=parts(TILE),
        gradient_sum_programs=parts(GRADIENT_TILE) * blocks,
        gradient_parts=parts(GRADIENT_TILE),
        blocks=blocks,
        floats=2 * max(parts(TILE), parts(GRADIENT_TILE)) * channels,
        sums=(sums(False), sums(True)),
        apply=[apply(act) for act in kernels.ACTIVATIONS],
        gradient={kind: gradient(*kind) for kind in kinds},
        gradient_sums={(meet, *kind): gradient_sums(meet, *kind) for meet in (False, True) for kind in kinds},
        ready={},
    )


def _block_of_columns(channels: int) -> int:
    """Return 64 columns, which are a cache line of bfloat16, or 32 where those leave fewer lanes without a column; 16 for the narrowest maps."""
    if channels <= 16:
        return 16
    return 64 if -channels % 64 == -channels % 32 else 32


def _multiprocessors(device: torch.device) -> int:
    return int(torch.cuda.get_device_properties(device).multi_processor_count) if device.type == "cuda" else 4
