"""NAFNet (arXiv 2204.04676): a U-net of blocks without activation functions. Parameter names and shapes are those of the published weights.

B batch, C channels, h w the pixels of a level; level 0 is the picture's own resolution, level d has 1/2^d of it and 2^d times the width.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from libreyolo.errors import UserError
from libreyolo.nn.build_checks import check_build
from libreyolo.nn.local_mean import LocalMean
from libreyolo.ops.state import require_same

# In evaluation, channel attention looks at this many pixels of the picture each way, about what it saw in training: 1.5 times a crop of 256
# (TLC, arXiv 2112.04491).
WINDOW = 384
WIDTHS = {"s": 32, "l": 64}
CLASS_LAYERS: tuple[str, ...] = ()  # no layer depends on a number of classes


@dataclass(frozen=True)
class Layout:
    """How many blocks each level has on the way down, at the bottom, and on the way up (deepest first)."""

    down: tuple[int, ...]
    middle: int
    up: tuple[int, ...]


# The published deblurring networks; those for denoising ("-sidd" files) are laid out otherwise, and their tensors say how.
STANDARD = Layout((1, 1, 1, 28), 1, (1, 1, 1, 1))


def build(size: str, nc: int = 0, layout: Layout = STANDARD) -> NAFNet:
    """Return a freshly initialised network. size: "s" or "l". nc: not used, pictures that are restored have no classes."""
    check_build("nafnet", size, WIDTHS)
    return NAFNet(WIDTHS[size], layout)


def infer(state: Mapping[str, Tensor]) -> dict[str, Any]:
    """Return the arguments of `build` that make a network for exactly these tensors: size, nc (0), and the layout where it is not the standard.

    Reads names and shapes alone. Raises UserError naming the first tensor that is missing, of another shape, or not part of the network.
    """
    width = state["intro.weight"].shape[0] if "intro.weight" in state else 0
    sizes = [size for size, known in WIDTHS.items() if known == width]
    if not sizes:
        raise UserError(f"These weights are not nafnet: no size has {width} channels in intro.")
    layout = _layout_of(state)
    with torch.device("meta"):
        require_same(state, build(sizes[0], 0, layout).state_dict(), "nafnet")
    return {"size": sizes[0], "nc": 0} | ({} if layout == STANDARD else {"layout": layout})


def _layout_of(state: Mapping[str, Tensor]) -> Layout:
    places = [tuple(name.split(".")[:3]) for name in state]

    def levels(stage: str) -> tuple[int, ...]:
        found: dict[int, int] = {}
        for parts in places:
            if len(parts) == 3 and parts[0] == stage and parts[1].isdigit() and parts[2].isdigit():
                found[int(parts[1])] = max(found.get(int(parts[1]), 0), int(parts[2]) + 1)
        return tuple(found.get(level, 0) for level in range(max(found, default=-1) + 1))

    middle = {int(parts[1]) for parts in places if parts[0] == "middle_blks" and len(parts) > 1 and parts[1].isdigit()}
    layout = Layout(levels("encoders"), len(middle), levels("decoders"))
    if not layout.down or len(layout.down) != len(layout.up):
        raise UserError(f"These weights are not nafnet: {len(layout.down)} levels lead down and {len(layout.up)} up.")
    return layout


class ChannelNorm(nn.LayerNorm):
    """LayerNorm over the channels of each pixel, for maps [B, C, h, w]."""

    def __init__(self, channels: int) -> None:
        super().__init__(channels, eps=1e-6)

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)


def gate(x: Tensor) -> Tensor:
    """Return the product of the two halves of the channels: the block's only non-linearity beside its attention (eq. 4 of the paper)."""
    first, second = x.chunk(2, dim=1)
    return first * second


class Block(nn.Module):
    """Depthwise convolution with gate and channel attention, then a gated 1x1 pair; each is added with a learnt weight that starts at 0.

    window: pixels of this level that the attention averages over, each way, in evaluation.
    """

    def __init__(self, channels: int, window: int) -> None:
        super().__init__()
        wide = 2 * channels
        self.beta = nn.Parameter(torch.zeros(1, channels, 1, 1))
        self.gamma = nn.Parameter(torch.zeros(1, channels, 1, 1))
        self.conv1 = nn.Conv2d(channels, wide, 1)
        self.conv2 = nn.Conv2d(wide, wide, 3, padding=1, groups=wide)
        self.conv3 = nn.Conv2d(channels, channels, 1)
        self.sca = nn.Sequential(LocalMean(window), nn.Conv2d(channels, channels, 1))
        self.conv4 = nn.Conv2d(channels, wide, 1)
        self.conv5 = nn.Conv2d(channels, channels, 1)
        self.norm1, self.norm2 = ChannelNorm(channels), ChannelNorm(channels)

    def forward(self, x: Tensor) -> Tensor:
        y = gate(self.conv2(self.conv1(self.norm1(x))))
        x = x + self.conv3(y * self.sca(y)) * self.beta
        return cast(Tensor, x + self.conv5(gate(self.conv4(self.norm2(x)))) * self.gamma)


class NAFNet(nn.Module):
    """Pictures [B, 3, H, W] (RGB in [0, 1]) to restored ones of the same size, not clipped: what is learnt is the difference.

    Sides that are no multiple of 2^levels are padded with zeros at the right and the bottom, and cut again.
    """

    def __init__(self, width: int, layout: Layout) -> None:
        super().__init__()
        levels = len(layout.down)

        def blocks(level: int, count: int) -> nn.Sequential:
            return nn.Sequential(*(Block(width << level, WINDOW >> level) for _ in range(count)))

        self.intro = nn.Conv2d(3, width, 3, padding=1)
        self.ending = nn.Conv2d(width, 3, 3, padding=1)
        self.encoders = nn.ModuleList(blocks(level, count) for level, count in enumerate(layout.down))
        self.decoders = nn.ModuleList(blocks(levels - 1 - place, count) for place, count in enumerate(layout.up))
        self.middle_blks = blocks(levels, layout.middle)
        # Twice the channels at the next level: the shuffle spends four of them on four times the pixels.
        self.ups = nn.ModuleList(
            nn.Sequential(nn.Conv2d(width << level, width << (level + 1), 1, bias=False), nn.PixelShuffle(2)) for level in range(levels, 0, -1)
        )
        self.downs = nn.ModuleList(nn.Conv2d(width << level, width << (level + 1), 2, 2) for level in range(levels))
        self.stride = 1 << levels

    def forward(self, images: Tensor) -> Tensor:
        height, width = images.shape[-2:]
        padded = F.pad(images, (0, -width % self.stride, 0, -height % self.stride))
        x = self.intro(padded)
        skips: list[Tensor] = []
        for encoder, down in zip(self.encoders, self.downs, strict=True):
            x = encoder(x)
            skips.append(x)
            x = down(x)
        x = self._up(self.middle_blks(x), skips)
        # The sum in the picture's own precision: under autocast only the difference is rounded to half precision.
        restored = padded + self.ending(x)
        return restored[..., :height, :width]

    def _up(self, x: Tensor, skips: Sequence[Tensor]) -> Tensor:
        for decoder, up, skip in zip(self.decoders, self.ups, reversed(skips), strict=True):
            x = decoder(up(x) + skip)
        return x
