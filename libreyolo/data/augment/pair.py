"""How a training pair is cut, turned and mirrored: drawn on the CPU for each pair, carried out on the device for a batch.

B pairs, h w a picture, H W the crop. Input and target always get the same.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from libreyolo.data.decode import Box
from libreyolo.ops.keyed import generator


@dataclass(frozen=True)
class PairSettings:
    """crop: (H, W). flip_prob, flipud, rot90: probabilities of a mirror image left to right, one upside down, and a quarter turn (square crops)."""

    crop: tuple[int, int]
    flip_prob: float = 0.5
    flipud: float = 0.5
    rot90: float = 0.5


@dataclass(frozen=True)
class PairPlan:
    """Where a pair is cut and how it is turned. top, left: in pixels of the picture, filled up where it is smaller than the crop."""

    top: int
    left: int
    mirrored: bool
    upside_down: bool
    transposed: bool


def draw_pair_plan(settings: PairSettings, hw: tuple[int, int], *, seed: int, epoch: int, place: int) -> PairPlan:
    """Return the plan of a pair of this size: a function of seed, epoch and place alone. Every crop that fits is as likely as any other."""
    draws = generator(seed, "pair", epoch, place)
    spare = (max(side - crop, 0) for side, crop in zip(hw, settings.crop, strict=True))
    top, left = (int(draws.integers(0, n + 1)) for n in spare)
    mirrored, upside_down, transposed = (bool(draws.random() < p) for p in (settings.flip_prob, settings.flipud, settings.rot90))
    return PairPlan(top, left, mirrored, upside_down, transposed)


def shown_box(plan: PairPlan, hw: tuple[int, int], crop: tuple[int, int]) -> Box:
    """Return what a crop shows of a picture of this size: less than the crop where the picture is smaller, which `fill_up` then makes up for."""
    return plan.top, plan.left, min(plan.top + crop[0], hw[0]), min(plan.left + crop[1], hw[1])


def fill_up(picture: np.ndarray, hw: tuple[int, int]) -> np.ndarray:
    """Return a picture [h, w, 3] filled up at the right and the bottom to `hw` by reflection (the outermost pixel not repeated)."""
    missing = hw[0] - picture.shape[0], hw[1] - picture.shape[1]
    if missing == (0, 0):
        return picture
    return np.pad(picture, ((0, missing[0]), (0, missing[1]), (0, 0)), mode="reflect")


def turn(pictures: Tensor, turns: Tensor) -> Tensor:
    """Return pictures [B, C, H, W], contiguous, mirrored, put upside down and transposed as `turns` [B, 3] bool says, in this order.

    H = W where any is transposed. All eight positions of a square are reached: a quarter turn is a mirror image, transposed. Nothing is interpolated.
    """
    mirrored, upside_down, transposed = turns[:, :, None, None, None].unbind(1)
    pictures = torch.where(mirrored, pictures.flip(3), pictures)
    pictures = torch.where(upside_down, pictures.flip(2), pictures)
    if pictures.shape[2] != pictures.shape[3]:
        return pictures
    # Contiguous, or the strides (and with them the kernels behind) would depend on what was drawn.
    return torch.where(transposed, pictures.transpose(2, 3), pictures).contiguous()
