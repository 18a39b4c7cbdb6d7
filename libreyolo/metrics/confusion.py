"""Which class is taken for which, and which pictures go wrong most.

K classes; row and column K of the matrix are the background.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from libreyolo.metrics.pictures import Picture, pairwise_iou

CONFIDENCE = 0.25  # what predict() shows
MATCH_IOU = 0.45


@dataclass(frozen=True)
class Match:
    """One picture's confident detections set against its truth.

    pairs: int64 [M, 2] of (detection, true box).
    false: int64, detections without a true box. missed: int64, true boxes without a detection.
    """

    pairs: np.ndarray
    false: np.ndarray
    missed: np.ndarray


def match(picture: Picture) -> Match:
    """Pair detections of confidence .25 or more with true boxes, whatever their classes.

    Greedy and one to one: of all pairs with an IoU of at least .45 the one that overlaps most comes first; equal overlaps go to the better
    detection.
    """
    num_confident = int((picture.predicted.scores >= CONFIDENCE).sum())  # best first, so these are the first rows
    iou = pairwise_iou(picture.predicted.boxes[:num_confident], picture.truth_boxes)
    candidates = np.argwhere(iou >= MATCH_IOU)
    order = np.argsort(-iou[candidates[:, 0], candidates[:, 1]], kind="stable")
    free_detection, free_truth = np.ones(num_confident, bool), np.ones(len(picture.truth_boxes), bool)
    pairs = []
    for d, g in candidates[order]:
        if free_detection[d] and free_truth[g]:
            free_detection[d] = free_truth[g] = False
            pairs.append((d, g))
    return Match(np.array(pairs, np.int64).reshape(-1, 2), np.flatnonzero(free_detection), np.flatnonzero(free_truth))


def confusion_matrix(pictures: Sequence[Picture], matches: Sequence[Match], num_classes: int) -> np.ndarray:
    """Return counts, int64 [K + 1, K + 1]: row = predicted, column = true; last column false detections, last row missed boxes."""
    counts = np.zeros((num_classes + 1, num_classes + 1), np.int64)
    for picture, found in zip(pictures, matches, strict=True):
        labels, truth = picture.predicted.labels, picture.truth_labels
        np.add.at(counts, (labels[found.pairs[:, 0]], truth[found.pairs[:, 1]]), 1)
        np.add.at(counts, (labels[found.false], num_classes), 1)
        np.add.at(counts, (num_classes, truth[found.missed]), 1)
    return counts


def mistakes(picture: Picture, found: Match) -> float:
    """Return how wrong a picture is: 1 for each missed box and each wrong class, and for each false detection its score."""
    wrong_class = picture.predicted.labels[found.pairs[:, 0]] != picture.truth_labels[found.pairs[:, 1]]
    return float(len(found.missed) + wrong_class.sum() + picture.predicted.scores[found.false].sum(dtype=np.float64))
