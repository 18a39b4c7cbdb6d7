"""Which class is taken for which, and which pictures go wrong most.

K classes; row and column K of the matrix are the background.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from libreyolo.metrics.pictures import Picture, pairwise_iou

CONFIDENCE = 0.25  # what predict() shows
MATCH_IOU = 0.45


class Scored(Protocol):
    """Predictions of a picture, best first: scores float32 [D] and labels int64 [D]."""

    @property
    def scores(self) -> np.ndarray: ...

    @property
    def labels(self) -> np.ndarray: ...


class Judged(Protocol):
    """A picture's predictions beside the class ids int64 [G] of its true objects."""

    @property
    def predicted(self) -> Scored: ...

    @property
    def truth_labels(self) -> np.ndarray: ...


@dataclass(frozen=True)
class Match:
    """One picture's confident predictions set against its truth.

    pairs: int64 [M, 2] of (prediction, true object).
    false: int64, predictions without a true object. missed: int64, true objects without a prediction.
    """

    pairs: np.ndarray
    false: np.ndarray
    missed: np.ndarray


def match(picture: Picture) -> Match:
    """Pair detections of confidence .25 or more with true boxes.

    Greedy and one to one, of all pairs with an IoU of at least .45: first those of one class, then those of two, so that a right detection is never
    called false because a wrong one fits better. Among them the one that overlaps most comes first; equal overlaps go to the better detection.
    """
    num_confident = int((picture.predicted.scores >= CONFIDENCE).sum())  # best first, so these are the first rows
    iou = pairwise_iou(picture.predicted.boxes[:num_confident], picture.truth_boxes)
    return pair_off(-iou, iou >= MATCH_IOU, picture)


def pair_off(distance: np.ndarray, allowed: np.ndarray, picture: Judged) -> Match:
    """Pair the first D predictions of a picture, best first, with its G true objects, one to one: pairs of one class before pairs of two, the nearest
    first; equal distances go to the better prediction.

    distance: [D, G]. allowed: bool [D, G], the pairs that may be.
    """
    apart = picture.predicted.labels[: len(distance), None] != picture.truth_labels[None]
    candidates = np.argwhere(allowed)
    d, g = candidates.T
    order = np.lexsort((distance[d, g], apart[d, g]))  # stable
    free_prediction, free_truth = np.ones(distance.shape[0], bool), np.ones(distance.shape[1], bool)
    pairs = []
    for prediction, truth in candidates[order]:
        if free_prediction[prediction] and free_truth[truth]:
            free_prediction[prediction] = free_truth[truth] = False
            pairs.append((prediction, truth))
    return Match(np.array(pairs, np.int64).reshape(-1, 2), np.flatnonzero(free_prediction), np.flatnonzero(free_truth))


def confusion_matrix(pictures: Sequence[Judged], matches: Sequence[Match], num_classes: int) -> np.ndarray:
    """Return counts, int64 [K + 1, K + 1]: row = predicted, column = true; last column false predictions, last row missed objects."""
    counts = np.zeros((num_classes + 1, num_classes + 1), np.int64)
    for picture, found in zip(pictures, matches, strict=True):
        labels, truth = picture.predicted.labels, picture.truth_labels
        np.add.at(counts, (labels[found.pairs[:, 0]], truth[found.pairs[:, 1]]), 1)
        np.add.at(counts, (labels[found.false], num_classes), 1)
        np.add.at(counts, (num_classes, truth[found.missed]), 1)
    return counts


def mistakes(picture: Judged, found: Match) -> float:
    """Return how wrong a picture is: 1 for each missed object and each wrong class, and for each false prediction its score."""
    wrong_class = picture.predicted.labels[found.pairs[:, 0]] != picture.truth_labels[found.pairs[:, 1]]
    return float(len(found.missed) + wrong_class.sum() + picture.predicted.scores[found.false].sum(dtype=np.float64))
