"""Batches for tests of families."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from libreyolo.interfaces.batch import DetectionBatch, SemanticBatch

Row = tuple[float, ...]  # class, x1, y1, x2, y2 in fractions of the sides


def detection_batch(images: Tensor, targets: Sequence[Sequence[Row]], *, weight: Sequence[float] | None = None) -> DetectionBatch:
    """Return a batch of pictures [B, 3, H, W] and their rows; boxes get the pictures' dtype, so that float64 stays float64."""
    count, _, height, width = images.shape
    most = max(1, *map(len, targets), 1)
    boxes = torch.zeros(count, most, 4, dtype=torch.float32)
    labels = torch.zeros(count, most, dtype=torch.int64)
    valid = torch.zeros(count, most, dtype=torch.bool)
    for i, rows in enumerate(targets):
        for j, (label, *sides) in enumerate(rows):
            boxes[i, j] = torch.tensor(sides)
            labels[i, j] = int(label)
            valid[i, j] = True
    return DetectionBatch(
        images=images,
        weight=torch.ones(count) if weight is None else torch.tensor(weight),
        index=torch.arange(count),
        epoch=0,
        key=torch.stack((torch.zeros(count, dtype=torch.int64), torch.arange(count)), dim=1),
        boxes=boxes.to(images.dtype) * torch.tensor([width, height, width, height]),
        labels=labels,
        valid=valid,
        num_boxes=valid.sum(dim=1),
        original_hw=torch.tensor([[height, width]] * count),
        to_input=torch.tensor([[1.0, 1.0, 0.0, 0.0]] * count),
    )


def semantic_batch(images: Tensor, masks: Tensor, *, weight: Sequence[float] | None = None) -> SemanticBatch:
    """Return a batch of pictures [B, 3, H, W] and masks [B, H, W] of class ids, which are the truth at the original size, too."""
    count, _, height, width = images.shape
    return SemanticBatch(
        images=images,
        weight=torch.ones(count) if weight is None else torch.tensor(weight),
        index=torch.arange(count),
        epoch=0,
        key=torch.stack((torch.zeros(count, dtype=torch.int64), torch.arange(count)), dim=1),
        masks=masks.to(torch.uint8),
        original_hw=torch.tensor([[height, width]] * count),
        content=torch.tensor([[0, 0, height, width]] * count),
        truth=masks.to(torch.uint8),
    )
