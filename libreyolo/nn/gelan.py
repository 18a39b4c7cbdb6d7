"""GELAN, the backbone and neck of YOLOv9 (arXiv 2402.13616, section 4.2), in four widths. Maps are [B, C, H, W].

P3, P4 and P5 are maps at 1/8, 1/16 and 1/32 of the input. Module names are those of the published weights: they are a file format.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from libreyolo.nn.conv import ConvBNAct, RepConv
from libreyolo.nn.neighbour_mean import NeighbourMean
from libreyolo.ops.resize import twice


@dataclass(frozen=True)
class GelanWidths:
    """What differs between the sizes, in channels.

    stem: the two stride-2 convolutions. stage1: output of the first stage, at 1/4.
    plain_stage1: the first stage is a plain ELAN of two 3x3 convolutions instead of CSP blocks.
    stage1_split: channels that stage 1 splits in two.
    down: after each of the three reductions of the backbone. stages: output of the stages at 1/8, 1/16, 1/32.
    splits: channels that a stage splits in two, for P3, P4 and P5 in backbone and neck; its CSP blocks are half as wide.
    neck: output of the neck at P3, P4, P5. neck_down: after the two reductions of the neck.
    depth: bottlenecks per CSP block. two_branch_down: reductions are ADown instead of AConv.
    """

    stem: tuple[int, int]
    stage1: int
    stage1_split: int
    plain_stage1: bool
    down: tuple[int, int, int]
    stages: tuple[int, int, int]
    splits: tuple[int, int, int]
    neck: tuple[int, int, int]
    neck_down: tuple[int, int]
    depth: int
    two_branch_down: bool


WIDTHS = {
    "t": GelanWidths(
        stem=(16, 32),
        stage1=32,
        stage1_split=32,
        plain_stage1=True,
        down=(64, 96, 128),
        stages=(64, 96, 128),
        splits=(64, 96, 128),
        neck=(64, 96, 128),
        neck_down=(48, 64),
        depth=3,
        two_branch_down=False,
    ),
    "s": GelanWidths(
        stem=(32, 64),
        stage1=64,
        stage1_split=64,
        plain_stage1=True,
        down=(128, 192, 256),
        stages=(128, 192, 256),
        splits=(128, 192, 256),
        neck=(128, 192, 256),
        neck_down=(96, 128),
        depth=3,
        two_branch_down=False,
    ),
    "m": GelanWidths(
        stem=(32, 64),
        stage1=128,
        stage1_split=128,
        plain_stage1=False,
        down=(240, 360, 480),
        stages=(240, 360, 480),
        splits=(240, 360, 480),
        neck=(240, 360, 480),
        neck_down=(184, 240),
        depth=1,
        two_branch_down=False,
    ),
    "c": GelanWidths(
        stem=(64, 128),
        stage1=256,
        stage1_split=128,
        plain_stage1=False,
        down=(256, 512, 512),
        stages=(512, 512, 512),
        splits=(256, 512, 512),
        neck=(256, 512, 512),
        neck_down=(256, 512),
        depth=1,
        two_branch_down=True,
    ),
}


class AConv(nn.Module):
    """Halve height and width: 2x2 average (stride 1), then a 3x3 convolution with stride 2."""

    def __init__(self, in_channels: int, out_channels: int) -> None:
        super().__init__()
        self.mean = NeighbourMean()
        self.cv = ConvBNAct(in_channels, out_channels, 3, 2)

    def forward(self, x: Tensor) -> Tensor:
        return cast(Tensor, self.cv(self.mean(x)))


class ADown(nn.Module):
    """Halve height and width in two halves of the channels: 3x3 convolution with stride 2, and 3x3 maximum then 1x1 convolution."""

    def __init__(self, in_channels: int, out_channels: int) -> None:
        super().__init__()
        self.mean = NeighbourMean()
        self.cv1 = ConvBNAct(in_channels // 2, out_channels // 2, 3, 2)
        self.cv2 = ConvBNAct(in_channels // 2, out_channels // 2, 1)

    def forward(self, x: Tensor) -> Tensor:
        strided, pooled = cast(Tensor, self.mean(x)).chunk(2, dim=1)
        return torch.cat((self.cv1(strided), self.cv2(F.max_pool2d(pooled, 3, 2, padding=1))), dim=1)


class Elan(nn.Module):
    """Split in two; two 3x3 convolutions follow the second half, one after the other; all four maps are joined."""

    def __init__(self, in_channels: int, out_channels: int, split: int) -> None:
        super().__init__()
        self.cv1 = ConvBNAct(in_channels, split)
        self.cv2 = ConvBNAct(split // 2, split // 2, 3)
        self.cv3 = ConvBNAct(split // 2, split // 2, 3)
        self.cv4 = ConvBNAct(split * 2, out_channels)

    def forward(self, x: Tensor) -> Tensor:
        first, second = self.cv1(x).chunk(2, dim=1)
        third = self.cv2(second)
        return cast(Tensor, self.cv4(torch.cat((first, second, third, self.cv3(third)), dim=1)))


class RepBottleneck(nn.Module):
    """A reparametrisable and a 3x3 convolution around which the input is added."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.cv1 = RepConv(channels, channels)
        self.cv2 = ConvBNAct(channels, channels, 3)

    def forward(self, x: Tensor) -> Tensor:
        return cast(Tensor, x + self.cv2(self.cv1(x)))


class RepCSP(nn.Module):
    """A cross-stage partial block: half the width runs through `depth` bottlenecks, half goes round them."""

    def __init__(self, in_channels: int, out_channels: int, depth: int) -> None:
        super().__init__()
        hidden = out_channels // 2
        self.cv1 = ConvBNAct(in_channels, hidden)
        self.cv2 = ConvBNAct(in_channels, hidden)
        self.cv3 = ConvBNAct(2 * hidden, out_channels)
        self.m = nn.Sequential(*(RepBottleneck(hidden) for _ in range(depth)))

    def forward(self, x: Tensor) -> Tensor:
        return cast(Tensor, self.cv3(torch.cat((self.m(self.cv1(x)), self.cv2(x)), dim=1)))


class RepCspElan(nn.Module):
    """ELAN whose two steps are a CSP block and a 3x3 convolution each: the GELAN block of the paper's figure 4."""

    def __init__(self, in_channels: int, out_channels: int, split: int, depth: int) -> None:
        super().__init__()
        half = split // 2
        self.cv1 = ConvBNAct(in_channels, split)
        self.cv2 = nn.Sequential(RepCSP(half, half, depth), ConvBNAct(half, half, 3))
        self.cv3 = nn.Sequential(RepCSP(half, half, depth), ConvBNAct(half, half, 3))
        self.cv4 = ConvBNAct(split + 2 * half, out_channels)

    def forward(self, x: Tensor) -> Tensor:
        first, second = self.cv1(x).chunk(2, dim=1)
        third = self.cv2(second)
        return cast(Tensor, self.cv4(torch.cat((first, second, third, self.cv3(third)), dim=1)))


class SppElan(nn.Module):
    """Three 5x5 maxima in a row see 5, 9 and 13 cells; all are joined with the map they started from."""

    def __init__(self, in_channels: int, out_channels: int) -> None:
        super().__init__()
        hidden = out_channels // 2
        self.cv1 = ConvBNAct(in_channels, hidden)
        self.cv5 = ConvBNAct(4 * hidden, out_channels)

    def forward(self, x: Tensor) -> Tensor:
        maps = [self.cv1(x)]
        for _ in range(3):
            maps.append(F.max_pool2d(maps[-1], 5, 1, padding=2))
        return cast(Tensor, self.cv5(torch.cat(maps, dim=1)))


class GelanBackbone(nn.Module):
    """Images [B, 3, H, W] to (P3, P4, P5, P5 after the pyramid pooling)."""

    def __init__(self, widths: GelanWidths) -> None:
        super().__init__()
        w = widths
        down = ADown if w.two_branch_down else AConv
        self.conv0 = ConvBNAct(3, w.stem[0], 3, 2)
        self.conv1 = ConvBNAct(w.stem[0], w.stem[1], 3, 2)
        self.elan1: nn.Module
        if w.plain_stage1:
            self.elan1 = Elan(w.stem[1], w.stage1, w.stage1_split)
        else:
            self.elan1 = RepCspElan(w.stem[1], w.stage1, w.stage1_split, w.depth)
        self.down2 = down(w.stage1, w.down[0])
        self.elan2 = RepCspElan(w.down[0], w.stages[0], w.splits[0], w.depth)
        self.down3 = down(w.stages[0], w.down[1])
        self.elan3 = RepCspElan(w.down[1], w.stages[1], w.splits[1], w.depth)
        self.down4 = down(w.stages[1], w.down[2])
        self.elan4 = RepCspElan(w.down[2], w.stages[2], w.splits[2], w.depth)
        self.spp = SppElan(w.stages[2], w.neck[2])

    def forward(self, images: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        p2 = self.elan1(self.conv1(self.conv0(images)))
        p3 = self.elan2(self.down2(p2))
        p4 = self.elan3(self.down3(p3))
        p5 = self.elan4(self.down4(p4))
        return p3, p4, p5, self.spp(p5)


class GelanNeck(nn.Module):
    """Top-down then bottom-up (PAN, arXiv 1803.01534): (P3, P4, pooled P5) to features at 1/8, 1/16 and 1/32."""

    def __init__(self, widths: GelanWidths) -> None:
        super().__init__()
        w = widths
        down = ADown if w.two_branch_down else AConv
        self.elan_up1 = RepCspElan(w.neck[2] + w.stages[1], w.neck[1], w.splits[1], w.depth)
        self.elan_up2 = RepCspElan(w.neck[1] + w.stages[0], w.neck[0], w.splits[0], w.depth)
        self.down1 = down(w.neck[0], w.neck_down[0])
        self.elan_down1 = RepCspElan(w.neck_down[0] + w.neck[1], w.neck[1], w.splits[1], w.depth)
        self.down2 = down(w.neck[1], w.neck_down[1])
        self.elan_down2 = RepCspElan(w.neck_down[1] + w.neck[2], w.neck[2], w.splits[2], w.depth)

    def forward(self, p3: Tensor, p4: Tensor, p5: Tensor) -> list[Tensor]:
        up4 = self.elan_up1(torch.cat((twice(p5), p4), dim=1))
        x8 = self.elan_up2(torch.cat((twice(up4), p3), dim=1))
        x16 = self.elan_down1(torch.cat((self.down1(x8), up4), dim=1))
        x32 = self.elan_down2(torch.cat((self.down2(x16), p5), dim=1))
        return [x8, x16, x32]
