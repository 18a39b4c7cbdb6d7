"""Sums over labelled pixels, and class maps from logits. B batch, C classes, H W the mask, h w the logits."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from libreyolo.interfaces.batch import SemanticBatch
from libreyolo.ops.resize import resize

IGNORED = 255  # the value of a pixel that counts nowhere, in every mask
MAX_ELEMENTS = 2**26  # logits enlarged at once: 256 MiB of float32


def labelled_pixels(batch: SemanticBatch) -> Tensor:
    """Return how many pixels have a class, pictures of weight 0 left out: 0-dim float32, counted in whole numbers."""
    return ((batch.masks != IGNORED).sum(dim=(1, 2)) * (batch.weight > 0)).sum().float()


def pixel_cross_entropy(logits: Tensor, batch: SemanticBatch) -> Tensor:
    """Return the cross-entropy summed over labelled pixels, 0-dim, float32 or wider; 0, and still connected to `logits`, where there is none.

    logits: [B, C, h, w], enlarged bilinearly to the masks where they are smaller. Pictures of weight 0 add nothing.
    """
    with torch.autocast(logits.device.type, enabled=False):
        wide = logits.to(torch.promote_types(logits.dtype, torch.float32))
        if wide.shape[-2:] != batch.masks.shape[-2:]:
            height, width = batch.masks.shape[-2:]
            wide = resize(wide, (height, width), "bilinear")
        pixels = F.cross_entropy(wide, batch.masks.long(), ignore_index=IGNORED, reduction="none")
        return (pixels.sum(dim=(1, 2)) * batch.weight.to(wide.dtype)).sum()


def class_map(logits: Tensor, hw: tuple[int, int]) -> Tensor:
    """Return the class of every pixel, uint8 [*hw]: logits [C, h, w] enlarged or shrunk bilinearly to hw, then the largest (the first of equals).

    C is at most 255. Works through the classes in groups: 150 classes of a 12-megapixel picture would be 7 GB of logits.
    """
    group = max(1, MAX_ELEMENTS // (hw[0] * hw[1]))
    best: Tensor | None = None
    found = torch.zeros(hw, dtype=torch.uint8, device=logits.device)
    for first in range(0, len(logits), group):
        part = logits[None, first : first + group].float()
        values, classes = resize(part, hw, "bilinear")[0].max(dim=0)
        classes = (classes + first).to(torch.uint8)
        better = torch.ones_like(values, dtype=torch.bool) if best is None else values > best
        found = torch.where(better, classes, found)
        best = values if best is None else torch.maximum(best, values)
    return found
