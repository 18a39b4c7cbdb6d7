"""ResNet-vd as PaddlePaddle trained it (arXiv 1812.01187): three 3x3 convolutions as stem, average pooling before a shortcut that halves.

Parameter names are those of the published weights.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import cast

import torch.nn.functional as F
from torch import Tensor, nn

from libreyolo.nn.conv_norm import ConvNorm

# Depth -> blocks of its four stages; from 50 on the blocks are bottlenecks.
DEPTHS: Mapping[int, tuple[int, int, int, int]] = {18: (2, 2, 2, 2), 34: (3, 4, 6, 3), 50: (3, 4, 6, 3), 101: (3, 4, 23, 3)}
WIDTHS = (64, 128, 256, 512)


class PResNet(nn.Module):
    """Images [B, 3, H, W] to the maps of stages 2, 3 and 4, at strides 8, 16 and 32; `out_channels` are their widths."""

    def __init__(self, depth: int) -> None:
        super().__init__()
        stem = nn.Sequential()
        for name, (before, after, stride) in {"conv1_1": (3, 32, 2), "conv1_2": (32, 32, 1), "conv1_3": (32, 64, 1)}.items():
            stem.add_module(name, ConvNorm(before, after, 3, stride, act=nn.ReLU(inplace=True)))
        self.conv1 = stem
        block: type[BasicBlock] | type[Bottleneck] = Bottleneck if depth >= 50 else BasicBlock
        self.res_layers = nn.ModuleList()
        channels = 64
        for stage, (width, count) in enumerate(zip(WIDTHS, DEPTHS[depth], strict=True)):
            self.res_layers.append(ResStage(block, channels, width, count, stride=1 if stage == 0 else 2))
            channels = width * block.expansion
        self.out_channels = [width * block.expansion for width in WIDTHS[1:]]

    @property
    def stem(self) -> nn.Module:
        """The part that a pretrained backbone keeps as it is."""
        return self.conv1

    def forward(self, images: Tensor) -> list[Tensor]:
        x = F.max_pool2d(self.conv1(images), kernel_size=3, stride=2, padding=1)
        maps = []
        for stage in self.res_layers:
            x = stage(x)
            maps.append(x)
        return maps[1:]


class ResStage(nn.Module):
    """Residual blocks; the first one changes width and stride."""

    def __init__(self, block: type[BasicBlock] | type[Bottleneck], in_channels: int, width: int, count: int, *, stride: int) -> None:
        super().__init__()
        self.blocks = nn.ModuleList([block(in_channels, width, stride, projects=True)])
        self.blocks.extend(block(width * block.expansion, width, 1, projects=False) for _ in range(count - 1))

    def forward(self, x: Tensor) -> Tensor:
        for block in self.blocks:
            x = block(x)
        return x


class BasicBlock(nn.Module):
    """Two 3x3 convolutions beside a shortcut, which is a projection where the shape changes."""

    expansion = 1

    def __init__(self, in_channels: int, width: int, stride: int, *, projects: bool) -> None:
        super().__init__()
        self.short: nn.Module | None = shortcut(in_channels, width, stride) if projects else None
        self.branch2a = ConvNorm(in_channels, width, 3, stride, act=nn.ReLU(inplace=True))
        self.branch2b = ConvNorm(width, width, 3)
        self.act = nn.ReLU(inplace=True)

    def forward(self, x: Tensor) -> Tensor:
        side = x if self.short is None else self.short(x)
        return cast(Tensor, self.act(self.branch2b(self.branch2a(x)) + side))


class Bottleneck(nn.Module):
    """1x1, 3x3 (which carries the stride) and 1x1 convolutions beside a shortcut."""

    expansion = 4

    def __init__(self, in_channels: int, width: int, stride: int, *, projects: bool) -> None:
        super().__init__()
        self.branch2a = ConvNorm(in_channels, width, 1, act=nn.ReLU(inplace=True))
        self.branch2b = ConvNorm(width, width, 3, stride, act=nn.ReLU(inplace=True))
        self.branch2c = ConvNorm(width, width * self.expansion, 1)
        self.short: nn.Module | None = shortcut(in_channels, width * self.expansion, stride) if projects else None
        self.act = nn.ReLU(inplace=True)

    def forward(self, x: Tensor) -> Tensor:
        side = x if self.short is None else self.short(x)
        return cast(Tensor, self.act(self.branch2c(self.branch2b(self.branch2a(x))) + side))


def shortcut(in_channels: int, out_channels: int, stride: int) -> nn.Module:
    """Return the projection of a block; one that halves averages first, so no pixel is thrown away (the "d" of ResNet-D)."""
    if stride == 1:
        return ConvNorm(in_channels, out_channels, 1)
    halving = nn.Sequential()
    halving.add_module("pool", nn.AvgPool2d(2, 2, ceil_mode=True))
    halving.add_module("conv", ConvNorm(in_channels, out_channels, 1))
    return halving
