"""What is mixed into a picture and erased from it: drawn on the host, painted on the device, batched. B pictures, H W the network input."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

Box = tuple[float, float, float, float]
"""(x0, y0, x1, y1) in pixels of the network input, whole numbers; empty where x1 <= x0."""

NOTHING: Box = (0.0, 0.0, 0.0, 0.0)
# Random erasing (arXiv 1708.04896): area of the rectangle in parts of the picture, and its ratio of height to width.
ERASED_AREA, ERASED_RATIOS, TRIES = (0.02, 0.33), (0.3, 3.3), 10


@dataclass(frozen=True)
class Mix:
    """What becomes of a picture's pixels and label.

    share: how much of the label stays. blend: weight of the picture's own pixels (mixup; 1 elsewhere). pasted: where the partner shows (cutmix).
    """

    share: float = 1.0
    blend: float = 1.0
    pasted: Box = NOTHING


PLAIN = Mix()


def draw_mixup(rng: np.random.Generator) -> Mix:
    """Draw a blend; its weight is uniform, the beta distribution of parameter 1 (arXiv 1710.09412)."""
    own = float(rng.random())
    return Mix(share=own, blend=own)


def draw_cutmix(rng: np.random.Generator, imgsz: tuple[int, int]) -> Mix:
    """Draw a rectangle of the partner: its part of the picture uniform, its centre anywhere, cut at the edges (arXiv 1905.04899).

    The label's shares are the parts of the picture that are really seen.
    """
    h, w = imgsz
    side = math.sqrt(1.0 - float(rng.random())) / 2
    centre_x, centre_y = int(rng.integers(w)), int(rng.integers(h))
    x0, x1 = max(centre_x - int(side * w), 0), min(centre_x + int(side * w), w)
    y0, y1 = max(centre_y - int(side * h), 0), min(centre_y + int(side * h), h)
    return Mix(share=1.0 - (x1 - x0) * (y1 - y0) / (h * w), pasted=(float(x0), float(y0), float(x1), float(y1)))


def draw_erased(rng: np.random.Generator, imgsz: tuple[int, int]) -> Box:
    """Draw a rectangle to erase; of ten draws the first that lies inside, NOTHING where none does."""
    h, w = imgsz
    areas = h * w * rng.uniform(*ERASED_AREA, TRIES)
    ratios = np.exp(rng.uniform(math.log(ERASED_RATIOS[0]), math.log(ERASED_RATIOS[1]), TRIES))
    along_x, along_y = rng.random(2)
    for area, ratio in zip(areas.tolist(), ratios.tolist(), strict=True):
        box_h, box_w = round(math.sqrt(area * ratio)), round(math.sqrt(area / ratio))
        if 0 < box_h < h and 0 < box_w < w:
            x0, y0 = int(along_x * (w - box_w + 1)), int(along_y * (h - box_h + 1))
            return float(x0), float(y0), float(x0 + box_w), float(y0 + box_h)
    return NOTHING


def erase(images: Tensor, boxes: Tensor, colour: tuple[float, float, float]) -> Tensor:
    """Return images [B, 3, H, W] with each one's box [B, 4] in one colour (RGB in [0, 1])."""
    inside = _inside(boxes, images)
    return torch.stack([images[:, c].masked_fill(inside, colour[c]) for c in range(3)], dim=1)


def mix(images: Tensor, partners: Tensor, blend: Tensor, pasted: Tensor) -> Tensor:
    """Return images [B, 3, H, W] with their partners [B, 3, H, W] blended in by 1 - blend [B], and shown alone in the boxes `pasted` [B, 4]."""
    own = blend[:, None, None, None]
    mixed = images * own + partners * (1.0 - own)
    return torch.where(_inside(pasted, images)[:, None], partners, mixed)


def _inside(boxes: Tensor, images: Tensor) -> Tensor:
    """Return whether each pixel lies in its picture's box, bool [B, H, W]."""
    x = torch.arange(images.shape[3], device=images.device)
    y = torch.arange(images.shape[2], device=images.device)[:, None]
    x0, y0, x1, y1 = boxes[:, :, None, None].unbind(dim=1)
    return (x >= x0) & (x < x1) & (y >= y0) & (y < y1)
