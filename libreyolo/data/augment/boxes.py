"""Boxes follow the pixels: the same matrices that warp a picture move its boxes, on the CPU in float64.

k boxes of one source picture, N boxes of an output picture.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from libreyolo.data.augment.matrices import corners, project
from libreyolo.data.augment.plan import Plan, Slot

MIN_SIDE_PX = 2.0
MIN_AREA_LEFT = 0.1
MAX_ASPECT = 100.0

BoxesOf = Callable[[int], tuple[np.ndarray, np.ndarray]]
"""Returns (float32 [k, 4] xyxy in the picture's unit square, int64 [k]) of a picture of the dataset."""


def place_boxes(plan: Plan, boxes_of: BoxesOf, hw: tuple[int, int], max_labels: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the output picture's boxes: float32 [N, 4] xyxy in output pixels, inside the output, and int64 [N]; [0, 4] and [0] where none.

    A box is cut to what its slot shows, its corners are mapped, and their envelope is cut to the output. It is dropped when a side is under
    2 px, when less than a tenth of the area that it would have uncut is left, or when one side is over 100 times the other. Where more than
    `max_labels` are left, the largest stay, in their order.
    """
    placed = [_place(slot, *boxes_of(slot.picture), hw) for slot in plan.slots]
    if not placed:
        return np.zeros((0, 4), np.float32), np.zeros(0, np.int64)
    boxes = np.concatenate([b for b, _ in placed])
    labels = np.concatenate([c for _, c in placed])
    if len(boxes) > max_labels:
        area = (boxes[:, 2] - boxes[:, 0]) * (boxes[:, 3] - boxes[:, 1])
        largest = np.sort(np.argsort(-area, kind="stable")[:max_labels])
        boxes, labels = boxes[largest], labels[largest]
    return boxes.astype(np.float32), labels.astype(np.int64)


def _place(slot: Slot, boxes: np.ndarray, labels: np.ndarray, hw: tuple[int, int]) -> tuple[np.ndarray, np.ndarray]:
    if len(boxes) == 0:
        return np.zeros((0, 4)), np.zeros(0, np.int64)
    x0, y0, x1, y1 = slot.shown
    unit = boxes.astype(np.float64)
    uncut, _ = _envelope(slot.to_output, unit)
    shown = np.clip(unit, [x0, y0, x0, y0], [x1, y1, x1, y1])
    moved, divisor = _envelope(slot.to_output, shown)
    inside = np.clip(moved, 0.0, [hw[1], hw[0], hw[1], hw[0]])

    width, height = inside[:, 2] - inside[:, 0], inside[:, 3] - inside[:, 1]
    uncut_area = (uncut[:, 2] - uncut[:, 0]) * (uncut[:, 3] - uncut[:, 1])
    keep = (np.minimum(width, height) >= MIN_SIDE_PX) & (width * height >= MIN_AREA_LEFT * uncut_area)
    keep &= np.maximum(width, height) <= MAX_ASPECT * np.maximum(np.minimum(width, height), 1e-9)
    keep &= divisor > 0.01  # near the horizon an envelope says nothing about the object
    return inside[keep], labels[keep]


def _envelope(matrix: np.ndarray, boxes: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the axis-aligned envelope [k, 4] of each mapped box and the smallest divisor of its corners [k]."""
    points, divisor = project(matrix, corners(boxes))
    return np.concatenate([points.min(axis=1), points.max(axis=1)], axis=1), divisor.min(axis=1)
