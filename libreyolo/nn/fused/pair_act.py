"""Two BatchNorms, the sum of their maps and its activation as one differentiable function: act(batch_norm(x) + batch_norm(z))."""

from __future__ import annotations

import functools
from typing import Any, NamedTuple

import torch
from torch import Tensor

from libreyolo.nn.fused import available, pair_kernels
from libreyolo.nn.fused.launching import launch
from libreyolo.nn.fused.norm_act import Plan, Running, in_rows, plan_for
from libreyolo.nn.fused.scratch import ALONE, Ranks, Scratch

HALF = 2  # programs hold so many maps at once, and as many numbers as those of one map


class Norm(NamedTuple):
    """What a BatchNorm is, but for its map: weight and bias float32 [C], and running statistics."""

    weight: Tensor
    bias: Tensor
    running: Running


class PairAct(torch.autograd.Function):
    """See `pair_act`."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, z: Tensor, w: Tensor, b: Tensor, v: Tensor, c: Tensor, of_x: Running, of_z: Running, eps: float, act: int,
        ranks: Ranks, scratch: Scratch,
    ) -> Tensor:  # fmt: skip
        device, channels = x.device, x.shape[1]
        rows = x.numel() // channels
        plan = pair_plan_for(rows, channels, ranks.size, device)
        with available.current(device):
            stream = available.stream(device)
            parts, tickets = scratch.of(device, stream, plan.floats, plan.blocks)
            table = torch.empty((2, ranks.size, 3, channels), dtype=torch.float32, device=device)
            meet, place, turn = scratch.next_turn(ranks, channels, parts)
            launch(
                plan.ready, ("sums", x.dtype, not meet), pair_kernels.pair_sums_kernel, plan.sum_programs, stream,
                (x, z, parts, tickets, table, place), (rows, channels, plan.parts, ranks.rank, turn), plan.sums[meet],
            )  # fmt: skip
            if not meet and ranks.size > 1:
                for of_map in table:
                    ranks.gather(of_map)
            y = torch.empty_like(x)
            launch(
                plan.ready, ("apply", x.dtype, act), pair_kernels.pair_apply_kernel, plan.programs, stream,
                (x, z, y, table, w, b, v, c, of_x.mean, of_x.var, of_x.tracked, of_z.mean, of_z.var, of_z.tracked),
                (rows, channels, eps, of_x.momentum), plan.apply[act],
            )  # fmt: skip
        ctx.save_for_backward(x, z, table, w, b, v, c)
        ctx.rest = plan, eps, act, ranks, scratch
        return y

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        if torch.is_grad_enabled():
            raise RuntimeError("pair_act is differentiable once: its gradient has no graph")
        x, z, table, w, b, v, c = ctx.saved_tensors
        plan, eps, act, ranks, scratch = ctx.rest
        device, channels = x.device, x.shape[1]
        gradient, apart = in_rows(gradients[0])
        rows = x.numel() // channels
        with available.current(device):
            stream = available.stream(device)
            parts, tickets = scratch.of(device, stream, plan.floats, plan.blocks)
            sums = torch.empty((2, 4, channels) if ranks.size > 1 else (4, channels), dtype=torch.float32, device=device)
            meet, place, turn = scratch.next_turn(ranks, channels, parts)
            kind = x.dtype, gradient.dtype, act, apart
            launch(
                plan.ready, ("gradient sums", *kind, not meet), pair_kernels.pair_gradient_sums_kernel, plan.gradient_sum_programs, stream,
                (x, z, gradient, parts, tickets, sums, table, w, b, v, c, place),
                (rows, channels, apart, plan.gradient_parts, ranks.rank, turn, eps), plan.gradient_sums[meet, act, apart != channels],
            )  # fmt: skip
            if not meet and ranks.size > 1:
                ranks.add(sums[1, :3])
            dx, dz = torch.empty_like(x), torch.empty_like(z)
            launch(
                plan.ready, ("gradient", *kind), pair_kernels.pair_gradient_kernel, plan.programs, stream,
                (x, z, gradient, dx, dz, sums, table, w, b, v, c), (rows, channels, apart, eps), plan.gradient[act, apart != channels],
            )  # fmt: skip
        of_b, of_w, of_v, of_c = (sums[0] if ranks.size > 1 else sums).unbind()
        return dx, dz, of_w, of_b, of_v, of_c, None, None, None, None, None, None


def pair_act(x: Tensor, z: Tensor, of_x: Norm, of_z: Norm, *, eps: float, act: int, ranks: Ranks = ALONE, scratch: Scratch | None = None) -> Tensor:
    """Return act(xhat * w + b + zhat * v + c), where xhat and zhat are normalised as `norm_act` does it, and move both running statistics.

    x, z: [B, C, H, W], both as `norm_act` takes them, of one type. The norms share eps and momentum (that of `of_x` is taken). Differentiable once.
    """
    found: Tensor = PairAct.apply(
        x, z, of_x.weight, of_x.bias, of_z.weight, of_z.bias, of_x.running, of_z.running, eps, act, ranks, scratch or Scratch()
    )
    return found


@functools.lru_cache(maxsize=4096)
def pair_plan_for(rows: int, channels: int, ranks: int, device: torch.device) -> Plan:
    """Return the plan for two maps of this size: as for one of twice as many rows, in which a program takes half as many."""
    plan = plan_for(rows * HALF, channels, ranks, device)

    def halved(constants: dict[str, int]) -> dict[str, int]:
        return {name: number // HALF if name == "BM" else number for name, number in constants.items()}

    return plan._replace(
        floats=2 * plan.floats,
        sums=(halved(plan.sums[0]), halved(plan.sums[1])),
        apply=[halved(constants) for constants in plan.apply],
        gradient={kind: halved(constants) for kind, constants in plan.gradient.items()},
        gradient_sums={kind: halved(constants) for kind, constants in plan.gradient_sums.items()},
        ready={},
    )
