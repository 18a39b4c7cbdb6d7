"""Zoom and crop of a picture with its mask: how a semantic training picture comes about. h w the picture, H W the crop.

The zoom is relative to how the whole picture is judged (fitted to the evaluation's input, as the family does it), so that a zoom of 1 shows things as
large as they are at evaluation. On Cityscapes, whose frames are as large as the published evaluation's input, this is the published rule: the frame
resized by 0.5 to 2, then a crop. Where the crop is larger, grey and ignored pixels fill it at the right and at the bottom.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from libreyolo.data.augment.letterbox import letterbox_geometry
from libreyolo.data.augment.matrices import scale_shift
from libreyolo.data.augment.plan import Plan, make_slot
from libreyolo.data.augment.resize import resize_for_training
from libreyolo.data.masks import histogram, shrink_mask
from libreyolo.interfaces.input import InputSpec
from libreyolo.ops.keyed import generator
from libreyolo.ops.pixels import IGNORED

TRIES = 10
MARGIN = 2  # source pixels kept around what a crop shows, so that its edge is interpolated as if nothing had been cut off
MAX_LOOKED = 256  # rows and columns of a crop that are looked at to tell whether one class fills it


@dataclass(frozen=True)
class CropSettings:
    """How training pictures are changed; named as the training arguments.

    imgsz: (height, width) of the crop. canvas: of the evaluation's input. rescale: smallest and largest zoom. cat_max_ratio: a crop of whose labelled
    pixels one class has a larger share is drawn again, at most ten times in all. flip_prob, flipud: share of pictures mirrored left-right and upside
    down. hsv_prob, hsv_gain: as in `AugmentSettings`.
    """

    imgsz: tuple[int, int]
    canvas: tuple[int, int]
    rescale: tuple[float, float] = (0.5, 2.0)
    cat_max_ratio: float = 0.75
    flip_prob: float = 0.5
    flipud: float = 0.0
    hsv_prob: float = 1.0
    hsv_gain: tuple[float, float, float] = (0.028, 0.118, 0.118)

    @property
    def enough_hw(self) -> tuple[int, int]:
        """The size within which a picture is decoded: no zoom shows more of it. The same for all, so that one copy in a cache serves every draw."""
        zoom = max(1.0, self.rescale[1])
        return math.ceil(self.canvas[0] * zoom), math.ceil(self.canvas[1] * zoom)


@dataclass(frozen=True)
class Crop:
    """A planned picture: the part of it that is shown, uint8 [h, w, 3], its mask uint8 [h, w], and the plan with one slot, that part (tile 0)."""

    image: NDArray[np.uint8]
    mask: NDArray[np.uint8]
    plan: Plan


def draw_crop(
    settings: CropSettings,
    spec: InputSpec,
    hw: tuple[int, int],
    image: NDArray[np.uint8],
    mask: NDArray[np.uint8],
    *,
    seed: int,
    epoch: int,
    place: int,
) -> Crop:
    """Draw the crop at `place` of `epoch`: a pure function of its arguments.

    hw: the original size of the picture. image, mask: of that size or shrunk; where the zoom shows them smaller they are shrunk here, averaged (the
    mask: by the value at the centre).
    """
    rng = generator(seed, "augment", epoch, place)
    # Every decision is drawn whether it is used or not: one knob never moves another's draws.
    zoom = rng.uniform(*settings.rescale)
    places = rng.random((TRIES, 2))
    hsv_draw, left_right, upside_down = rng.random(3)
    gains = rng.uniform(-1.0, 1.0, 3) * np.asarray(settings.hsv_gain)
    mirror = (bool(upside_down < settings.flipud), bool(left_right < settings.flip_prob))

    fitted, _ = letterbox_geometry(hw, settings.canvas, spec)
    zoomed = (max(1, round(fitted[0] * zoom)), max(1, round(fitted[1] * zoom)))
    size = (min(image.shape[0], zoomed[0]), min(image.shape[1], zoomed[1]))
    mask = shrink_mask(mask, size)
    corner = _choose(places, zoomed, mask, mirror, settings)
    spans = [_span(zoomed[a], size[a], corner[a], settings.imgsz[a], mirrored=mirror[a], margin=MARGIN) for a in (0, 1)]
    to_output = _to_output(zoomed, size, corner, spans, mirror)
    image = resize_for_training(image, size)
    part = (slice(*spans[0]), slice(*spans[1]))
    slot = make_slot(0, 0, to_output, (0.0, 0.0, 1.0, 1.0), settings.imgsz)
    assert slot is not None, "a crop lies on its picture"
    hsv = (float(gains[0]), 1.0 + float(gains[1]), 1.0 + float(gains[2])) if hsv_draw < settings.hsv_prob else None
    return Crop(np.ascontiguousarray(image[part]), np.ascontiguousarray(mask[part]), Plan((slot,), hsv, 0.0, mosaic=False))


def _choose(
    places: NDArray[np.float64], zoomed: tuple[int, int], mask: NDArray[np.uint8], mirror: tuple[bool, bool], settings: CropSettings
) -> tuple[int, int]:
    """Return the crop's top left corner in the zoomed and mirrored picture: the first of which no class has too large a share, else the last."""
    room = [max(0, zoomed[a] - settings.imgsz[a]) for a in (0, 1)]
    corner = (0, 0)
    for down, right in places.tolist():
        corner = (int(down * (room[0] + 1)), int(right * (room[1] + 1)))
        spans = [_span(zoomed[a], mask.shape[a], corner[a], settings.imgsz[a], mirrored=mirror[a], margin=0) for a in (0, 1)]
        steps = [max(1, (high - low) // MAX_LOOKED) for low, high in spans]
        seen = mask[spans[0][0] : spans[0][1] : steps[0], spans[1][0] : spans[1][1] : steps[1]]
        counts = histogram(seen)[:IGNORED]
        if counts.max() <= settings.cat_max_ratio * counts.sum():
            break
    return corner


def _span(zoomed: int, size: int, corner: int, length: int, *, mirrored: bool, margin: int) -> tuple[int, int]:
    """Return the (first, end) pixels of a source side of `size` that a crop shows, never empty.

    corner, length: of the crop along this side, in pixels of the zoomed (and mirrored) picture.
    """
    low, high = corner, min(corner + length, zoomed)
    if mirrored:
        low, high = zoomed - high, zoomed - low
    first, end = math.floor(low * size / zoomed) - margin, math.ceil(high * size / zoomed) + margin
    return max(0, min(first, size - 1)), min(size, max(end, first + 1))


def _to_output(
    zoomed: tuple[int, int], size: tuple[int, int], corner: tuple[int, int], spans: list[tuple[int, int]], mirror: tuple[bool, bool]
) -> NDArray[np.float64]:
    """Return the map of the shown part's unit square to crop pixels, float64 [3, 3]."""
    scales, shifts = [], []
    for a in (0, 1):
        per_pixel = zoomed[a] / size[a]
        scale, shift = (spans[a][1] - spans[a][0]) * per_pixel, spans[a][0] * per_pixel
        scales.append(-scale if mirror[a] else scale)
        shifts.append((zoomed[a] - shift if mirror[a] else shift) - corner[a])
    return scale_shift(scales[1], scales[0], shifts[1], shifts[0])
