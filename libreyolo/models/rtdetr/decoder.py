"""RT-DETR's decoder (arXiv 2304.08069): the best places of the encoder become queries, and layer by layer their boxes are refined.

B batch, T tokens of all levels, Q matching queries, D denoising queries, K classes, L outputs. Boxes are cxcywh in fractions of the input.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn

from libreyolo.nn.deformable import DeformableAttention
from libreyolo.nn.denoising import Denoising, attention_mask
from libreyolo.nn.transformer import MLP, DecoderLayer, inverse_sigmoid

WIDTH, HIDDEN, NUM_QUERIES = 256, 1024, 300
FRESH_SCORE = 0.01  # what a fresh class logit says: nearly everything is background
ANCHOR_SIDE = 0.05  # of the finest level, in fractions of the input; doubled from level to level
MARGIN = 0.01  # an anchor nearer than this to 0 or 1 in any number is no place for a query


class Layers(NamedTuple):
    """Logits [L, B, Q, K] and boxes [L, B, Q, 4] of L outputs of the same queries."""

    logits: Tensor
    boxes: Tensor


class Decoder(nn.Module):
    """Maps of three levels to classified boxes. eval_layer: the layer that answers when evaluating."""

    def __init__(self, in_channels: int, nc: int, num_layers: int, eval_layer: int, num_levels: int = 3) -> None:
        super().__init__()
        self.nc, self.eval_layer = nc, eval_layer
        self.input_proj = nn.ModuleList(_projection(in_channels) for _ in range(num_levels))
        self.decoder = nn.Module()
        self.decoder.layers = nn.ModuleList(DecoderLayer(WIDTH, HIDDEN, DeformableAttention(WIDTH, num_levels)) for _ in range(num_layers))
        self.denoising_class_embed = nn.Embedding(nc + 1, WIDTH, padding_idx=nc)
        self.query_pos_head = MLP(4, 2 * WIDTH, WIDTH, 2)
        self.enc_output = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.LayerNorm(WIDTH))
        self.enc_score_head = nn.Linear(WIDTH, nc)
        self.enc_bbox_head = MLP(WIDTH, WIDTH, 4, 3)
        self.dec_score_head = nn.ModuleList(nn.Linear(WIDTH, nc) for _ in range(num_layers))
        self.dec_bbox_head = nn.ModuleList(MLP(WIDTH, WIDTH, 4, 3) for _ in range(num_layers))
        self._start()

    def _start(self) -> None:
        """A fresh head says "background" and moves no box."""
        for score in (self.enc_score_head, *self.dec_score_head):
            nn.init.constant_(score.bias, -math.log((1 - FRESH_SCORE) / FRESH_SCORE))
        for box in (self.enc_bbox_head, *self.dec_bbox_head):
            nn.init.zeros_(box.layers[-1].weight)
            nn.init.zeros_(box.layers[-1].bias)
        for layer in (self.enc_output[0], *self.query_pos_head.layers):
            nn.init.xavier_uniform_(layer.weight)

    def forward(self, maps: Sequence[Tensor], denoising: Denoising | None = None) -> tuple[Layers, Layers | None]:
        """Return the outputs of the matching queries, and those of the denoising queries where some were given.

        With `denoising`, as in training: every layer's output, and the encoder's as the last of the matching ones. Without: `eval_layer`'s alone.
        """
        levels = [project(level) for project, level in zip(self.input_proj, maps, strict=True)]
        shapes = [(level.shape[2], level.shape[3]) for level in levels]
        tokens = torch.cat([level.flatten(2).transpose(1, 2) for level in levels], dim=1)
        content, references, chosen = self._select(tokens, shapes)
        if denoising is None:
            return self._refine(content, references, tokens, shapes, None, all_layers=False), None
        content = torch.cat((self.denoising_class_embed(denoising.labels).to(content.dtype), content), dim=1)
        references = torch.cat((denoising.boxes.to(references.dtype), references), dim=1)
        mask = attention_mask(denoising, chosen.logits.shape[2])
        found = self._refine(content, references, tokens, shapes, mask, all_layers=True)
        count = denoising.labels.shape[1]
        matching = Layers(
            torch.cat((found.logits[:, :, count:], chosen.logits.to(found.logits.dtype))),
            torch.cat((found.boxes[:, :, count:], chosen.boxes.to(found.boxes.dtype))),
        )
        return matching, Layers(found.logits[:, :, :count], found.boxes[:, :, :count])

    def _select(self, tokens: Tensor, shapes: Sequence[tuple[int, int]]) -> tuple[Tensor, Tensor, Layers]:
        """Return content [B, Q, W] and reference logits [B, Q, 4] of the tokens with the highest class score, both without gradient, and
        what the encoder says of them, L = 1. Q is 300, or the number of tokens of a small picture.
        """
        anchors, valid = anchor_logits(shapes, tokens.device)
        memory = self.enc_output(tokens * valid.to(tokens.dtype))
        scores = self.enc_score_head(memory)
        logits = self.enc_bbox_head(memory) + anchors.to(torch.promote_types(memory.dtype, anchors.dtype))
        count = min(NUM_QUERIES, tokens.shape[1])
        best = scores.amax(dim=-1).topk(count, dim=1).indices.unsqueeze(-1)
        references = logits.gather(1, best.expand(-1, -1, 4))
        chosen = Layers(scores.gather(1, best.expand(-1, -1, self.nc))[None], references.sigmoid()[None])
        return memory.gather(1, best.expand(-1, -1, WIDTH)).detach(), references.detach(), chosen

    def _refine(
        self,
        queries: Tensor,
        references: Tensor,
        tokens: Tensor,
        shapes: Sequence[tuple[int, int]],
        mask: Tensor | None,
        *,
        all_layers: bool,
    ) -> Layers:
        """Return the outputs of every layer, or of `eval_layer` alone.

        A layer starts from the boxes of the one before without their gradient, but its own output keeps it, so each head also learns from the
        layer that follows ("look forward twice", arXiv 2203.03605).
        """
        logits, boxes = [], []
        fixed = before = references.sigmoid()
        for index, layer in enumerate(self.decoder.layers):  # type: ignore[arg-type]
            queries = layer(queries, self.query_pos_head(fixed), fixed, tokens, shapes, mask)
            moved = self.dec_bbox_head[index](queries)
            if all_layers or index == self.eval_layer:
                logits.append(self.dec_score_head[index](queries))
                boxes.append((moved + inverse_sigmoid(before)).sigmoid())
            if index == self.eval_layer and not all_layers:
                break
            before = (moved + inverse_sigmoid(fixed)).sigmoid()
            fixed = before.detach()
        return Layers(torch.stack(logits), torch.stack(boxes))


def anchor_logits(shapes: Sequence[tuple[int, int]], device: torch.device) -> tuple[Tensor, Tensor]:
    """Return the logits [1, T, 4] of a square anchor in every cell, infinite where it lies too near the border, and where it does not [1, T, 1]."""
    anchors = []
    for level, (height, width) in enumerate(shapes):
        y = (torch.arange(height, dtype=torch.float32, device=device) + 0.5) / height
        x = (torch.arange(width, dtype=torch.float32, device=device) + 0.5) / width
        grid_y, grid_x = torch.meshgrid(y, x, indexing="ij")
        side = torch.full_like(grid_x, ANCHOR_SIDE * 2.0**level)
        anchors.append(torch.stack((grid_x, grid_y, side, side), dim=-1).reshape(-1, 4))
    every = torch.cat(anchors)[None]
    valid = ((every > MARGIN) & (every < 1 - MARGIN)).all(dim=-1, keepdim=True)
    return torch.log(every / (1 - every)).masked_fill(~valid, math.inf), valid


def _projection(in_channels: int) -> nn.Module:
    projection = nn.Sequential()
    projection.add_module("conv", nn.Conv2d(in_channels, WIDTH, 1, bias=False))
    projection.add_module("norm", nn.BatchNorm2d(WIDTH))
    return projection
