"""What will be done to one output picture, drawn from its key alone; no pixel is touched here.

A plan is a list of slots. A slot shows a part of one source picture: `to_output` maps the source picture's unit square (0, 0)-(1, 1) to
output pixels, `shown` is the visible part of that square. Working in unit squares keeps the plan independent of the size at which a picture
is decoded. Slots of layer 0 are the picture (one letterboxed, or up to four of a mosaic), slots of layer 1 are what mixup blends in.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from libreyolo.data.augment.matrices import corners, flip, project, random_affine, scale_shift
from libreyolo.data.augment.settings import AugmentSettings
from libreyolo.ops.keyed import generator

SLOTS_PER_LAYER = 4
MIXUP_WEIGHT = 0.5  # YOLOX (arXiv 2107.08430) blends half and half

IDENTITY_HSV = (0.0, 1.0, 1.0)


@dataclass(frozen=True)
class Slot:
    """One source picture in an output picture.

    picture: place in the dataset.
    layer: 0 for the picture itself, 1 for what is blended in.
    to_output: float64 [3, 3], the source's unit square to output pixels.
    shown: (x0, y0, x1, y1), the visible part of the unit square.
    window: (x0, y0, x1, y1) whole output pixels that hold all that is visible; never empty.
    edge_scale: output pixels per unit length of the square along x and y, for soft edges.
    """

    picture: int
    layer: int
    to_output: np.ndarray
    shown: tuple[float, float, float, float]
    window: tuple[int, int, int, int]
    edge_scale: tuple[float, float]


@dataclass(frozen=True)
class Plan:
    """One output picture: its slots, (hue shift, saturation factor, value factor) or None, and the weight of layer 1 (0: no mixup)."""

    slots: tuple[Slot, ...]
    hsv: tuple[float, float, float] | None
    blend: float
    mosaic: bool


SizeOf = Callable[[int], tuple[int, int]]
"""Returns (height, width) of a picture of the dataset; only their ratio matters."""


def draw_plan(settings: AugmentSettings, size_of: SizeOf, num_pictures: int, *, seed: int, index: int, epoch: int, place: int) -> Plan:
    """Return the plan of picture `index` at `place` of `epoch`: a pure function of its arguments."""
    rng = generator(seed, "augment", epoch, place)
    # Every decision is drawn whether it is used or not: the last epochs keep the flips and colours that they would have had.
    mosaic_draw, mixup_draw, hsv_draw, left_right, upside_down = rng.random(5)
    gains = rng.uniform(-1.0, 1.0, 3) * np.asarray(settings.hsv_gain)

    strong = settings.strong(epoch)
    mosaic = strong and mosaic_draw < settings.mosaic_prob
    affine = mosaic or (strong and settings.affine_without_mosaic)
    mixup = affine and mixup_draw < settings.mixup_prob

    parts = generator(seed, "parts", epoch, place)
    if mosaic:
        canvas_hw = (2 * settings.imgsz[0], 2 * settings.imgsz[1])
        tiles = _mosaic(parts, settings.imgsz, size_of, num_pictures, index)
    else:
        canvas_hw = settings.imgsz
        fitted = _stretched(settings.imgsz) if settings.resize == "stretch" else _fit(size_of(index), settings.imgsz)
        tiles = [(index, fitted, (0.0, 0.0, 1.0, 1.0))]
    to_input = random_affine(parts, canvas_hw, settings) if affine else np.eye(3)
    mirror = flip(settings.imgsz, horizontal=left_right < settings.flip_prob, vertical=upside_down < settings.flipud)

    slots = [make_slot(picture, 0, mirror @ to_input @ on_canvas, shown, settings.imgsz) for picture, on_canvas, shown in tiles]
    if mixup:
        partner, on_input = _mixup(parts, settings, size_of, num_pictures)
        slots.append(make_slot(partner, 1, mirror @ on_input, (0.0, 0.0, 1.0, 1.0), settings.imgsz))
    hsv = (float(gains[0]), 1.0 + float(gains[1]), 1.0 + float(gains[2])) if hsv_draw < settings.hsv_prob else None
    return Plan(tuple(s for s in slots if s is not None), hsv, MIXUP_WEIGHT if mixup else 0.0, bool(mosaic))


def _fit(size: tuple[int, int], hw: tuple[int, int]) -> np.ndarray:
    """Return the map of a picture's unit square to the top left of hw, its long side filling it exactly."""
    ratio = min(hw[0] / size[0], hw[1] / size[1])
    return scale_shift(size[1] * ratio, size[0] * ratio, 0.0, 0.0)


def _stretched(hw: tuple[int, int]) -> np.ndarray:
    return scale_shift(hw[1], hw[0], 0.0, 0.0)


def _mosaic(
    rng: np.random.Generator, hw: tuple[int, int], size_of: SizeOf, num_pictures: int, index: int
) -> list[tuple[int, np.ndarray, tuple[float, float, float, float]]]:
    """Four pictures meet at a random centre of a canvas of twice the input (YOLOv4, arXiv 2004.10934); each fitted to the input's size."""
    h, w = hw
    centre_x, centre_y = rng.uniform(0.5 * w, 1.5 * w), rng.uniform(0.5 * h, 1.5 * h)
    partners = rng.integers(num_pictures, size=3)
    tiles = []
    for slot, picture in enumerate([index, *map(int, partners)]):
        fitted = _fit(size_of(picture), hw)
        tile_w, tile_h = fitted[0, 0], fitted[1, 1]
        # Slots 0..3: top left, top right, bottom left, bottom right; each tile has one corner at the centre.
        x0 = centre_x - (tile_w if slot % 2 == 0 else 0.0)
        y0 = centre_y - (tile_h if slot < 2 else 0.0)
        shown = (max(0.0, -x0 / tile_w), max(0.0, -y0 / tile_h), min(1.0, (2 * w - x0) / tile_w), min(1.0, (2 * h - y0) / tile_h))
        tiles.append((picture, scale_shift(tile_w, tile_h, x0, y0), shown))
    return tiles


def _mixup(rng: np.random.Generator, settings: AugmentSettings, size_of: SizeOf, num_pictures: int) -> tuple[int, np.ndarray]:
    """A partner fitted to the input, zoomed, mirrored at random and placed at random: cropped where larger, padded where smaller."""
    h, w = settings.imgsz
    partner = int(rng.integers(num_pictures))
    zoom = rng.uniform(*settings.mixup_scale)
    mirrored = rng.random() < settings.flip_prob
    along_x, along_y = rng.random(2)
    fitted = _fit(size_of(partner), settings.imgsz)
    part_w, part_h = fitted[0, 0] * zoom, fitted[1, 1] * zoom
    placed = scale_shift(part_w, part_h, along_x * (w - part_w), along_y * (h - part_h))
    return partner, placed @ flip((1, 1), horizontal=mirrored, vertical=False)


def make_slot(picture: int, layer: int, to_output: np.ndarray, shown: tuple[float, float, float, float], hw: tuple[int, int]) -> Slot | None:
    """Return the slot, or None where nothing of it is visible: its picture need not be decoded."""
    h, w = hw
    visible, divisor = project(to_output, corners(np.asarray(shown)))
    if divisor.min() <= 0.01:  # a corner near or behind the horizon: its image is no finite rectangle
        window = (0, 0, w, h)
    else:
        # One pixel more on each side for the soft edge.
        x0, y0 = np.floor(visible.min(axis=0)).astype(int) - 1
        x1, y1 = np.ceil(visible.max(axis=0)).astype(int) + 1
        window = (max(0, int(x0)), max(0, int(y0)), min(w, int(x1)), min(h, int(y1)))
    if window[0] >= window[2] or window[1] >= window[3]:
        return None
    scale_x, scale_y = _edge_scale(to_output, shown)
    return Slot(picture, layer, to_output, shown, window, (scale_x, scale_y))


def _edge_scale(to_output: np.ndarray, shown: tuple[float, float, float, float]) -> tuple[float, float]:
    # Distance, in output pixels, of a point from the line x = const is |det J| / |J's y column| per unit of x (J the Jacobian at the middle
    # of the shown part): the parallelogram's area over its base.
    middle = np.array([(shown[0] + shown[2]) / 2, (shown[1] + shown[3]) / 2])
    point, divisor = project(to_output, middle)
    jacobian = (to_output[:2, :2] - point[:, None] * to_output[2:, :2]) / max(float(divisor), 1e-3)
    area = abs(float(np.linalg.det(jacobian)))
    return area / max(math.hypot(*jacobian[:, 1]), 1e-9), area / max(math.hypot(*jacobian[:, 0]), 1e-9)
