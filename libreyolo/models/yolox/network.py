"""The YOLOX detector (arXiv 2107.08430): CSPDarknet behind a focus stem, a path-aggregation pyramid and a decoupled head per stride.

B batch, C classes, h w cells of a level. A raw map is [B, 5 + C, h, w]: shift of the centre and logarithm of width and height (in strides),
the objectness logit, then C class logits. Parameter names and shapes are those of the published weights: they are a file format.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from libreyolo.errors import UserError
from libreyolo.nn.build_checks import check_build
from libreyolo.nn.conv import ConvBNAct
from libreyolo.ops.resize import twice
from libreyolo.ops.state import convolution_shape, require_same

STRIDES = (8, 16, 32)
PRIOR = 0.01  # probability that a fresh head gives to any object and to any class (RetinaNet's, arXiv 1708.02002, section 3.3)

# The only modules whose tensors depend on the number of classes: a transfer makes exactly these anew.
CLASS_LAYERS: tuple[str, ...] = tuple(f"head.cls_preds.{level}" for level in range(len(STRIDES)))


@dataclass(frozen=True)
class Scale:
    """What differs between the sizes.

    stem: channels of the stem; the stages at 1/4, 1/8, 1/16 and 1/32 have 2, 4, 8 and 16 times as many, the head 4 times.
    depth: bottlenecks of a short stage; the stages at 1/8 and 1/16 have three times as many.
    depthwise: 3x3 convolutions are depthwise with a 1x1 convolution behind, but for the stem.
    """

    stem: int
    depth: int
    depthwise: bool = False


SCALES = {
    "n": Scale(stem=16, depth=1, depthwise=True),
    "t": Scale(stem=24, depth=1),
    "s": Scale(stem=32, depth=1),
    "m": Scale(stem=48, depth=2),
    "l": Scale(stem=64, depth=3),
    "x": Scale(stem=80, depth=4),
}


def build(size: str, nc: int) -> YOLOX:
    """Return a freshly initialised network. size: "n", "t", "s", "m", "l" or "x". nc: number of classes, at least 1."""
    check_build("yolox", size, SCALES, nc)
    return YOLOX(size, nc)


def infer(state: Mapping[str, Tensor]) -> dict[str, Any]:
    """Return the arguments of `build` that make a network for exactly these tensors: size and nc.

    Reads names and shapes alone. Raises UserError naming the first tensor that is missing, of another shape, or not part of the network.
    """
    stem = convolution_shape(state, "backbone.backbone.stem.conv.conv.weight", "yolox")[0]
    nc = convolution_shape(state, "head.cls_preds.0.weight", "yolox")[0]
    sizes = [size for size, scale in SCALES.items() if scale.stem == stem]
    if not sizes:
        raise UserError(f"These weights are not yolox: no size has {stem} channels in backbone.backbone.stem.")
    with torch.device("meta"):
        require_same(state, build(sizes[0], nc).state_dict(), "yolox")
    return {"size": sizes[0], "nc": nc}


class DepthwiseConv(nn.Module):
    """A depthwise convolution and a 1x1 convolution, each with BatchNorm and SiLU."""

    def __init__(self, in_channels: int, out_channels: int, kernel: int, stride: int = 1) -> None:
        super().__init__()
        self.dconv = ConvBNAct(in_channels, in_channels, kernel, stride, groups=in_channels)
        self.pconv = ConvBNAct(in_channels, out_channels)

    def forward(self, x: Tensor) -> Tensor:
        return cast(Tensor, self.pconv(self.dconv(x)))


def conv3(in_channels: int, out_channels: int, stride: int = 1, *, depthwise: bool) -> nn.Module:
    """Return a 3x3 convolution with BatchNorm and SiLU, as one or as two."""
    if depthwise:
        return DepthwiseConv(in_channels, out_channels, 3, stride)
    return ConvBNAct(in_channels, out_channels, 3, stride)


class Focus(nn.Module):
    """Halve height and width without losing a pixel: the four of each 2x2 square become channels (column by column), then a 3x3 convolution."""

    def __init__(self, out_channels: int) -> None:
        super().__init__()
        self.conv = ConvBNAct(12, out_channels, 3)

    def forward(self, x: Tensor) -> Tensor:
        squares = [x[..., row::2, column::2] for column in (0, 1) for row in (0, 1)]
        return cast(Tensor, self.conv(torch.cat(squares, dim=1)))


class Bottleneck(nn.Module):
    """1x1, then 3x3 convolution of the same width; `shortcut` adds the input."""

    def __init__(self, channels: int, *, shortcut: bool, depthwise: bool) -> None:
        super().__init__()
        self.conv1 = ConvBNAct(channels, channels)
        self.conv2 = conv3(channels, channels, depthwise=depthwise)
        self.shortcut = shortcut

    def forward(self, x: Tensor) -> Tensor:
        y = cast(Tensor, self.conv2(self.conv1(x)))
        return x + y if self.shortcut else y


class CSPStage(nn.Module):
    """Two halves of the width, one of them through `depth` bottlenecks, joined and mixed (arXiv 1911.11929)."""

    def __init__(self, in_channels: int, out_channels: int, depth: int, *, shortcut: bool, depthwise: bool) -> None:
        super().__init__()
        half = out_channels // 2
        self.conv1 = ConvBNAct(in_channels, half)
        self.conv2 = ConvBNAct(in_channels, half)
        self.conv3 = ConvBNAct(2 * half, out_channels)
        self.m = nn.Sequential(*(Bottleneck(half, shortcut=shortcut, depthwise=depthwise) for _ in range(depth)))

    def forward(self, x: Tensor) -> Tensor:
        return cast(Tensor, self.conv3(torch.cat((self.m(self.conv1(x)), self.conv2(x)), dim=1)))


class PyramidPool(nn.Module):
    """The map beside its maxima over 5x5, 9x9 and 13x13 (spatial pyramid pooling, arXiv 1406.4729), mixed."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        half = channels // 2
        self.conv1 = ConvBNAct(channels, half)
        self.conv2 = ConvBNAct(4 * half, channels)

    def forward(self, x: Tensor) -> Tensor:
        x = self.conv1(x)
        pooled = [F.max_pool2d(x, side, 1, padding=side // 2) for side in (5, 9, 13)]
        return cast(Tensor, self.conv2(torch.cat([x, *pooled], dim=1)))


class CSPDarknet(nn.Module):
    """Images to maps at 1/8, 1/16 and 1/32, of 4, 8 and 16 times the stem's channels."""

    def __init__(self, scale: Scale) -> None:
        super().__init__()
        self.stem = Focus(scale.stem)
        self.dark2 = self._stage(scale, 1, scale.depth)
        self.dark3 = self._stage(scale, 2, 3 * scale.depth)
        self.dark4 = self._stage(scale, 4, 3 * scale.depth)
        self.dark5 = self._stage(scale, 8, scale.depth, pool=True)

    @staticmethod
    def _stage(scale: Scale, times: int, depth: int, *, pool: bool = False) -> nn.Sequential:
        """Return a reduction and a stage; the deepest one pools between the two and has no shortcuts."""
        narrow, wide = times * scale.stem, 2 * times * scale.stem
        stage = CSPStage(wide, wide, depth, shortcut=not pool, depthwise=scale.depthwise)
        return nn.Sequential(conv3(narrow, wide, 2, depthwise=scale.depthwise), *([PyramidPool(wide)] if pool else []), stage)

    def forward(self, images: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        p3 = self.dark3(self.dark2(self.stem(images)))
        p4 = self.dark4(p3)
        return p3, p4, self.dark5(p4)


class Pyramid(nn.Module):
    """The backbone, and a path down to 1/8 and up again to 1/32 (PANet, arXiv 1803.01534), of the backbone's widths."""

    def __init__(self, scale: Scale) -> None:
        super().__init__()
        c3, c4, c5 = (times * scale.stem for times in (4, 8, 16))

        def mix(in_channels: int, out_channels: int) -> CSPStage:
            return CSPStage(in_channels, out_channels, scale.depth, shortcut=False, depthwise=scale.depthwise)

        self.backbone = CSPDarknet(scale)
        self.lateral_conv0 = ConvBNAct(c5, c4)
        self.C3_p4 = mix(2 * c4, c4)
        self.reduce_conv1 = ConvBNAct(c4, c3)
        self.C3_p3 = mix(2 * c3, c3)
        self.bu_conv2 = conv3(c3, c3, 2, depthwise=scale.depthwise)
        self.C3_n3 = mix(2 * c3, c4)
        self.bu_conv1 = conv3(c4, c4, 2, depthwise=scale.depthwise)
        self.C3_n4 = mix(2 * c4, c5)

    def forward(self, images: Tensor) -> list[Tensor]:
        p3, p4, p5 = self.backbone(images)
        down5 = self.lateral_conv0(p5)
        down4 = self.reduce_conv1(self.C3_p4(torch.cat((twice(down5), p4), dim=1)))
        up3 = self.C3_p3(torch.cat((twice(down4), p3), dim=1))
        up4 = self.C3_n3(torch.cat((self.bu_conv2(up3), down4), dim=1))
        up5 = self.C3_n4(torch.cat((self.bu_conv1(up4), down5), dim=1))
        return [up3, up4, up5]


class Head(nn.Module):
    """Per level a stem, a class tower and a tower for box and objectness (section 2.1). Objectness and classes start at the prior."""

    def __init__(self, scale: Scale, nc: int) -> None:
        super().__init__()
        width = 4 * scale.stem

        def towers() -> nn.ModuleList:
            return nn.ModuleList(nn.Sequential(*(conv3(width, width, depthwise=scale.depthwise) for _ in range(2))) for _ in STRIDES)

        def last(out_channels: int) -> nn.ModuleList:
            return nn.ModuleList(nn.Conv2d(width, out_channels, 1) for _ in STRIDES)

        self.cls_convs, self.reg_convs = towers(), towers()
        self.cls_preds, self.reg_preds, self.obj_preds = last(nc), last(4), last(1)
        self.stems = nn.ModuleList(ConvBNAct(times * scale.stem, width) for times in (4, 8, 16))
        for layer in (*self.cls_preds, *self.obj_preds):
            nn.init.constant_(cast(nn.Conv2d, layer).bias, -math.log((1 - PRIOR) / PRIOR))  # type: ignore[arg-type]

    def forward(self, features: list[Tensor]) -> list[Tensor]:
        maps = []
        for level, feature in enumerate(features):
            x = self.stems[level](feature)
            classes = self.cls_preds[level](self.cls_convs[level](x))
            boxes = self.reg_convs[level](x)
            maps.append(torch.cat((exactly(self.reg_preds[level], boxes), self.obj_preds[level](boxes), classes), dim=1))
        return maps


def exactly(layer: nn.Module, x: Tensor) -> Tensor:
    """Return the layer's output in the precision of its weights, whatever autocast says.

    A size is predicted as its logarithm: between 2 and 4, bfloat16 knows steps of 1/64, or 1.6 % of the side of a box.
    """
    with torch.autocast(x.device.type, enabled=False):
        return cast(Tensor, layer(x.to(cast(Tensor, layer.weight).dtype)))


class YOLOX(nn.Module):
    """Images [B, 3, H, W] (BGR in [0, 255], sides a multiple of 32) to raw maps for strides 8, 16 and 32."""

    def __init__(self, size: str, nc: int) -> None:
        super().__init__()
        self.size = size
        self.nc = nc
        self.backbone = Pyramid(SCALES[size])
        self.head = Head(SCALES[size], nc)

    def forward(self, images: Tensor) -> list[Tensor]:
        return cast(list[Tensor], self.head(self.backbone(images)))
