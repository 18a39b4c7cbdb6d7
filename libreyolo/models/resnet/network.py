"""The ResNet classifier (arXiv 1512.03385): a 7x7 stem, four stages of residual blocks, average pooling and one linear layer.

B batch, C classes, H W network input. Parameter names and shapes are those of the published weights, which are also torchvision's and timm's.
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
from libreyolo.ops.state import require_same

STEM = 64
WIDTHS = (64, 128, 256, 512)

# The only module whose tensors depend on the number of classes: a transfer makes exactly this anew.
CLASS_LAYERS: tuple[str, ...] = ("fc",)


@dataclass(frozen=True)
class Scale:
    """What differs between the sizes: the blocks of the four stages, and whether they are bottlenecks."""

    blocks: tuple[int, int, int, int]
    bottleneck: bool


SCALES = {
    "18": Scale((2, 2, 2, 2), bottleneck=False),
    "34": Scale((3, 4, 6, 3), bottleneck=False),
    "50": Scale((3, 4, 6, 3), bottleneck=True),
    "101": Scale((3, 4, 23, 3), bottleneck=True),
}


def build(size: str, nc: int) -> ResNet:
    """Return a freshly initialised network. size: "18", "34", "50" or "101". nc: number of classes, at least 1."""
    check_build("resnet", size, SCALES, nc)
    return ResNet(size, nc)


def infer(state: Mapping[str, Tensor]) -> dict[str, Any]:
    """Return the arguments of `build` that make a network for exactly these tensors: size and nc.

    Reads names and shapes alone. Raises UserError naming the first tensor that is missing, of another shape, or not part of the network.
    """
    if "fc.weight" not in state or state["fc.weight"].dim() != 2:
        raise UserError("These weights are not a whole resnet: fc.weight is missing.")
    nc = int(state["fc.weight"].shape[0])
    bottleneck = "layer1.0.conv3.weight" in state
    blocks = tuple(len({name.split(".")[1] for name in state if name.startswith(f"layer{stage}.")}) for stage in (1, 2, 3, 4))
    sizes = [size for size, scale in SCALES.items() if (scale.blocks, scale.bottleneck) == (blocks, bottleneck)]
    if not sizes:
        raise UserError(f"These weights are not resnet: no size has stages of {blocks} blocks.")
    with torch.device("meta"):
        require_same(state, build(sizes[0], nc).state_dict(), "resnet")
    return {"size": sizes[0], "nc": nc}


class BasicBlock(nn.Module):
    """Two 3x3 convolutions beside a shortcut."""

    expansion = 1
    NORM_ACT = ("bn1", "act1")  # applied one after the other, so they may run as one

    def __init__(self, in_channels: int, width: int, stride: int) -> None:
        super().__init__()
        self.conv1 = conv(in_channels, width, 3, stride)
        self.bn1 = nn.BatchNorm2d(width)
        self.act1 = nn.ReLU(inplace=True)
        self.conv2 = conv(width, width, 3)
        self.bn2 = nn.BatchNorm2d(width)
        self.downsample = shortcut(in_channels, width * self.expansion, stride)

    def forward(self, x: Tensor) -> Tensor:
        side = x if self.downsample is None else self.downsample(x)
        x = self.act1(self.bn1(self.conv1(x)))
        return F.relu(self.bn2(self.conv2(x)) + side, inplace=True)


class Bottleneck(nn.Module):
    """1x1, 3x3 (which carries the stride) and 1x1 convolutions beside a shortcut."""

    expansion = 4
    NORM_ACT = ("bn1", "act1")  # applied one after the other, so they may run as one

    def __init__(self, in_channels: int, width: int, stride: int) -> None:
        super().__init__()
        self.conv1 = conv(in_channels, width, 1)
        self.bn1 = nn.BatchNorm2d(width)
        self.act1 = nn.ReLU(inplace=True)
        self.conv2 = conv(width, width, 3, stride)
        self.bn2 = nn.BatchNorm2d(width)
        self.conv3 = conv(width, width * self.expansion, 1)
        self.bn3 = nn.BatchNorm2d(width * self.expansion)
        self.downsample = shortcut(in_channels, width * self.expansion, stride)

    def forward(self, x: Tensor) -> Tensor:
        side = x if self.downsample is None else self.downsample(x)
        x = self.act1(self.bn1(self.conv1(x)))
        x = F.relu(self.bn2(self.conv2(x)), inplace=True)
        return F.relu(self.bn3(self.conv3(x)) + side, inplace=True)


class ResNet(nn.Module):
    """Images [B, 3, H, W] in the family's input convention to class logits [B, C]; any H and W."""

    def __init__(self, size: str, nc: int) -> None:
        super().__init__()
        scale = SCALES[size]
        block = Bottleneck if scale.bottleneck else BasicBlock
        self.conv1 = conv(3, STEM, 7, stride=2)
        self.bn1 = nn.BatchNorm2d(STEM)
        channels = STEM
        for number, (width, count) in enumerate(zip(WIDTHS, scale.blocks, strict=True), start=1):
            first = block(channels, width, stride=1 if number == 1 else 2)
            channels = width * block.expansion
            self.add_module(f"layer{number}", nn.Sequential(first, *(block(channels, width, stride=1) for _ in range(count - 1))))
        self.fc = nn.Linear(channels, nc)
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                # He et al., arXiv 1502.01852; by the outputs, so that gradients keep their size.
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")

    def forward(self, images: Tensor) -> Tensor:
        x = F.relu(self.bn1(self.conv1(images)), inplace=True)
        x = F.max_pool2d(x, kernel_size=3, stride=2, padding=1)
        for number in (1, 2, 3, 4):
            x = self.get_submodule(f"layer{number}")(x)
        return cast(Tensor, self.fc(x.mean(dim=(2, 3))))


def conv(in_channels: int, out_channels: int, kernel: int, stride: int = 1) -> nn.Conv2d:
    """Return a convolution without bias, padded by half its odd kernel."""
    return nn.Conv2d(in_channels, out_channels, kernel, stride, padding=kernel // 2, bias=False)


def shortcut(in_channels: int, out_channels: int, stride: int) -> nn.Module | None:
    """Return the projection of a block that changes width or stride, None for one that changes neither."""
    if stride == 1 and in_channels == out_channels:
        return None
    return nn.Sequential(conv(in_channels, out_channels, 1, stride), nn.BatchNorm2d(out_channels))
