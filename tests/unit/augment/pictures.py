"""Drawn pictures for the tests: each knows where its one filled rectangle is."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from PIL import Image

from libreyolo.data.augment.boxes import place_boxes
from libreyolo.data.augment.compose import compose, stack_plans
from libreyolo.data.augment.plan import Plan
from libreyolo.data.augment.settings import AugmentSettings


class DrawnPictures:
    """Pictures of different sizes; `rectangles[i]` is (x0, y0, x1, y1) in whole pixels or None for a picture without boxes."""

    def __init__(self, sizes: list[tuple[int, int]], rectangles: list[tuple[int, int, int, int] | None], *, noise: bool = False) -> None:
        self.sizes = sizes
        self.rectangles = rectangles
        self.noise = noise
        self.broken: set[int] = set()

    def __len__(self) -> int:
        return len(self.sizes)

    def path(self, index: int) -> Path:
        return Path(f"drawn/{index}.png")

    def size(self, index: int) -> tuple[int, int]:
        return self.sizes[index]

    def image(self, index: int, max_hw: tuple[int, int] | None = None) -> np.ndarray:
        if index in self.broken:
            raise OSError("image file is truncated")
        h, w = self.sizes[index]
        image = np.zeros((h, w, 3), np.uint8)
        if self.noise:
            image[:] = np.random.Generator(np.random.PCG64(index)).integers(0, 256, image.shape)
        if self.rectangles[index] is not None:
            x0, y0, x1, y1 = self.rectangles[index]
            image[y0:y1, x0:x1] = 255
        if max_hw is not None and (h > max_hw[0] or w > max_hw[1]):
            ratio = min(max_hw[0] / h, max_hw[1] / w)
            image = np.asarray(Image.fromarray(image).resize((round(w * ratio), round(h * ratio)), Image.Resampling.BILINEAR))
        return image

    def boxes(self, index: int) -> tuple[np.ndarray, np.ndarray]:
        if self.rectangles[index] is None:
            return np.zeros((0, 4), np.float32), np.zeros(0, np.int64)
        h, w = self.sizes[index]
        return (np.array([self.rectangles[index]]) / [w, h, w, h]).astype(np.float32), np.array([index % 3], np.int64)


def noisy_pictures(number: int) -> DrawnPictures:
    sizes = [(40 + 7 * (i % 5), 64 - 6 * (i % 4)) for i in range(number)]
    rectangles = [None if i % 4 == 3 else (5 + i % 7, 6, 25, 20 + i % 9) for i in range(number)]
    return DrawnPictures(sizes, rectangles, noise=True)


def render(plan: Plan, pictures: DrawnPictures, hw: tuple[int, int]) -> torch.Tensor:
    """Compose one plan, [3, H, W]."""
    indices = sorted({slot.picture for slot in plan.slots})
    sources = [pictures.image(i, hw) for i in indices]
    sizes = np.array([s.shape[:2] for s in sources])
    tiles = torch.zeros((len(sources), *sizes.max(axis=0), 3), dtype=torch.uint8)
    for tile, source in zip(tiles, sources, strict=True):
        tile[: source.shape[0], : source.shape[1]] = torch.from_numpy(source.copy())
    return compose(tiles, stack_plans([plan], {index: place for place, index in enumerate(indices)}, sizes), hw)[0]


def boxes_of(plan: Plan, pictures: DrawnPictures, settings: AugmentSettings) -> tuple[np.ndarray, np.ndarray]:
    return place_boxes(plan, pictures.boxes, settings.imgsz, settings.max_labels)
