"""A mean over the whole map in training and over a window around each place in evaluation (TLC, arXiv 2112.04491)."""

from __future__ import annotations

import torch
from torch import Tensor, nn


class LocalMean(nn.Module):
    """Maps [B, C, h, w] to means: in training [B, C, 1, 1]; in evaluation one for each place along every axis longer than `window`, else 1.

    Training sees crops; the statistics of a whole large picture are none that the layers behind have met, those of a window are.
    """

    def __init__(self, window: int) -> None:
        super().__init__()
        self.window = window

    def forward(self, x: Tensor) -> Tensor:
        if self.training:
            return x.mean((2, 3), keepdim=True)
        wide = x.to(torch.promote_types(x.dtype, torch.float32))
        return running_mean(running_mean(wide, 2, self.window), 3, self.window)

    def extra_repr(self) -> str:
        return f"window={self.window}"


def running_mean(x: Tensor, dim: int, window: int) -> Tensor:
    """Return the mean over `window` neighbours along `dim` for each of its places; of length 1, the mean of all, where no more are there.

    Only whole windows are averaged; places too near an end for one of their own (of which (window - 1) // 2 come before it) get the nearest.
    """
    length = x.shape[dim]
    if length <= window:
        return x.mean(dim, keepdim=True)
    sums = x.cumsum(dim)
    first = sums.narrow(dim, window - 1, 1)
    others = sums.narrow(dim, window, length - window) - sums.narrow(dim, 0, length - window)
    means = torch.cat([first, others], dim) / window
    place = torch.arange(length, device=x.device).sub((window - 1) // 2).clamp(0, length - window)
    return means.index_select(dim, place)
