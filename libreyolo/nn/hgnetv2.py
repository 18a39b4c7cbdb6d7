"""HGNetv2 (PP-HGNetV2 of PaddleClas) in RT-DETR's naming: blocks that keep the output of every layer and squeeze them together.

Parameter names are those of the published weights.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn


@dataclass(frozen=True)
class Stage:
    """A stage: widths within and out of its blocks, their number, and whether their layers are pairs of a 1x1 and a depthwise 5x5."""

    width: int
    out_channels: int
    num_blocks: int
    light: bool


@dataclass(frozen=True)
class HgWidths:
    """A size: channels within and out of the stem, and four stages."""

    stem: tuple[int, int]
    stages: tuple[Stage, Stage, Stage, Stage]


SIZES: Mapping[str, HgWidths] = {
    "l": HgWidths((32, 48), (Stage(48, 128, 1, False), Stage(96, 512, 1, False), Stage(192, 1024, 3, True), Stage(384, 2048, 1, True))),
    "x": HgWidths((32, 64), (Stage(64, 128, 1, False), Stage(128, 512, 2, False), Stage(256, 1024, 5, True), Stage(512, 2048, 2, True))),
}
NUM_LAYERS = 6  # of a block


class HGNetv2(nn.Module):
    """Images [B, 3, H, W] to the maps of stages 2, 3 and 4, at strides 8, 16 and 32; `out_channels` are their widths."""

    def __init__(self, size: str) -> None:
        super().__init__()
        widths = SIZES[size]
        self.stem = HgStem(*widths.stem)
        self.stages = nn.ModuleList()
        channels = widths.stem[1]
        for index, stage in enumerate(widths.stages):
            self.stages.append(HgStage(channels, stage, downsample=index > 0))
            channels = stage.out_channels
        self.out_channels = [stage.out_channels for stage in widths.stages[1:]]
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight)

    def forward(self, images: Tensor) -> list[Tensor]:
        x = self.stem(images)
        maps = []
        for stage in self.stages:
            x = stage(x)
            maps.append(x)
        return maps[1:]


class HgConv(nn.Module):
    """Convolution without bias, BatchNorm and, if `act`, ReLU. An even `kernel` pads right and below, so the size stays."""

    NORM_ACT = ("bn", "act")  # applied one after the other, so they may run as one
    BEFORE_NORM = "conv"  # and that is all its forward does

    def __init__(self, in_channels: int, out_channels: int, kernel: int, stride: int = 1, *, groups: int = 1, act: bool = True) -> None:
        super().__init__()
        padding = kernel // 2 if kernel % 2 else 0
        conv = nn.Conv2d(in_channels, out_channels, kernel, stride, padding=padding, groups=groups, bias=False)
        self.conv: nn.Module = conv if kernel % 2 else nn.Sequential(nn.ZeroPad2d((0, kernel - 1, 0, kernel - 1)), conv)
        self.bn = nn.BatchNorm2d(out_channels)
        self.act: nn.Module = nn.ReLU(inplace=True) if act else nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        return cast(Tensor, self.act(self.bn(self.conv(x))))


class LightConv(nn.Module):
    """A 1x1 without activation and a depthwise 5x5."""

    def __init__(self, in_channels: int, out_channels: int) -> None:
        super().__init__()
        self.conv1 = HgConv(in_channels, out_channels, 1, act=False)
        self.conv2 = HgConv(out_channels, out_channels, 5, groups=out_channels)

    def forward(self, x: Tensor) -> Tensor:
        return cast(Tensor, self.conv2(self.conv1(x)))


class HgStem(nn.Module):
    """Stride 4: a pooled and a convolved path, side by side."""

    def __init__(self, width: int, out_channels: int) -> None:
        super().__init__()
        self.stem1 = HgConv(3, width, 3, 2)
        self.stem2a = HgConv(width, width // 2, 2)
        self.stem2b = HgConv(width // 2, width, 2)
        self.stem3 = HgConv(width * 2, width, 3, 2)
        self.stem4 = HgConv(width, out_channels, 1)

    def forward(self, images: Tensor) -> Tensor:
        x = self.stem1(images)
        pooled = F.max_pool2d(F.pad(x, (0, 1, 0, 1)), kernel_size=2, stride=1)
        x = torch.cat((pooled, self.stem2b(self.stem2a(x))), dim=1)
        return cast(Tensor, self.stem4(self.stem3(x)))


class HgBlock(nn.Module):
    """Six layers in a row; input and all outputs are squeezed to half the output's width and widened again."""

    def __init__(self, in_channels: int, stage: Stage, *, identity: bool) -> None:
        super().__init__()
        self.identity = identity
        befores = [in_channels] + [stage.width] * (NUM_LAYERS - 1)
        self.layers = nn.ModuleList(LightConv(b, stage.width) if stage.light else HgConv(b, stage.width, 3) for b in befores)
        self.aggregation_squeeze_conv = HgConv(in_channels + NUM_LAYERS * stage.width, stage.out_channels // 2, 1)
        self.aggregation_excitation_conv = HgConv(stage.out_channels // 2, stage.out_channels, 1)

    def forward(self, x: Tensor) -> Tensor:
        kept = [x]
        for layer in self.layers:
            kept.append(layer(kept[-1]))
        out = cast(Tensor, self.aggregation_excitation_conv(self.aggregation_squeeze_conv(torch.cat(kept, dim=1))))
        return out + x if self.identity else out


class HgStage(nn.Module):
    """A depthwise convolution that halves the map (not in the first stage), then blocks; all but the first add their input."""

    def __init__(self, in_channels: int, stage: Stage, *, downsample: bool) -> None:
        super().__init__()
        self.downsample: nn.Module = HgConv(in_channels, in_channels, 3, 2, groups=in_channels, act=False) if downsample else nn.Identity()
        blocks = [HgBlock(in_channels if i == 0 else stage.out_channels, stage, identity=i > 0) for i in range(stage.num_blocks)]
        self.blocks = nn.Sequential(*blocks)

    def forward(self, x: Tensor) -> Tensor:
        return cast(Tensor, self.blocks(self.downsample(x)))
