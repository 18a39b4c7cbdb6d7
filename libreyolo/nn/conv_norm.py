"""Convolution, BatchNorm, activation in RT-DETR's naming (`conv`, `norm`), and what is built from it. Maps are [B, C, H, W]."""

from __future__ import annotations

from typing import cast

from torch import Tensor, nn


class ConvNorm(nn.Module):
    """Convolution without bias, BatchNorm, then `act` (None: nothing). An odd `kernel` pads by half of itself."""

    NORM_ACT = ("norm", "act")  # applied one after the other, so they may run as one
    BEFORE_NORM = "conv"  # and that is all its forward does

    def __init__(self, in_channels: int, out_channels: int, kernel: int, stride: int = 1, *, act: nn.Module | None = None) -> None:
        super().__init__()
        self.conv = nn.Conv2d(in_channels, out_channels, kernel, stride, padding=kernel // 2, bias=False)
        self.norm = nn.BatchNorm2d(out_channels)
        self.act = act if act is not None else nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        return cast(Tensor, self.act(self.norm(self.conv(x))))


class RepVggBlock(nn.Module):
    """A 3x3 and a 1x1 branch, summed and then activated (arXiv 2101.03697, without its identity branch). Stored as two."""

    PAIR = ("conv1", "conv2", "act")  # all that its forward does: the third of the sum of the first two

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.conv1 = ConvNorm(channels, channels, 3)
        self.conv2 = ConvNorm(channels, channels, 1)
        self.act = nn.SiLU()

    def forward(self, x: Tensor) -> Tensor:
        return cast(Tensor, self.act(self.conv1(x) + self.conv2(x)))


class CspRepLayer(nn.Module):
    """Two 1x1 paths of `hidden` channels, one through RepVGG blocks, summed; a last 1x1 where `hidden` is not the output's width."""

    def __init__(self, in_channels: int, out_channels: int, hidden: int, num_blocks: int = 3) -> None:
        super().__init__()
        self.conv1 = ConvNorm(in_channels, hidden, 1, act=nn.SiLU())
        self.conv2 = ConvNorm(in_channels, hidden, 1, act=nn.SiLU())
        self.bottlenecks = nn.Sequential(*[RepVggBlock(hidden) for _ in range(num_blocks)])
        self.conv3: nn.Module = ConvNorm(hidden, out_channels, 1, act=nn.SiLU()) if hidden != out_channels else nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        return cast(Tensor, self.conv3(self.bottlenecks(self.conv1(x)) + self.conv2(x)))
