"""Precision, recall and F1 against confidence, at IoU .5.

D detections of all pictures, K classes, S steps of the confidence axis.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from libreyolo.metrics.pictures import Picture, pairwise_iou

MATCH_IOU = 0.5
NUM_STEPS = 501


@dataclass(frozen=True)
class Hits:
    """Every detection of a dataset, best first (equal scores by picture, then by place in it), and whether it found a true box.

    scores: float64 [D]. labels: int64 [D]. hit: bool [D]. instances: int64 [K], true boxes of each class.
    """

    scores: np.ndarray
    labels: np.ndarray
    hit: np.ndarray
    instances: np.ndarray


@dataclass(frozen=True)
class OperatingPoint:
    """The confidence where the mean F1 over classes with truth is best, and what every class does there ([K] each, 0 without truth)."""

    confidence: float
    mean_f1: float
    precision: np.ndarray
    recall: np.ndarray


def find_hits(pictures: Sequence[Picture], num_classes: int) -> Hits:
    """Match detections to truth as COCO does at IoU .5: best score first, each takes the free box of its class that it overlaps most."""
    scores, labels, hits = [np.zeros(0, np.float64)], [np.zeros(0, np.int64)], [np.zeros(0, bool)]
    instances = np.zeros(num_classes, np.int64)
    for picture in pictures:
        scores.append(picture.predicted.scores.astype(np.float64))
        labels.append(picture.predicted.labels)
        hits.append(_hits_of_picture(picture))
        instances += np.bincount(picture.truth_labels, minlength=num_classes)
    all_scores = np.concatenate(scores)
    order = np.argsort(-all_scores, kind="stable")
    return Hits(all_scores[order], np.concatenate(labels)[order], np.concatenate(hits)[order], instances)


def _hits_of_picture(picture: Picture) -> np.ndarray:
    predicted = picture.predicted
    hit = np.zeros(len(predicted.scores), bool)
    if not len(picture.truth_boxes) or not len(hit):
        return hit
    iou = pairwise_iou(predicted.boxes, picture.truth_boxes)
    iou[predicted.labels[:, None] != picture.truth_labels[None]] = 0.0
    for d in np.flatnonzero((iou >= MATCH_IOU).any(axis=1)):
        best = int(iou[d].argmax())
        if iou[d, best] >= MATCH_IOU:
            hit[d] = True
            iou[:, best] = 0.0  # taken
    return hit


def best_operating_point(hits: Hits) -> OperatingPoint:
    """Return the confidence with the best mean F1 among all scores that occur; the highest one where several are equally good.

    A detection counts when its score is at least the confidence. A class with truth and no such detection has precision 0. Without truth or
    detections the point is confidence 0 with F1 0.
    """
    num_classes = len(hits.instances)
    with_truth = hits.instances > 0
    if not with_truth.any() or not len(hits.scores):
        return OperatingPoint(0.0, 0.0, np.zeros(num_classes), np.zeros(num_classes))
    # A detection changes the F1 of its own class only, so the sum over classes is a running sum of changes, in falling order of score.
    change = np.zeros(len(hits.scores))
    for k in np.flatnonzero(with_truth):
        mine = np.flatnonzero(hits.labels == k)
        # F1 = 2 TP / (detections + true boxes)
        f1 = 2.0 * np.cumsum(hits.hit[mine]) / (np.arange(1, len(mine) + 1) + hits.instances[k])
        change[mine] = np.diff(f1, prepend=0.0)
    mean_f1 = np.round(np.cumsum(change) / with_truth.sum(), 12)  # rounded: a tie must not be settled by the last bit of a sum
    last_of_score = np.append(hits.scores[1:] != hits.scores[:-1], True)
    best = int(np.where(last_of_score, mean_f1, -1.0).argmax())
    above = np.arange(len(hits.scores)) <= best
    num_above = np.bincount(hits.labels[above], minlength=num_classes)
    num_hits = np.bincount(hits.labels[above & hits.hit], minlength=num_classes)
    precision = np.where(with_truth, num_hits / np.maximum(num_above, 1), 0.0)
    recall = num_hits / np.maximum(hits.instances, 1)
    return OperatingPoint(float(hits.scores[best]), float(mean_f1[best]), precision, recall)


def confidence_curves(hits: Hits) -> dict[str, np.ndarray]:
    """Return "confidence" [S] over [0, 1] and "precision", "recall", "f1" [K, S] at each; 0 where a class has no truth or no detection."""
    confidence = np.linspace(0.0, 1.0, NUM_STEPS)
    shape = (len(hits.instances), NUM_STEPS)
    num_above, num_hits = np.zeros(shape), np.zeros(shape)
    for k in range(shape[0]):
        mine = hits.labels == k
        rising = hits.scores[mine][::-1]
        above = len(rising) - np.searchsorted(rising, confidence, side="left")
        num_above[k] = above
        num_hits[k] = np.concatenate([[0], np.cumsum(hits.hit[mine])])[above]
    instances = hits.instances[:, None]
    known = instances > 0
    return {
        "confidence": confidence,
        "precision": np.where(known, num_hits / np.maximum(num_above, 1), 0.0),
        "recall": np.where(known, num_hits / np.maximum(instances, 1), 0.0),
        "f1": np.where(known, 2 * num_hits / np.maximum(num_above + instances, 1), 0.0),
    }
