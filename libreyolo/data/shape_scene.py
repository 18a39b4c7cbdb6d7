"""One drawn picture from one seed: shapes of known class on a busy background. H, W picture side; K objects; S samples a pixel and axis.

Numbers come from NumPy's PCG64, pixels from elementwise float32 arithmetic (no BLAS, no reductions whose order could vary), so a seed gives
the same array everywhere. The class lies in the outline alone: colour, texture, size and angle are drawn from the same ranges for all.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

SHAPES = ("circle", "square", "triangle", "star", "ring", "cross")
HIDDEN_SHARE = 0.7  # an object of which more is covered gets no label
_SAMPLES = 3

Mask = NDArray[np.bool_]
Pixels = NDArray[np.float32]


@dataclass
class Scene:
    """A picture and its labelled objects, in the order they were drawn (later ones cover earlier ones).

    picture: uint8 [H, W, 3] RGB. clean: the same before blur and noise. labels: int64 [K], places in SHAPES.
    boxes: float32 [K, 4] xyxy px, the extent of each object inside the picture before anything covered it; a multiple of 1/3 px.
    masks: bool [K, H, W], what of each object can be seen. visible: float32 [K], which part that is, in (0.3, 1].
    """

    picture: NDArray[np.uint8]
    clean: NDArray[np.uint8]
    labels: NDArray[np.int64]
    boxes: NDArray[np.float32]
    masks: Mask
    visible: NDArray[np.float32]


@dataclass
class _Stamp:
    """Something drawn: its S-fold sampled inside, and where in the picture (top, left, in px) that patch lies."""

    inside: Mask  # [h * S, w * S], already cut at the picture's edge
    top: int
    left: int

    @cached_property
    def coverage(self) -> Pixels:
        """Share of each pixel that is inside, [h, w] in [0, 1]."""
        samples = self.inside.view(np.uint8)
        steps = range(_SAMPLES)
        counts = sum(samples[dy::_SAMPLES, dx::_SAMPLES] for dy in steps for dx in steps)
        return np.asarray(counts, np.float32) / np.float32(_SAMPLES**2)

    def box(self) -> tuple[float, float, float, float]:
        rows, columns = np.flatnonzero(self.inside.any(axis=1)), np.flatnonzero(self.inside.any(axis=0))
        x1, x2 = self.left + columns[0] / _SAMPLES, self.left + (columns[-1] + 1) / _SAMPLES
        y1, y2 = self.top + rows[0] / _SAMPLES, self.top + (rows[-1] + 1) / _SAMPLES
        return x1, y1, x2, y2


def draw_scene(
    seed: int | tuple[int, ...],
    *,
    size: int = 192,
    labels: tuple[int, ...] | None = None,
    clutter: bool = True,
) -> Scene:
    """Return the scene of a seed on a `size` x `size` picture.

    labels: the classes to draw, for sets that need a certain one; 1 to 6 random ones where not given. clutter: lines and blobs of no class,
    below and above the objects.
    """
    rng = np.random.default_rng(seed)
    canvas = _background(rng, size)
    drawn_labels = tuple(int(x) for x in rng.integers(len(SHAPES), size=int(rng.integers(1, 7)))) if labels is None else labels
    if clutter:
        for _ in range(int(rng.integers(0, 3))):
            _paint(canvas, _distractor(rng, size), rng)
    stamps: list[_Stamp] = []
    masks: list[Mask] = []
    taken: list[tuple[float, float, float]] = []
    for label in drawn_labels:
        stamp = _object(rng, size, label, taken)
        _cover(masks, _paint(canvas, stamp, rng))
        stamps.append(stamp)
        masks.append(_mask(stamp, size))
    if clutter:
        for _ in range(int(rng.integers(0, 3))):
            _cover(masks, _paint(canvas, _distractor(rng, size), rng))
    clean = _lit(rng, canvas)
    return _scene(rng, clean, drawn_labels, stamps, masks, size)


def _scene(rng: np.random.Generator, clean: Pixels, labels: tuple[int, ...], stamps: list[_Stamp], masks: list[Mask], size: int) -> Scene:
    whole = [int(_mask(stamp, size).sum()) for stamp in stamps]
    visible = np.array([mask.sum() / max(1, area) for mask, area in zip(masks, whole, strict=True)], np.float32)
    keep = [place for place in range(len(labels)) if visible[place] > 1 - HIDDEN_SHARE]
    return Scene(
        picture=_to_uint8(_degraded(rng, clean)),
        clean=_to_uint8(clean),
        labels=np.array([labels[place] for place in keep], np.int64),
        boxes=np.array([stamps[place].box() for place in keep], np.float32).reshape(-1, 4),
        masks=np.array([masks[place] for place in keep], bool).reshape(-1, size, size),
        visible=visible[keep],
    )


# --- outlines: u, v are coordinates in which a shape fills the unit circle; True inside --------------------------------------------------


def _inside(label: int, u: Pixels, v: Pixels) -> Mask:
    name = SHAPES[label]
    if name == "circle":
        return u * u + v * v <= 0.81
    if name == "ring":
        radius = u * u + v * v
        return (radius <= 0.9) & (radius >= 0.3)
    if name == "square":
        return np.maximum(np.abs(u), np.abs(v)) <= 0.75
    if name == "cross":
        return (np.maximum(np.abs(u), np.abs(v)) <= 0.9) & (np.minimum(np.abs(u), np.abs(v)) <= 0.28)
    if name == "triangle":
        return _half_planes(u, v, 3, 0.5) == 3
    # A five-pointed star is where at least four of the five lines through its points have the centre on the same side.
    return _half_planes(u, v, 5, math.cos(math.tau / 5)) >= 4


def _half_planes(u: Pixels, v: Pixels, num: int, distance: float) -> NDArray[np.int64]:
    """In how many of `num` half-planes, turned evenly about the centre and that far from it, each point lies."""
    count = np.zeros(u.shape, np.int64)
    for k in range(num):
        angle = math.tau * k / num
        count += u * np.float32(math.cos(angle)) + v * np.float32(math.sin(angle)) <= distance
    return count


def _free_place(rng: np.random.Generator, size: int, side: float, taken: list[tuple[float, float, float]]) -> tuple[float, float]:
    """The place of five random ones that overlaps least with what is there: objects do cover each other, but not as a rule."""
    places = (rng.random((5, 2)) * (size - 0.7 * side) + 0.35 * side).tolist()  # at most 15 % sticks out

    def overlap(place: list[float]) -> float:
        gaps = (max(abs(place[0] - cx), abs(place[1] - cy)) / (side + other) for cx, cy, other in taken)
        return sum(max(0.0, 0.5 - gap) for gap in gaps)

    cx, cy = min(places, key=overlap)
    return cx, cy


def _object(rng: np.random.Generator, size: int, label: int, taken: list[tuple[float, float, float]]) -> _Stamp:
    side = size * 0.2 * (0.6 / 0.2) ** float(rng.random())  # 20 to 60 % of the picture, each octave alike
    cx, cy = _free_place(rng, size, side, taken)
    taken.append((cx, cy, side))
    angle, stretch = math.tau * float(rng.random()), 1.0 + 0.15 * float(rng.random())
    u, v, top, left = _grid(cx, cy, side / 2 * stretch, size)
    cos, sin = np.float32(math.cos(angle)), np.float32(math.sin(angle))
    radius = np.float32(side / 2)
    along, across = (u * cos + v * sin) / (radius * np.float32(stretch)), (v * cos - u * sin) / radius
    turn = math.tau * float(rng.random())  # the stretch is not tied to the shape's own axes
    cos, sin = np.float32(math.cos(turn)), np.float32(math.sin(turn))
    return _Stamp(_inside(label, along * cos + across * sin, across * cos - along * sin), top, left)


def _distractor(rng: np.random.Generator, size: int) -> _Stamp:
    """A thin line or a wobbly blob."""
    cx, cy = (rng.random(2) * size).tolist()
    angle = math.tau * float(rng.random())
    if rng.random() < 0.6:
        length, width = size * (0.1 + 0.35 * float(rng.random())), 0.8 + 2.2 * float(rng.random())
        u, v, top, left = _grid(cx, cy, length, size)
        cos, sin = np.float32(math.cos(angle)), np.float32(math.sin(angle))
        bend = np.float32((float(rng.random()) - 0.5) / length)
        along, across = u * cos + v * sin, v * cos - u * sin
        return _Stamp((np.abs(along) <= length) & (np.abs(across - bend * along * along) <= width), top, left)
    radius, lobes = size * (0.04 + 0.1 * float(rng.random())), int(rng.integers(2, 4))  # four would be a cross
    u, v, top, left = _grid(cx, cy, 1.5 * radius, size)
    wobble = np.cos(np.arctan2(v.astype(np.float64), u.astype(np.float64)) * lobes + angle).astype(np.float32)
    return _Stamp(u * u + v * v <= (np.float32(radius) * (1 + np.float32(0.5) * wobble)) ** 2, top, left)


def _grid(cx: float, cy: float, reach: float, size: int) -> tuple[Pixels, Pixels, int, int]:
    """Sample points, relative to the centre, of the part of the picture within `reach` of it; and that patch's top and left in px."""
    left, right = max(0, math.floor(cx - reach)), min(size, math.ceil(cx + reach) + 1)
    top, bottom = max(0, math.floor(cy - reach)), min(size, math.ceil(cy + reach) + 1)
    x = left + (np.arange((right - left) * _SAMPLES) + 0.5) / _SAMPLES - cx
    y = top + (np.arange((bottom - top) * _SAMPLES) + 0.5) / _SAMPLES - cy
    return *(a.astype(np.float32) for a in np.meshgrid(x, y)), top, left  # type: ignore[return-value]


# --- paint ------------------------------------------------------------------------------------------------------------------------------


def _paint(canvas: Pixels, stamp: _Stamp, rng: np.random.Generator) -> _Stamp:
    """Blend a stamp in a random fill into the canvas [H, W, 3]; returns the stamp."""
    coverage = stamp.coverage
    h, w = coverage.shape
    patch = canvas[stamp.top : stamp.top + h, stamp.left : stamp.left + w]
    below = canvas[stamp.top + h // 2, stamp.left + w // 2]
    patch += coverage[..., None] * (_fill(rng, h, w, below) - patch)
    return stamp


def _fill(rng: np.random.Generator, h: int, w: int, below: Pixels) -> Pixels:
    """[h, w, 3]: one colour, a gradient, or two-coloured stripes; the first colour stands out from the colour `below`."""
    first, second = rng.random((2, 3), dtype=np.float32)
    channel = int(rng.integers(3))
    if float(np.abs(first - below).max()) < 0.6:
        first[channel] = below[channel] - 0.6 if below[channel] > 0.5 else below[channel] + 0.6
    kind, angle, period = float(rng.random()), math.tau * float(rng.random()), 4 + 8 * float(rng.random())
    if kind < 0.7:
        return np.broadcast_to(first, (h, w, 3))
    ramp = _ramp(h, w, angle)
    if kind < 0.9:
        mix = ramp / np.float32(max(h, w))
    else:
        mix = (np.mod(ramp, np.float32(period)) < period / 2).astype(np.float32) * np.float32(0.3)
    return first + np.clip(mix, 0, 1)[..., None] * (second - first)


def _ramp(h: int, w: int, angle: float) -> Pixels:
    """Distance in px along a direction, [h, w], from a corner so that it starts at about 0."""
    x, y = np.arange(w, dtype=np.float32), np.arange(h, dtype=np.float32)
    cos, sin = math.cos(angle), math.sin(angle)
    x, y = (x if cos >= 0 else x - (w - 1)), (y if sin >= 0 else y - (h - 1))
    return x * np.float32(cos) + (y * np.float32(sin))[:, None]


def _background(rng: np.random.Generator, size: int) -> Pixels:
    """[H, W, 3]: a gradient of two colours with soft clouds, and in a quarter of the pictures stripes over it."""
    first, second = rng.random((2, 3), dtype=np.float32)
    second = first + np.float32(0.5) * (second - first)
    ramp = _ramp(size, size, math.tau * float(rng.random())) / np.float32(size)
    canvas = first + np.clip(ramp, 0, 1)[..., None] * (second - first)
    for cells, strength in ((4, 0.15), (16, 0.06), (48, 0.03)):
        grid = rng.random((cells + 1, cells + 1, 3), dtype=np.float32) - np.float32(0.5)
        canvas += np.float32(strength * 2 * float(rng.random())) * _enlarged(grid, size)
    if rng.random() < 0.25:
        period, strength = 6 + 20 * float(rng.random()), 0.03 + 0.1 * float(rng.random())
        stripes = np.mod(_ramp(size, size, math.tau * float(rng.random())), np.float32(period)) < period / 2
        canvas += stripes[..., None] * np.float32(strength)
    return canvas


def _enlarged(grid: Pixels, size: int) -> Pixels:
    """Bilinear enlargement of [c + 1, c + 1, 3] to [size, size, 3]."""
    place = (np.arange(size, dtype=np.float32) + np.float32(0.5)) * np.float32((grid.shape[0] - 1) / size)
    low = place.astype(np.int64)
    part = place - low
    wide = grid[:, low] + part[:, None] * (grid[:, low + 1] - grid[:, low])  # along x first, while there are few rows
    return wide[low] + part[:, None, None] * (wide[low + 1] - wide[low])


def _lit(rng: np.random.Generator, canvas: Pixels) -> Pixels:
    """Light that falls from one side, and a brightness."""
    size = canvas.shape[0]
    ramp = _ramp(size, size, math.tau * float(rng.random())) / np.float32(size)
    light = np.float32(0.75 + 0.35 * float(rng.random())) + np.float32(0.4 * (float(rng.random()) - 0.5)) * ramp
    return np.clip(canvas * light[..., None], 0, 1)


def _degraded(rng: np.random.Generator, picture: Pixels) -> Pixels:
    """A slight blur in half of the pictures, and noise of sigma up to 8 of 255 in all."""
    if rng.random() < 0.5:
        for axis in (0, 1):
            picture = (np.roll(picture, 1, axis) + 2 * picture + np.roll(picture, -1, axis)) * np.float32(0.25)
    sigma = np.float32(8 / 255 * float(rng.random()))
    return picture + sigma * rng.standard_normal(picture.shape, dtype=np.float32)


def _to_uint8(picture: Pixels) -> NDArray[np.uint8]:
    return (np.clip(picture, 0, 1) * np.float32(255) + np.float32(0.5)).astype(np.uint8)


# --- who covers whom --------------------------------------------------------------------------------------------------------------------


def _mask(stamp: _Stamp, size: int) -> Mask:
    """[H, W], pixels at least half inside."""
    mask = np.zeros((size, size), bool)
    coverage = stamp.coverage
    h, w = coverage.shape
    mask[stamp.top : stamp.top + h, stamp.left : stamp.left + w] = coverage >= 0.5
    return mask


def _cover(masks: list[Mask], stamp: _Stamp) -> None:
    """Take what a stamp drawn on top hides out of the masks below it."""
    coverage = stamp.coverage
    h, w = coverage.shape
    for mask in masks:
        mask[stamp.top : stamp.top + h, stamp.left : stamp.left + w] &= coverage < 0.5
