"""One picture's truth beside its predictions, in the one order that every figure of the metric is computed from.

D detections of a picture, G true boxes of it.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from libreyolo.interfaces.batch import Detections


@dataclass(frozen=True)
class Predicted:
    """The detections of one picture, best first: boxes float32 [D, 4] xyxy in original pixels, scores float32 [D], labels int64 [D]."""

    boxes: np.ndarray
    scores: np.ndarray
    labels: np.ndarray


@dataclass(frozen=True)
class Picture:
    """Truth and predictions of one picture.

    index: its place in the dataset.
    truth_boxes: float32 [G, 4] xyxy in pixels of the original picture; truth_labels: int64 [G].
    """

    index: int
    predicted: Predicted
    truth_boxes: np.ndarray
    truth_labels: np.ndarray


@dataclass(frozen=True)
class DetectionSample:
    """A picture to show: what was there and what was seen.

    image: uint8 [H, W, 3] RGB, the original picture.
    truth_boxes: [G, 4] xyxy in its pixels; truth_labels: [G].
    detections: what the network predicted, in the same pixels.
    mistakes: how wrong it is (see `confusion.mistakes`); higher is worse.
    """

    image: np.ndarray
    truth_boxes: np.ndarray
    truth_labels: np.ndarray
    detections: Detections
    title: str = ""
    mistakes: float = 0.0


def canonical(detections: Detections, max_det: int) -> tuple[Predicted, int]:
    """Return the `max_det` best finite detections and how many rows were dropped because a number in them was not finite.

    Sorted by falling score; ties are settled by class and coordinates, so the order in which a decoder wrote them does not matter.
    """
    boxes = detections.boxes.detach().cpu().numpy().astype(np.float32).reshape(-1, 4)
    scores = detections.scores.detach().cpu().numpy().astype(np.float32).reshape(-1)
    labels = detections.labels.detach().cpu().numpy().astype(np.int64).reshape(-1)
    finite = np.isfinite(boxes).all(axis=1) & np.isfinite(scores)
    num_dropped = int((~finite).sum())
    if num_dropped:
        boxes, scores, labels = boxes[finite], scores[finite], labels[finite]
    order = np.lexsort((boxes[:, 3], boxes[:, 2], boxes[:, 1], boxes[:, 0], labels, -scores))[:max_det]
    return Predicted(boxes[order], scores[order], labels[order]), num_dropped


def pairwise_iou(boxes_D4: np.ndarray, boxes_G4: np.ndarray) -> np.ndarray:
    """Return the IoU of every pair, float64 [D, G] in [0, 1]; 0 where the union has no area."""
    a, b = boxes_D4.astype(np.float64)[:, None], boxes_G4.astype(np.float64)[None]
    sides = np.clip(np.minimum(a[..., 2:], b[..., 2:]) - np.maximum(a[..., :2], b[..., :2]), 0.0, None)
    overlap = sides[..., 0] * sides[..., 1]
    union = area(a) + area(b) - overlap
    return np.divide(overlap, union, out=np.zeros_like(overlap), where=union > 0)


def area(boxes: np.ndarray) -> np.ndarray:
    """Return width * height of xyxy boxes [..., 4]."""
    return (boxes[..., 2] - boxes[..., 0]) * (boxes[..., 3] - boxes[..., 1])
