"""Convolution blocks that several families are built from. Maps are [B, C, H, W]."""

from __future__ import annotations

from typing import cast

from torch import Tensor, nn

# The YOLO lineage's BatchNorm (PyTorch's own values are 1e-5 and 0.1): statistics move slowly, over about 1 / 0.03 = 33 steps.
BN_EPS = 1e-3
BN_MOMENTUM = 0.03


class ConvBNAct(nn.Module):
    """Convolution without bias, BatchNorm, SiLU. An odd `kernel` pads by half of itself, so stride 1 keeps the size."""

    NORM_ACT = ("bn", "act")  # applied one after the other, so they may run as one
    BEFORE_NORM = "conv"  # and that is all its forward does

    def __init__(self, in_channels: int, out_channels: int, kernel: int = 1, stride: int = 1, *, groups: int = 1, act: bool = True) -> None:
        super().__init__()
        self.conv = nn.Conv2d(in_channels, out_channels, kernel, stride, padding=kernel // 2, groups=groups, bias=False)
        self.bn = nn.BatchNorm2d(out_channels, eps=BN_EPS, momentum=BN_MOMENTUM)
        # Not in place: SiLU's backward needs its input, so in place torch would copy every activation first.
        self.act: nn.Module = nn.SiLU() if act else nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        normed = self.bn(self.conv(x))
        # A fused norm leaves nothing to call, which costs three Python calls in each of hundreds of layers.
        return cast(Tensor, normed if isinstance(self.act, nn.Identity) else self.act(normed))


class RepConv(nn.Module):
    """A 3x3 and a 1x1 branch, summed and then activated (RepVGG, arXiv 2101.03697, without its identity branch). Stored as two."""

    PAIR = ("conv1", "conv2", "act")  # all that its forward does: the third of the sum of the first two

    def __init__(self, in_channels: int, out_channels: int) -> None:
        super().__init__()
        self.conv1 = ConvBNAct(in_channels, out_channels, 3, act=False)
        self.conv2 = ConvBNAct(in_channels, out_channels, 1, act=False)
        self.act = nn.SiLU()

    def forward(self, x: Tensor) -> Tensor:
        return cast(Tensor, self.act(self.conv1(x) + self.conv2(x)))
