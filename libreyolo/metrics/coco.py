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


@dataclass(frozen=True)
class Part:
    """COCO's tables of some classes. precision: float64 [T, R, k, A, M]. recall: float64 [T, k, A, M]."""

    classes: list[int]
    precision: np.ndarray
    recall: np.ndarray


def evaluate(pictures: Sequence[Picture], num_classes: int, max_det: int) -> CocoResult:
    """Return COCO's tables.

    `pictures` must come sorted by index: equal scores in different pictures are ranked in that order. The limits are 1, 10, 100 and
    `max_det`; AP, and AR by size, are COCO's own, at 100.
    """
    return put_together([evaluate_part(pictures, num_classes, max_det)], num_classes, max_det)


def evaluate_part(pictures: Sequence[Picture], num_classes: int, max_det: int, number: int = 0, of: int = 1) -> Part:
    """Return the tables of part `number` of `of` of the classes: they don't depend on each other, so the parts can be worked out side by side.

    Each part has about as many boxes; classes without truth are in none.
    """
    limits = _limits(max_det)
    truth, predicted = _Boxes.of(pictures, truth=True), _Boxes.of(pictures, truth=False)
    sizes = np.bincount(predicted.labels, minlength=num_classes)
    known = np.bincount(truth.labels, minlength=num_classes) > 0
    mine = _share(sizes, known, number, of)
    precision = np.full((10, 101, len(mine), len(AREAS), len(limits)), EMPTY)
    recall = np.full((10, len(mine), len(AREAS), len(limits)), EMPTY)
    for places in _groups(sizes[mine]):
        classes = [mine[place] for place in places]
        precision[:, :, places], recall[:, places] = _evaluate_classes(len(pictures), truth, predicted, classes, limits)
    return Part(mine, precision, recall)


def put_together(parts: Sequence[Part], num_classes: int, max_det: int) -> CocoResult:
    """Return the tables of all classes from all parts."""
    limits = _limits(max_det)
    precision = np.full((10, 101, num_classes, len(AREAS), len(limits)), EMPTY)
    recall = np.full((10, num_classes, len(AREAS), len(limits)), EMPTY)
    for part in parts:
        precision[:, :, part.classes], recall[:, part.classes] = part.precision, part.recall
    return CocoResult(precision, recall, limits)


def _limits(max_det: int) -> tuple[int, ...]:
    return tuple(sorted({1, 10, COCO_MAX_DETS, max_det}))


def _share(sizes: np.ndarray, known: np.ndarray, number: int, of: int) -> list[int]:
    """Return the classes of part `number`, rising: the largest class first, each goes to the part that has the fewest boxes so far."""
    loads = np.zeros(of, np.int64)
    mine: list[int] = []
    for k in np.argsort(-sizes, kind="stable").tolist():
        if known[k]:
            taker = int(loads.argmin())
            loads[taker] += sizes[k] + 1
            if taker == number:
                mine.append(k)
    return sorted(mine)


def _groups(sizes: np.ndarray) -> list[list[int]]:
    """Return the places of classes in groups of few enough detections: the evaluator needs about 2 kB for each box (3 GB for COCO's 5000
    pictures at 300 detections)."""
    groups: list[list[int]] = []
    held = 0
    for place, size in enumerate(sizes.tolist()):
        if not groups or held + size > GROUP_DETECTIONS:
            groups.append([])
            held = 0
        groups[-1].append(place)
        held += size
    return groups


@dataclass(frozen=True)
class _Boxes:
    """The boxes of all pictures in their order. image_ids: int64 [N], from 1. xywh: float64 [N, 4]. areas, scores: float64 [N]. labels: int64 [N]."""

    image_ids: np.ndarray
    xywh: np.ndarray
    areas: np.ndarray
    labels: np.ndarray
    scores: np.ndarray | None

    @classmethod
    def of(cls, pictures: Sequence[Picture], *, truth: bool) -> _Boxes:
        """Gather the true boxes of the pictures, or the predicted ones."""
        each = [(p.truth_boxes, p.truth_labels) if truth else (p.predicted.boxes, p.predicted.labels) for p in pictures]
        boxes = np.concatenate([np.zeros((0, 4)), *(boxes.astype(np.float64) for boxes, _ in each)])
        return cls(
            image_ids=np.repeat(np.arange(1, len(pictures) + 1), [len(labels) for _, labels in each]),
            xywh=np.concatenate([boxes[:, :2], boxes[:, 2:] - boxes[:, :2]], axis=1),
            areas=area(boxes),
            labels=np.concatenate([np.zeros(0, np.int64), *(labels for _, labels in each)]),
            scores=None if truth else np.concatenate([np.zeros(0), *(p.predicted.scores for p in pictures)]),
        )

    def records(self, classes: list[int]) -> list[dict[str, Any]]:
        """Return COCO annotations of some classes; ids start at 1 because the evaluator reads 0 as "no match"."""
        rows = np.flatnonzero(np.isin(self.labels, classes))
        columns = [column[rows].tolist() for column in (self.image_ids, self.labels, self.xywh, self.areas)]
        records = [
            {"id": i, "image_id": image, "category_id": label, "bbox": box, "area": size, "iscrowd": 0}
            for i, (image, label, box, size) in enumerate(zip(*columns, strict=True), start=1)
        ]
        if self.scores is not None:
            for record, score in zip(records, self.scores[rows].tolist(), strict=True):
                record["score"] = score
        return records


def _evaluate_classes(
    num_pictures: int, truth: _Boxes, predicted: _Boxes, classes: list[int], limits: tuple[int, ...]
) -> tuple[np.ndarray, np.ndarray]:
    """Return precision [T, R, k, A, M] and recall [T, k, A, M] of k classes."""
    # Imported where it is needed: it loads slowly, and training without validation never needs it.
    from faster_coco_eval import COCO, COCOeval_faster

    def indexed(annotations: list[dict[str, Any]]) -> Any:
        coco = COCO()
        coco.dataset = {
            "images": [{"id": i, "width": 0, "height": 0} for i in range(1, num_pictures + 1)],
            "categories": [{"id": k, "name": str(k)} for k in classes],
            "annotations": annotations,
        }
        coco.createIndex()
        return coco

    evaluator = COCOeval_faster(
        indexed(truth.records(classes)),
        indexed(predicted.records(classes)),
        "bbox",
        print_function=log.debug,
    )
    evaluator.params.maxDets = list(limits)
    evaluator.evaluate()
    evaluator.accumulate()
    shape = (len(classes), len(AREAS), len(limits))
    precision = np.asarray(evaluator.eval["precision"], dtype=np.float64).reshape(10, 101, *shape)
    return precision, np.asarray(evaluator.eval["recall"], dtype=np.float64).reshape(10, *shape)


def _threshold(iou: float) -> int:
    return round((iou - 0.5) / 0.05)


def _mean_of_known(table: np.ndarray) -> float:
    known = table[table > EMPTY]
    return float(known.mean()) if known.size else EMPTY
