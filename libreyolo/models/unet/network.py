"""U-Net (arXiv 1505.04597) with 3x3 convolutions that keep the size, batch normalisation, bilinear upsampling, and two heads.

B batch, C classes, H W sides of the input, multiples of 16. Level i of the encoder works at 1 / 2^i of the input with 2^i times the width.
Parameter names and shapes are those of the published weights: they are a file format.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

import torch
from torch import Tensor, nn

from libreyolo.errors import UserError
from libreyolo.nn.build_checks import check_build
from libreyolo.ops.resize import twice
from libreyolo.ops.state import convolution_shape, require_same

WIDTHS = {"s": 64}  # channels of the first level
NUM_LEVELS = 5
HEAD_WIDTH = 64  # of both heads, whatever the width of the network
DROPOUT = 0.1

# The only modules whose tensors depend on the number of classes: a transfer makes exactly these anew.
CLASS_LAYERS: tuple[str, ...] = ("decode_head.conv_seg", "auxiliary_head.conv_seg")

_STEM = "backbone.encoder.0.0.convs.0.conv.weight"
_CLASSES = "decode_head.conv_seg.weight"


def build(size: str, nc: int, *, width: int | None = None) -> UNet:
    """Return a freshly initialised network. size: "s". nc: number of classes, at least 1. width: of the first level; None: the size's own."""
    check_build("unet", size, WIDTHS, nc)
    return UNet(nc, WIDTHS[size] if width is None else width)


def infer(state: Mapping[str, Tensor]) -> dict[str, Any]:
    """Return the arguments of `build` that make a network for exactly these tensors: size and nc.

    Reads names and shapes alone. Raises UserError naming the first tensor that is missing, of another shape, or not part of the network.
    """
    stem, nc = (convolution_shape(state, name, "unet")[0] for name in (_STEM, _CLASSES))
    size = next((code for code, width in WIDTHS.items() if width == stem), None)
    if size is None:
        raise UserError(f"These weights are not unet: {_STEM} has {stem} channels, which is no size of it.")
    with torch.device("meta"):
        expected = build(size, nc).state_dict()
    require_same(state, expected, f"unet-{size}")
    return {"size": size, "nc": nc}


class ConvBNReLU(nn.Module):
    """Convolution without bias, BatchNorm, ReLU. An odd `kernel` pads by half of itself."""

    NORM_ACT = ("bn", "act")  # applied one after the other, so they may run as one
    BEFORE_NORM = "conv"  # and that is all its forward does

    def __init__(self, in_channels: int, out_channels: int, kernel: int = 3) -> None:
        super().__init__()
        self.conv = nn.Conv2d(in_channels, out_channels, kernel, padding=kernel // 2, bias=False)
        self.bn = nn.BatchNorm2d(out_channels)
        self.act = nn.ReLU(inplace=True)
        # He et al.'s start (arXiv 1502.01852), over the fan out.
        nn.init.kaiming_normal_(self.conv.weight, mode="fan_out", nonlinearity="relu")

    def forward(self, x: Tensor) -> Tensor:
        return cast(Tensor, self.act(self.bn(self.conv(x))))


class TwoConvs(nn.Module):
    """Two 3x3 convolutions: the paper's block."""

    def __init__(self, in_channels: int, out_channels: int) -> None:
        super().__init__()
        self.convs = nn.Sequential(ConvBNReLU(in_channels, out_channels), ConvBNReLU(out_channels, out_channels))

    def forward(self, x: Tensor) -> Tensor:
        return cast(Tensor, self.convs(x))


class Up(nn.Module):
    """Twice the size and half the channels: the paper's up-convolution, as a bilinear step and a 1x1 convolution.

    Both are linear, one over places and one over channels, so they may trade places: the convolution comes first, on a quarter of the places, and
    half the channels are enlarged.
    """

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.interp_upsample = nn.Sequential(
            nn.Upsample(scale_factor=2, mode="bilinear", align_corners=False), ConvBNReLU(channels, channels // 2, 1)
        )

    def forward(self, x: Tensor) -> Tensor:
        layer = cast(ConvBNReLU, self.interp_upsample[1])
        return cast(Tensor, layer.act(layer.bn(twice(layer.conv(x), "bilinear"))))


class DecoderLevel(nn.Module):
    """Joins the encoder's map of a level with what comes from below; both have `channels` then."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.upsample = Up(2 * channels)
        self.conv_block = TwoConvs(2 * channels, channels)

    def forward(self, skip: Tensor, below: Tensor) -> Tensor:
        return cast(Tensor, self.conv_block(torch.cat((skip, self.upsample(below)), dim=1)))


class Backbone(nn.Module):
    """Pictures [B, 3, H, W] to the decoder's maps, the finest first: level i has [B, width * 2^i, H / 2^i, W / 2^i]."""

    def __init__(self, width: int) -> None:
        super().__init__()
        channels = [width * 2**level for level in range(NUM_LEVELS)]
        self.encoder = nn.ModuleList(
            nn.Sequential(nn.MaxPool2d(2), TwoConvs(channels[level - 1], channels[level])) if level else nn.Sequential(TwoConvs(3, width))
            for level in range(NUM_LEVELS)
        )
        self.decoder = nn.ModuleList(DecoderLevel(c) for c in channels[:-1])

    def forward(self, images: Tensor) -> list[Tensor]:
        skips = [images]
        for stage in self.encoder:
            skips.append(stage(skips[-1]))
        maps = [skips.pop()]
        for level, skip in zip(reversed(self.decoder), reversed(skips[1:]), strict=True):
            maps.append(level(skip, maps[-1]))
        return maps[::-1]


class Head(nn.Module):
    """One 3x3 convolution, dropout of whole channels, and a 1x1 convolution to class logits."""

    def __init__(self, in_channels: int, nc: int) -> None:
        super().__init__()
        self.convs = nn.Sequential(ConvBNReLU(in_channels, HEAD_WIDTH))
        self.dropout = nn.Dropout2d(DROPOUT)
        self.conv_seg = nn.Conv2d(HEAD_WIDTH, nc, 1)
        nn.init.normal_(self.conv_seg.weight, std=0.01)
        nn.init.zeros_(cast(Tensor, self.conv_seg.bias))

    def forward(self, x: Tensor) -> Tensor:
        return cast(Tensor, self.conv_seg(self.dropout(self.convs(x))))


class UNet(nn.Module):
    """Pictures [B, 3, H, W] to class logits [B, C, H, W]; in training also those of the auxiliary head, [B, C, H / 2, W / 2]."""

    def __init__(self, nc: int, width: int) -> None:
        super().__init__()
        self.nc = nc
        self.backbone = Backbone(width)
        self.decode_head = Head(width, nc)
        self.auxiliary_head = Head(2 * width, nc)

    def forward(self, images: Tensor) -> Tensor | tuple[Tensor, Tensor]:
        finest, coarser = self.backbone(images)[:2]
        logits: Tensor = self.decode_head(finest)
        return (logits, self.auxiliary_head(coarser)) if self.training else logits
