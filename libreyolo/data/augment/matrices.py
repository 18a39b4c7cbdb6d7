"""3x3 matrices that act on column vectors (x, y, 1) in continuous pixel coordinates: pixel i covers [i, i + 1), its centre is i + 0.5."""

from __future__ import annotations

import numpy as np

from libreyolo.data.augment.settings import AugmentSettings


def scale_shift(sx: float, sy: float, tx: float, ty: float) -> np.ndarray:
    """Return the map x' = sx * x + tx, y' = sy * y + ty, float64 [3, 3]."""
    return np.array([[sx, 0.0, tx], [0.0, sy, ty], [0.0, 0.0, 1.0]])


def flip(hw: tuple[int, int], *, horizontal: bool, vertical: bool) -> np.ndarray:
    """Return the mirror images of a picture of size hw, float64 [3, 3]; its own inverse."""
    h, w = hw
    return scale_shift(-1.0 if horizontal else 1.0, -1.0 if vertical else 1.0, w if horizontal else 0.0, h if vertical else 0.0)


def random_affine(rng: np.random.Generator, canvas_hw: tuple[int, int], settings: AugmentSettings) -> np.ndarray:
    """Draw the map from a canvas to the network input, float64 [3, 3].

    About the canvas's centre: perspective, then rotation and zoom, then shear; that centre lands within `translate` of the input's centre.
    A zoom of 1 shows the canvas's middle at its own size. Every knob is always drawn, so that one knob never moves another's draws.
    """
    h, w = settings.imgsz
    perspective = rng.uniform(-settings.perspective, settings.perspective, 2)
    angle = np.deg2rad(rng.uniform(-settings.degrees, settings.degrees))
    zoom = rng.uniform(*settings.mosaic_scale)
    shear = np.tan(np.deg2rad(rng.uniform(-settings.shear, settings.shear, 2)))
    shift = rng.uniform(0.5 - settings.translate, 0.5 + settings.translate, 2)

    centre = scale_shift(1.0, 1.0, -canvas_hw[1] / 2, -canvas_hw[0] / 2)
    tilt = np.eye(3)
    tilt[2, :2] = perspective
    cos, sin = zoom * np.cos(angle), zoom * np.sin(angle)
    rotate = np.array([[cos, sin, 0.0], [-sin, cos, 0.0], [0.0, 0.0, 1.0]])
    slant = np.array([[1.0, shear[0], 0.0], [shear[1], 1.0, 0.0], [0.0, 0.0, 1.0]])
    return scale_shift(1.0, 1.0, shift[0] * w, shift[1] * h) @ slant @ rotate @ tilt @ centre


def project(matrix: np.ndarray, points: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Map points [..., 2] by a 3x3 matrix: the points after division, and the divisors [...] (not positive: behind the viewer)."""
    mapped = points @ matrix[:, :2].T + matrix[:, 2]
    divisor = mapped[..., 2]
    safe = np.where(divisor > 1e-6, divisor, 1e-6)
    return mapped[..., :2] / safe[..., None], divisor


def corners(boxes: np.ndarray) -> np.ndarray:
    """Return the four corners [..., 4, 2] of boxes xyxy [..., 4]."""
    return boxes[..., [0, 1, 2, 1, 2, 3, 0, 3]].reshape(*boxes.shape[:-1], 4, 2)
