"""Contrastive denoising queries (arXiv 2203.03605): noised copies of the targets that the decoder learns to put right.

B batch, S slots (objects of the fullest picture of the global batch), G groups, D = G * 2 * S queries of a picture. A group is S lightly noised
copies ("positive"), then S strongly noised ones ("negative", to be told from objects). Groups don't see each other.

Everything follows from the targets, (seed, epoch, place) and S, which ranks agree on: the number of ranks changes nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from libreyolo.nn.transformer import inverse_sigmoid
from libreyolo.ops.boxes import cxcywh_to_xyxy, xyxy_to_cxcywh
from libreyolo.ops.keyed import generator


class Noise(NamedTuple):
    """Draws for every query of a batch. flip, part: in [0, 1), [B, D] and [B, D, 4]; label: class ids [B, D]; sign: -1 or 1, [B, D, 4]."""

    flip: Tensor
    label: Tensor
    sign: Tensor
    part: Tensor


class Denoising(NamedTuple):
    """Queries of a batch.

    labels: [B, D] class ids, `num_classes` where there is no object. boxes: [B, D, 4] logits of cxcywh in fractions.
    groups, slots: G and S; D is 0 where denoising is off. share: factor of their losses: 1 / G, 0 where no picture has an object.
    """

    labels: Tensor
    boxes: Tensor
    groups: int
    slots: int
    share: float

    def positive(self) -> Tensor:
        """Return the places [G * S] of the positive queries; entry g * S + j is the copy of object j in group g."""
        device = self.labels.device
        starts = torch.arange(self.groups, device=device) * 2 * self.slots
        return (starts[:, None] + torch.arange(self.slots, device=device)).reshape(-1)


def draw(seed: int, keys: Iterable[Sequence[int]], num_queries: int, num_classes: int) -> Noise:
    """Return the draws of a batch on the CPU, those of a picture keyed by (epoch, place)."""
    flips, labels, signs, parts = [], [], [], []
    for epoch, place in keys:
        rng = generator(seed, "denoising", int(epoch), int(place))
        flips.append(rng.random(num_queries, dtype=np.float32))
        labels.append(rng.integers(num_classes, size=num_queries))
        signs.append(rng.integers(2, size=(num_queries, 4)).astype(np.float32) * 2 - 1)
        parts.append(rng.random((num_queries, 4), dtype=np.float32))
    return Noise(*(torch.from_numpy(np.stack(rows)) for rows in (flips, labels, signs, parts)))


def denoising_queries(
    labels: Tensor,
    boxes: Tensor,
    valid: Tensor,
    noise: Noise,
    *,
    num_objects: int,
    groups: int,
    num_classes: int,
    label_noise: float = 0.5,
    box_noise: float = 1.0,
) -> Denoising:
    """Return the noised copies of targets (labels [B, N], boxes [B, N, 4] cxcywh in fractions, valid [B, N], valid rows first).

    num_objects: of the fullest picture of the global batch, on whatever rank. 0 gives one group of empty slots that counts for nothing.
    A label is replaced by a random one in half of `label_noise` of the cases. A side of a positive box moves by up to half the box's extent times
    `box_noise`, one of a negative box by once to twice that.
    """
    slots = max(num_objects, 1)
    labels_BS, boxes_BS, valid_BS = (rows_of(t, slots) for t in (labels, boxes, valid))
    copies = 2 * groups
    known = valid_BS.repeat(1, copies)
    flips = (noise.flip < label_noise * 0.5) & known
    noised = torch.where(flips, noise.label, labels_BS.repeat(1, copies)).masked_fill(~known, num_classes)
    negative = (torch.arange(known.shape[1], device=labels.device) // slots % 2).to(boxes.dtype)[:, None]
    reach = boxes_BS[..., 2:].repeat(1, copies, 2) * 0.5 * box_noise
    moved = cxcywh_to_xyxy(boxes_BS.repeat(1, copies, 1)) + (noise.part.to(boxes.dtype) + negative) * noise.sign.to(boxes.dtype) * reach
    logits = inverse_sigmoid(xyxy_to_cxcywh(moved.clamp(0, 1)))
    return Denoising(noised, logits, groups, slots, 1.0 / groups if num_objects else 0.0)


def no_queries(labels: Tensor, boxes: Tensor) -> Denoising:
    """Return the queries of a training without denoising: none."""
    return Denoising(labels[:, :0], boxes[:, :0], 0, 1, 0.0)


def rows_of(targets: Tensor, count: int) -> Tensor:
    """Return the first `count` rows of padded targets [B, N, ...], filled up with zeros."""
    missing = count - targets.shape[1]
    if missing <= 0:
        return targets[:, :count]
    return torch.cat((targets, targets.new_zeros(targets.shape[0], missing, *targets.shape[2:])), dim=1)


def attention_mask(denoising: Denoising, num_matching: int) -> Tensor | None:
    """Return [D + Q, D + Q] bool, True where the row must not see the column; None where there is no denoising query.

    A denoising query sees its own group and the matching queries; these see each other only, or the answers would leak.
    """
    num_queries = denoising.labels.shape[1]
    if num_queries == 0:
        return None
    device = denoising.labels.device
    group = torch.full((num_queries + num_matching,), -1, device=device)
    group[:num_queries] = torch.arange(num_queries, device=device) // (2 * denoising.slots)
    return (group[None, :] >= 0) & (group[:, None] != group[None, :])
