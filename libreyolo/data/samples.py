"""What the loaders of all tasks have in common: the facts of a batch that come from its items, and pixels on their way to the network."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Generic, Protocol, TypeVar

import numpy as np
import torch
from torch import Tensor

from libreyolo.data.sampler import Item
from libreyolo.data.shelves import room_for


class HasPaths(Protocol):
    """A set of pictures that have files."""

    def path(self, index: int) -> Path:
        """Return the picture's file, for messages."""


S = TypeVar("S", bound=HasPaths)


class OnePicture(Generic[S]):
    """The part of a loader's dataset that names pictures, where a sample shows one alone."""

    pictures: S

    def describe(self, index: int) -> str:
        """Return the picture's path."""
        return str(self.pictures.path(index))

    def shown(self, item: Item) -> list[int]:
        """Return the picture."""
        return [item.index]


def batch_facts(items: Sequence[Item]) -> dict[str, Any]:
    """Return the fields of `Batch` for at least one item of one epoch, still without pictures."""
    return {
        "images": torch.empty(0),
        "weight": torch.tensor([item.weight for item in items], dtype=torch.float32),
        "index": torch.tensor([item.index for item in items], dtype=torch.int64),
        "epoch": items[0].epoch,
        "key": torch.tensor([(item.epoch, item.place) for item in items], dtype=torch.int64),
    }


def top_left(pictures: Sequence[np.ndarray], fill: int = 0) -> Tensor:
    """Return at least one array uint8 [h, w, ...] in the top left corners of one tensor [B, H, W, ...], `fill` beside them."""
    height, width = (max(picture.shape[side] for picture in pictures) for side in (0, 1))
    stacked = room_for((len(pictures), height, width, *pictures[0].shape[2:]))
    buffer = stacked.numpy()
    for place, picture in enumerate(pictures):
        h, w = picture.shape[:2]
        buffer[place, :h, :w] = picture
        # Filled, though what lies outside may never be looked up: it must not be another process's memory.
        buffer[place, h:] = fill
        buffer[place, :h, w:] = fill
    return stacked


def as_images(pixels: Tensor) -> Tensor:
    """Return uint8 [B, H, W, 3] as float32 [B, 3, H, W] in [0, 1]."""
    # Contiguous in [B, 3, H, W] before the division: a view of [B, H, W, 3] would make the network's memory format depend on the loader.
    return pixels.permute(0, 3, 1, 2).contiguous().float() / 255.0
