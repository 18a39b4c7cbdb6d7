"""Plans carried out by a kernel of our own, where Triton runs: a pass over the output, where plain operators go over memory some hundred times.

For 64 mosaics of 640 pixels those took a GPU 13 ms, and this takes it 0.7 (benchmarks/README.md).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from libreyolo.nn.fused import available

if TYPE_CHECKING:
    from libreyolo.data.augment.compose import PlanBatch

ROWS, COLUMNS, WARPS = 8, 32, 4  # pixels of a program: a square-like piece of the output stays one in the tile, whichever way that is turned


def can_paint(device: torch.device) -> bool:
    """Return whether the kernel runs on this device."""
    return available.runs_on(device)


def paint(tiles: Tensor, plans: PlanBatch, hw: tuple[int, int], pad: float, slots_per_layer: int) -> Tensor:
    """Return what `compose` returns, to rounding: float32 [B, 3, H, W]. The arguments are its own.

    pad: the grey where no tile is, in [0, 1]. slots_per_layer: S, or half of it where layers are blended.
    """
    num_slots, _, num_pictures = plans.numbers.shape[:3]
    images = torch.empty((num_pictures, 3, *hw), dtype=torch.float32, device=tiles.device)
    programs = num_pictures * -(-hw[0] // ROWS) * -(-hw[1] // COLUMNS)
    if programs == 0:
        return images
    arrays = (tiles.contiguous(), plans.source.contiguous(), plans.numbers.contiguous(), plans.colours.contiguous(), images)
    numbers = (num_pictures, *tiles.shape[1:3], *hw, pad)
    Paint.apply(programs, arrays, numbers, {"SLOTS": slots_per_layer, "MIXED": num_slots > slots_per_layer, "PROJECTIVE": plans.projective})
    return images


class Paint(torch.autograd.Function):
    """The launch as an operator, without a gradient: torch's profiler gives a kernel's time to the operator that launched it, else to nobody."""

    @staticmethod
    def forward(ctx: Any, programs: int, arrays: Sequence[Tensor], numbers: Sequence[float], options: Mapping[str, Any]) -> None:
        """Run `programs` programs. arrays, numbers, options: the kernel's tensors (its output last), its other arguments, its constants by name."""
        from libreyolo.data.augment.paint_kernel import paint_kernel

        with available.current(arrays[0].device):
            paint_kernel[(programs,)](*arrays, *numbers, **options, ROWS=ROWS, COLUMNS=COLUMNS, num_warps=WARPS)
