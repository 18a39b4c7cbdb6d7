"""Multi-scale deformable attention (arXiv 2010.04159): every query looks at a few learned places of every level.

B batch, Q queries, M heads, L levels, P points, T tokens of all levels, D width, shapes (h, w) of each level in cells.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class DeformableAttention(nn.Module):
    """Queries [B, Q, D] at boxes [B, Q, 4] (cxcywh in fractions) look into tokens [B, T, D]; returns [B, Q, D].

    A point's offset is learned in units of half the query's box, so large boxes look far.
    """

    def __init__(self, width: int, num_levels: int = 3, num_heads: int = 8, num_points: int = 4) -> None:
        super().__init__()
        self.num_levels, self.num_heads, self.num_points = num_levels, num_heads, num_points
        total = num_heads * num_levels * num_points
        self.sampling_offsets = nn.Linear(width, total * 2)
        self.attention_weights = nn.Linear(width, total)
        self.value_proj = nn.Linear(width, width)
        self.output_proj = nn.Linear(width, width)
        self._start()

    def _start(self) -> None:
        """Fresh heads look in different directions, their points further and further, all with equal weight."""
        nn.init.zeros_(self.sampling_offsets.weight)
        angles = torch.arange(self.num_heads, dtype=torch.float32) * (2 * math.pi / self.num_heads)
        directions = torch.stack((angles.cos(), angles.sin()), dim=-1)
        directions = directions / directions.abs().amax(dim=-1, keepdim=True)
        steps = torch.arange(1, self.num_points + 1, dtype=torch.float32)
        offsets = directions[:, None, None, :] * steps[None, None, :, None]
        with torch.no_grad():
            self.sampling_offsets.bias.copy_(offsets.expand(-1, self.num_levels, -1, -1).reshape(-1))
        nn.init.zeros_(self.attention_weights.weight)
        nn.init.zeros_(self.attention_weights.bias)
        for projection in (self.value_proj, self.output_proj):
            nn.init.xavier_uniform_(projection.weight)
            nn.init.zeros_(projection.bias)

    def forward(self, queries: Tensor, boxes: Tensor, tokens: Tensor, shapes: Sequence[tuple[int, int]]) -> Tensor:
        batch, num_queries, _ = queries.shape
        heads, levels, points = self.num_heads, self.num_levels, self.num_points
        values = self.value_proj(tokens).unflatten(2, (heads, -1))
        offsets = self.sampling_offsets(queries).reshape(batch, num_queries, heads, levels, points, 2)
        weights = self.attention_weights(queries).reshape(batch, num_queries, heads, levels * points).softmax(dim=-1)
        centre, size = boxes[:, :, None, None, None, :2], boxes[:, :, None, None, None, 2:]
        places = centre + offsets / points * size * 0.5
        return cast(Tensor, self.output_proj(sample(values, shapes, places, weights)))


def sample(values: Tensor, shapes: Sequence[tuple[int, int]], places: Tensor, weights: Tensor) -> Tensor:
    """Return the weighted sum of values read at places, [B, Q, M * E].

    values: [B, T, M, E], level by level and row-major. places: [B, Q, M, L, P, 2], (x, y) in fractions of the sides, bilinear, 0 outside.
    weights: [B, Q, M, L * P].
    """
    batch, _, heads, features = values.shape
    num_queries = places.shape[1]
    # In mixed precision too, places stay float32: bfloat16 knows 1 in 256, a third of a cell of an 80-cell map.
    wide = torch.promote_types(values.dtype, places.dtype)
    grids = (2 * places - 1).transpose(1, 2).flatten(0, 1).to(wide)  # [B * M, Q, L, P, 2], in [-1, 1]
    read = []
    for level, (tokens, (height, width)) in enumerate(zip(values.split([h * w for h, w in shapes], dim=1), shapes, strict=True)):
        maps = tokens.permute(0, 2, 3, 1).reshape(batch * heads, features, height, width).to(wide)
        read.append(F.grid_sample(maps, grids[:, :, level], mode="bilinear", padding_mode="zeros", align_corners=False))
    shares = weights.transpose(1, 2).reshape(batch * heads, 1, num_queries, -1)
    summed = (torch.cat(read, dim=-1) * shares).sum(dim=-1)  # [B * M, E, Q]
    return summed.reshape(batch, heads * features, num_queries).transpose(1, 2)
