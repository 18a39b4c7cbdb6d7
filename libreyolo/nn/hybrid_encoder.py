"""RT-DETR's hybrid encoder (arXiv 2304.08069, section 4.2): attention within the coarsest level, convolutions across levels."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from libreyolo.nn.conv_norm import ConvNorm, CspRepLayer
from libreyolo.nn.transformer import Encoder, EncoderLayer
from libreyolo.ops.resize import twice


class HybridEncoder(nn.Module):
    """Maps of three levels, finest first, to maps of `width` channels at the same strides.

    hidden: width of the attention layer's network. expansion: width of the fusing blocks over `width`.
    """

    def __init__(self, in_channels: Sequence[int], width: int = 256, hidden: int = 1024, expansion: float = 1.0) -> None:
        super().__init__()
        inner = int(width * expansion)
        steps = range(len(in_channels) - 1)
        self.input_proj = nn.ModuleList(nn.Sequential(nn.Conv2d(c, width, 1, bias=False), nn.BatchNorm2d(width)) for c in in_channels)
        self.encoder = nn.ModuleList([Encoder([EncoderLayer(width, hidden)])])
        self.lateral_convs = nn.ModuleList(ConvNorm(width, width, 1, act=nn.SiLU()) for _ in steps)
        self.fpn_blocks = nn.ModuleList(CspRepLayer(2 * width, width, inner) for _ in steps)
        self.downsample_convs = nn.ModuleList(ConvNorm(width, width, 3, 2, act=nn.SiLU()) for _ in steps)
        self.pan_blocks = nn.ModuleList(CspRepLayer(2 * width, width, inner) for _ in steps)

    def forward(self, maps: Sequence[Tensor]) -> list[Tensor]:
        levels = [project(level) for project, level in zip(self.input_proj, maps, strict=True)]
        levels[-1] = self.encoder[0](levels[-1])
        down = [levels.pop()]  # from the coarsest to the finest
        for lateral, block in zip(self.lateral_convs, self.fpn_blocks, strict=True):
            down[-1] = lateral(down[-1])
            wide = twice(down[-1])
            down.append(block(torch.cat((wide, levels.pop()), dim=1)))
        fused = [down.pop()]
        for halve, block in zip(self.downsample_convs, self.pan_blocks, strict=True):
            fused.append(block(torch.cat((halve(fused[-1]), down.pop()), dim=1)))
        return fused
