"""Transformer parts of the DETR families. B batch, T tokens, D width."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import cast

import torch
from torch import Tensor, nn


class MLP(nn.Module):
    """Linear layers with ReLU between them: `num_layers` of them, all hidden ones of one width."""

    def __init__(self, in_features: int, hidden: int, out_features: int, num_layers: int) -> None:
        super().__init__()
        widths = [in_features, *[hidden] * (num_layers - 1), out_features]
        self.layers = nn.ModuleList(nn.Linear(a, b) for a, b in pairwise(widths))

    def forward(self, x: Tensor) -> Tensor:
        for layer in list(self.layers)[:-1]:
            x = torch.relu(layer(x))
        return cast(Tensor, self.layers[-1](x))


class EncoderLayer(nn.Module):
    """Self-attention and a GELU network, each added and then normalised; [B, T, D] to the same."""

    def __init__(self, width: int, hidden: int, num_heads: int = 8) -> None:
        super().__init__()
        self.self_attn = nn.MultiheadAttention(width, num_heads, batch_first=True)
        self.linear1 = nn.Linear(width, hidden)
        self.linear2 = nn.Linear(hidden, width)
        self.norm1 = nn.LayerNorm(width)
        self.norm2 = nn.LayerNorm(width)

    def forward(self, tokens: Tensor, position: Tensor) -> Tensor:
        placed = tokens + position
        attended, _ = self.self_attn(placed, placed, tokens, need_weights=False)
        tokens = self.norm1(tokens + attended)
        hidden = nn.functional.gelu(self.linear1(tokens))
        return cast(Tensor, self.norm2(tokens + self.linear2(hidden)))


class Encoder(nn.Module):
    """Encoder layers over one map [B, D, H, W], whose cells are the tokens."""

    def __init__(self, layers: Sequence[EncoderLayer]) -> None:
        super().__init__()
        self.layers = nn.ModuleList(layers)

    def forward(self, level: Tensor) -> Tensor:
        batch, width, height, columns = level.shape
        position = sine_position(height, columns, width, level.device).to(level.dtype)
        tokens = level.flatten(2).transpose(1, 2)
        for layer in self.layers:
            tokens = layer(tokens, position)
        return tokens.transpose(1, 2).reshape(batch, width, height, columns)


def sine_position(height: int, width: int, features: int, device: torch.device, *, temperature: float = 10000.0) -> Tensor:
    """Return the sine position of every cell, row-major, [1, H * W, features] float32; `features` is a multiple of 4.

    The first half of the features tells the row, the second the column. (The published code says it the other way round and flattens
    column-major: the same tensor wherever the map is square, which is what it was trained on.)
    """
    quarter = features // 4
    rates = 1.0 / temperature ** (torch.arange(quarter, dtype=torch.float32, device=device) / quarter)
    rows = torch.arange(height, dtype=torch.float32, device=device)[:, None] * rates
    columns = torch.arange(width, dtype=torch.float32, device=device)[:, None] * rates
    of_row = torch.cat((rows.sin(), rows.cos()), dim=1)[:, None].expand(height, width, 2 * quarter)
    of_column = torch.cat((columns.sin(), columns.cos()), dim=1)[None].expand(height, width, 2 * quarter)
    return torch.cat((of_row, of_column), dim=2).reshape(1, height * width, features)


def inverse_sigmoid(x: Tensor, eps: float = 1e-5) -> Tensor:
    """Return the logit of x in [0, 1]; both sides of the fraction are at least `eps`, so the result lies within +-11.6."""
    x = x.clamp(min=0, max=1)
    return torch.log(x.clamp(min=eps) / (1 - x).clamp(min=eps))


class DecoderLayer(nn.Module):
    """Queries attend to each other, then look into the picture (`cross_attn`), then pass a ReLU network; each step is added and normalised."""

    def __init__(self, width: int, hidden: int, cross_attn: nn.Module, num_heads: int = 8) -> None:
        super().__init__()
        self.self_attn = nn.MultiheadAttention(width, num_heads, batch_first=True)
        self.norm1 = nn.LayerNorm(width)
        self.cross_attn = cross_attn
        self.norm2 = nn.LayerNorm(width)
        self.linear1 = nn.Linear(width, hidden)
        self.linear2 = nn.Linear(hidden, width)
        self.norm3 = nn.LayerNorm(width)

    def forward(
        self, queries: Tensor, position: Tensor, boxes: Tensor, tokens: Tensor, shapes: Sequence[tuple[int, int]], mask: Tensor | None
    ) -> Tensor:
        """Return the queries [B, Q, D] after this layer. mask: [Q, Q] bool, True where the row must not see the column."""
        placed = queries + position
        attended, _ = self.self_attn(placed, placed, queries, attn_mask=mask, need_weights=False)
        queries = self.norm1(queries + attended)
        queries = self.norm2(queries + self.cross_attn(queries + position, boxes, tokens, shapes))
        changed = queries + self.linear2(torch.relu(self.linear1(queries)))
        return cast(Tensor, self.norm3(changed.clamp(min=-HALF_MAX, max=HALF_MAX)))


HALF_MAX = 65504.0  # the largest float16: an overflow in mixed precision stays a number
