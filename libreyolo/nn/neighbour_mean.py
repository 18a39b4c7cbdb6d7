"""The mean of each 2x2 neighbourhood (stride 1), and its gradient at the price of another such mean."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from libreyolo.nn.fused import available

ROWS, BLOCK, WARPS = 4, 1024, 4  # of a program of the kernel: 8 numbers a thread, which in bfloat16 are one load

_ready: dict[Any, Any] = {}  # the kernel as it was compiled, by what its code depends on


class NeighbourMean(nn.Module):
    """The means of 2x2 neighbours, [B, C, H - 1, W - 1], of [B, C, H, W]; any number of gradients.

    On a GPU torch's operator takes ten times what its bytes need, and its backward visits every window of a place one after the other. Here
    channels_last maps go through a kernel of our own where it runs, and the gradient is the mean of the padded gradient in any case. Compiled by
    torch.compile, it is torch's operator.
    """

    def forward(self, x: Tensor) -> Tensor:
        if x.device.type != "cuda" or torch.compiler.is_compiling():
            return F.avg_pool2d(x, 2, 1)
        found: Tensor = Means.apply(x, 0)
        return found


class Means(torch.autograd.Function):
    """2x2 means of maps with `padding` (0 or 1) zeros around them; each padding is the other's gradient."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, padding: int) -> Tensor:
        ctx.padding = padding
        return _by_kernel(x, padding) if _takes(x, padding) else F.avg_pool2d(x, 2, 1, padding)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        return Means.apply(gradients[0], 1 - ctx.padding), None


def _takes(x: Tensor, padding: int) -> bool:
    """Return whether the kernel takes these maps."""
    return (
        x.dim() == 4
        and x.dtype in (torch.float32, torch.bfloat16, torch.float16)
        and x.numel() > 0
        and min(x.shape[2:]) + padding > 1
        and x.is_contiguous(memory_format=torch.channels_last)
        and available.runs_on(x.device)
    )


def _by_kernel(x: Tensor, padding: int) -> Tensor:
    from libreyolo.nn.fused.launching import launch
    from libreyolo.nn.fused.window_kernels import means_kernel

    images, channels, height, width = x.shape
    rows, columns = height - 1 + 2 * padding, width - 1 + 2 * padding
    y = torch.empty((images, channels, rows, columns), dtype=x.dtype, device=x.device, memory_format=torch.channels_last)
    programs = images * -(-rows // ROWS) * -(-columns * channels // BLOCK)
    constants = {"PADDING": padding, "ROWS": ROWS, "BLOCK": BLOCK, "num_warps": WARPS}
    key = x.device, x.dtype, height, width, channels, padding
    with available.current(x.device):
        numbers = height, channels, width * channels, columns * channels
        launch(_ready, key, means_kernel, programs, available.stream(x.device), (x, y), numbers, constants)
    return y
