"""The FOMO network: a MobileNetV2 (arXiv 1801.04381) up to stride 8 and a 1x1 convolution to class logits for each cell.

B batch, C classes, h w cells. Parameter names and shapes are those of the published trainer: they are a file format.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from libreyolo.errors import UserError
from libreyolo.nn.build_checks import check_build
from libreyolo.ops.state import convolution_shape, require_same

STRIDE = 8
EXPANSION = 6  # hidden channels of an inverted residual over its input's
BN_EPS = 1e-3

# The only module whose tensors depend on the number of classes: a transfer makes exactly this anew.
CLASS_LAYERS: tuple[str, ...] = ("head",)


@dataclass(frozen=True)
class Widths:
    """Channels: of the first convolution, and behind the blocks at strides 2, 4 and 8."""

    stem: int
    half: int
    quarter: int
    eighth: int


# MobileNetV2's 32, 16, 24 and 32 times 0.35, 0.5 and 1, to the nearest multiple of 8 that takes away no more than a tenth.
WIDTHS = {"s": Widths(16, 8, 8, 16), "m": Widths(16, 8, 16, 16), "l": Widths(32, 16, 24, 32)}


def build(size: str, nc: int) -> FOMO:
    """Return a freshly initialised network. size: "s", "m" or "l". nc: number of classes, at least 1."""
    check_build("fomo", size, WIDTHS, nc)
    return FOMO(size, nc)


def infer(state: Mapping[str, Tensor]) -> dict[str, Any]:
    """Return the arguments of `build` that make a network for exactly these tensors: size and nc.

    Reads names and shapes alone. Raises UserError naming the first tensor that is missing, of another shape, or not part of the network.
    """
    quarter = convolution_shape(state, "backbone.block_1.conv.2.0.weight", "fomo")[0]
    logits = convolution_shape(state, "head.weight", "fomo")[0]
    sizes = [size for size, widths in WIDTHS.items() if widths.quarter == quarter]
    if not sizes or logits < 2:
        raise UserError(f"These weights are not fomo: no size has {quarter} channels in backbone.block_1 and {logits} in head.")
    with torch.device("meta"):
        require_same(state, build(sizes[0], logits - 1).state_dict(), "fomo")
    return {"size": sizes[0], "nc": logits - 1}


class SamePad(nn.Module):
    """A convolution without bias whose output has ceil(side / stride) cells, padded as TensorFlow does: the odd pixel below and right."""

    def __init__(self, in_channels: int, out_channels: int, kernel: int, stride: int = 1, *, groups: int = 1) -> None:
        super().__init__()
        # For sides that the stride divides, which a network input that is a multiple of 8 has at every level.
        self.before, self.after = (kernel - stride) // 2, kernel - stride - (kernel - stride) // 2
        self.conv = nn.Conv2d(in_channels, out_channels, kernel, stride, groups=groups, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        if self.after:
            x = F.pad(x, (self.before, self.after, self.before, self.after))
        return cast(Tensor, self.conv(x))


def conv_relu(in_channels: int, out_channels: int, kernel: int, stride: int = 1, *, groups: int = 1) -> nn.Sequential:
    """Return a convolution with BatchNorm and ReLU6."""
    return nn.Sequential(
        SamePad(in_channels, out_channels, kernel, stride, groups=groups), nn.BatchNorm2d(out_channels, eps=BN_EPS), nn.ReLU6(inplace=True)
    )


class InvertedResidual(nn.Module):
    """A 1x1 convolution to more channels (not where `expansion` is 1), a depthwise 3x3, and a linear 1x1; added to the input where that fits."""

    def __init__(self, in_channels: int, out_channels: int, stride: int = 1, expansion: int = EXPANSION) -> None:
        super().__init__()
        hidden = expansion * in_channels
        layers: list[nn.Module] = [conv_relu(in_channels, hidden, 1)] if expansion > 1 else []
        layers.append(conv_relu(hidden, hidden, 3, stride, groups=hidden))
        layers.append(nn.Sequential(nn.Conv2d(hidden, out_channels, 1, bias=False), nn.BatchNorm2d(out_channels, eps=BN_EPS)))
        self.conv = nn.Sequential(*layers)
        self.adds = stride == 1 and in_channels == out_channels

    def forward(self, x: Tensor) -> Tensor:
        return x + self.conv(x) if self.adds else cast(Tensor, self.conv(x))


class Backbone(nn.Module):
    """MobileNetV2 up to the expansion of its seventh block: [B, 3, H, W] to [B, 6 * eighth, H/8, W/8]."""

    def __init__(self, widths: Widths) -> None:
        super().__init__()
        self.conv1 = conv_relu(3, widths.stem, 3, 2)
        self.expanded_conv = InvertedResidual(widths.stem, widths.half, expansion=1)
        self.block_1 = InvertedResidual(widths.half, widths.quarter, 2)
        self.block_2 = InvertedResidual(widths.quarter, widths.quarter)
        self.block_3 = InvertedResidual(widths.quarter, widths.eighth, 2)
        self.block_4 = InvertedResidual(widths.eighth, widths.eighth)
        self.block_5 = InvertedResidual(widths.eighth, widths.eighth)
        self.block_6_expand = conv_relu(widths.eighth, EXPANSION * widths.eighth, 1)

    def forward(self, images: Tensor) -> Tensor:
        x = self.block_2(self.block_1(self.expanded_conv(self.conv1(images))))
        return cast(Tensor, self.block_6_expand(self.block_5(self.block_4(self.block_3(x)))))


class FOMO(nn.Module):
    """Images [B, 3, H, W] (RGB in [-1, 1], sides a multiple of 8) to logits [B, 1 + C, H/8, W/8]; channel 0 is the background."""

    def __init__(self, size: str, nc: int) -> None:
        super().__init__()
        self.size = size
        self.nc = nc
        self.backbone = Backbone(WIDTHS[size])
        self.head = nn.Conv2d(EXPANSION * WIDTHS[size].eighth, 1 + nc, 1)

    def forward(self, images: Tensor) -> Tensor:
        return cast(Tensor, self.head(self.backbone(images)))
