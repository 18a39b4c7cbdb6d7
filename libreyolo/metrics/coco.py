"""COCO's average precision and recall, from arrays in memory, by faster-coco-eval (the reference; Lin et al., arXiv:1405.0312).

T 10 IoU thresholds .50:.05:.95, R 101 recall levels 0:.01:1, K classes, A area ranges (all, small, medium, large), M limits of detections.

Where COCO differs from label files: COCO's crowd regions are not read (no true box is ever "ignored"), and an object's size is its box's
area, never its mask's. So one set of boxes gives one result, whether it came from .txt files or from a json.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from libreyolo.metrics.pictures import Picture, area

log = logging.getLogger(__name__)

COCO_MAX_DETS = 100  # COCO's AP counts the 100 best detections of a class in a picture
AREAS = ("all", "small", "medium", "large")
GROUP_DETECTIONS = 200_000
EMPTY = -1.0  # COCO's mark for "nothing to measure"


@dataclass(frozen=True)
class CocoResult:
    """COCO's tables; -1 where a class has no true box in a range.

    precision: float64 [T, R, K, A, M]. recall: float64 [T, K, A, M]. max_dets: the M limits, rising.
    """

    precision: np.ndarray
    recall: np.ndarray
    max_dets: tuple[int, ...]

    def ap(self, *, iou: float | None = None, size: str = "all") -> float:
        """Return AP, mean over classes with truth (and over IoU thresholds unless one is given); -1 where no class has any."""
        table = self.precision[:, :, :, AREAS.index(size), self._coco_limit()]
        return _mean_of_known(table if iou is None else table[_threshold(iou)])

    def ap_per_class(self, *, iou: float | None = None) -> np.ndarray:
        """Return AP of each class, float64 [K]; -1 for a class without truth."""
        table = self.precision[:, :, :, 0, self._coco_limit()]
        if iou is not None:
            table = table[_threshold(iou)][None]
        return np.array([_mean_of_known(table[:, :, k]) for k in range(table.shape[2])])

    def ar(self, *, max_det: int | None = None, size: str = "all") -> float:
        """Return AR at `max_det` detections of a class in a picture (COCO's 100 if not given); -1 where no class has truth."""
        limit = self._coco_limit() if max_det is None else self.max_dets.index(max_det)
        return _mean_of_known(self.recall[:, :, AREAS.index(size), limit])

    def precision_at_half(self) -> np.ndarray:
        """Return precision at IoU .5 over the 101 recall levels, float64 [K, R]."""
        return self.precision[0, :, :, 0, self._coco_limit()].T

    def _coco_limit(self) -> int:
        return self.max_dets.index(COCO_MAX_DETS)


def evaluate(pictures: Sequence[Picture], num_classes: int, max_det: int) -> CocoResult:
    """Return COCO's tables.

    `pictures` must come sorted by index: equal scores in different pictures are ranked in that order. The limits are 1, 10, 100 and
    `max_det`; AP, and AR by size, are COCO's own, at 100.
    """
    max_dets = tuple(sorted({1, 10, COCO_MAX_DETS, max_det}))
    precision = np.full((10, 101, num_classes, len(AREAS), len(max_dets)), EMPTY)
    recall = np.full((10, num_classes, len(AREAS), len(max_dets)), EMPTY)
    for classes in _class_groups(pictures, num_classes):
        tables = _evaluate_classes(pictures, classes, max_dets)
        precision[:, :, classes], recall[:, classes] = tables
    return CocoResult(precision, recall, max_dets)


def _class_groups(pictures: Sequence[Picture], num_classes: int) -> list[list[int]]:
    """Return the classes that have truth, in groups of few enough detections: classes don't depend on each other, and the evaluator needs
    about 2 kB for each box (3 GB for COCO's 5000 pictures at 300 detections)."""
    num_true, num_predicted = np.zeros(num_classes, np.int64), np.zeros(num_classes, np.int64)
    for picture in pictures:
        num_true += np.bincount(picture.truth_labels, minlength=num_classes)
        num_predicted += np.bincount(picture.predicted.labels, minlength=num_classes)
    groups: list[list[int]] = []
    size = 0
    for k in np.flatnonzero(num_true).tolist():
        if not groups or size + num_predicted[k] > GROUP_DETECTIONS:
            groups.append([])
            size = 0
        groups[-1].append(k)
        size += int(num_predicted[k])
    return groups


def _evaluate_classes(pictures: Sequence[Picture], classes: list[int], max_dets: tuple[int, ...]) -> tuple[np.ndarray, np.ndarray]:
    """Return precision [T, R, k, A, M] and recall [T, k, A, M] of k classes."""
    # Imported where it is needed: it loads slowly, and training without validation never needs it.
    from faster_coco_eval import COCO, COCOeval_faster

    def indexed(annotations: list[dict[str, Any]]) -> Any:
        coco = COCO()
        coco.dataset = {
            "images": [{"id": i, "width": 0, "height": 0} for i in range(1, len(pictures) + 1)],
            "categories": [{"id": k, "name": str(k)} for k in classes],
            "annotations": annotations,
        }
        coco.createIndex()
        return coco

    evaluator = COCOeval_faster(
        indexed(_records(pictures, classes, truth=True)),
        indexed(_records(pictures, classes, truth=False)),
        "bbox",
        print_function=log.debug,
    )
    evaluator.params.maxDets = list(max_dets)
    evaluator.evaluate()
    evaluator.accumulate()
    shape = (len(classes), len(AREAS), len(max_dets))
    precision = np.asarray(evaluator.eval["precision"], dtype=np.float64).reshape(10, 101, *shape)
    return precision, np.asarray(evaluator.eval["recall"], dtype=np.float64).reshape(10, *shape)


def _records(pictures: Sequence[Picture], classes: list[int], *, truth: bool) -> list[dict[str, Any]]:
    """Return COCO annotations of some classes; ids start at 1 because the evaluator reads 0 as "no match"."""
    records: list[dict[str, Any]] = []
    for image_id, picture in enumerate(pictures, start=1):
        labels = picture.truth_labels if truth else picture.predicted.labels
        rows = np.flatnonzero(np.isin(labels, classes))
        boxes = (picture.truth_boxes if truth else picture.predicted.boxes)[rows].astype(np.float64)
        scores = [1.0] * len(rows) if truth else picture.predicted.scores[rows].tolist()
        xywh = np.concatenate([boxes[:, :2], boxes[:, 2:] - boxes[:, :2]], axis=1).tolist()
        for box, size, label, score in zip(xywh, area(boxes).tolist(), labels[rows].tolist(), scores, strict=True):
            record = {"id": len(records) + 1, "image_id": image_id, "category_id": label, "bbox": box, "area": size, "iscrowd": 0}
            if not truth:
                record["score"] = score
            records.append(record)
    return records


def _threshold(iou: float) -> int:
    return round((iou - 0.5) / 0.05)


def _mean_of_known(table: np.ndarray) -> float:
    known = table[table > EMPTY]
    return float(known.mean()) if known.size else EMPTY
