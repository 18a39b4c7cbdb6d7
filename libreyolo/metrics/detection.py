"""The detection metric: COCO's AP and the curves behind it, from states that ranks can merge.

P pictures, D detections of a picture, K classes.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from libreyolo.interfaces.batch import DetectionBatch, Detections
from libreyolo.metrics import coco, confusion, curves
from libreyolo.metrics.pictures import DetectionSample, Picture, Predicted, canonical

log = logging.getLogger(__name__)

Truth = Callable[[int], tuple[np.ndarray, np.ndarray]]


@dataclass(frozen=True)
class _Evaluation:
    """Everything computed from the pictures, once."""

    pictures: list[Picture]
    coco: coco.CocoResult | None  # None where there is no true box at all
    hits: curves.Hits
    point: curves.OperatingPoint
    matches: list[confusion.Match]
    mistakes: np.ndarray


class DetectionMetric:
    """Collects detections picture by picture; the result is equal to the bit whoever saw which picture and in whatever order.

    Only pictures that were updated count. Truth is asked for when the metric is computed, by the picture's place in the dataset; it is the
    same path for every kind of label file.

    precision and recall are means over the classes with truth, at IoU .5 and at the one confidence where the mean F1 is best (`best_conf`).
    AP and AR are COCO's (see `coco`). Without any true box, AP, AR, precision and recall are 0; an empty size range is -1, as in COCO.
    """

    def __init__(self, names: dict[int, str], truth: Truth, *, num_pictures: int, max_det: int = 300) -> None:
        """`names` are 0..K-1; `truth(index)` gives float32 [G, 4] xyxy in original pixels and int64 [G]; index < `num_pictures`."""
        self.names = names
        self.truth = truth
        self.num_pictures = num_pictures
        self.max_det = max_det
        self._predicted: dict[int, Predicted] = {}
        self._tables: coco.CocoResult | None = None  # put together from parts that ranks worked out
        self._evaluation: _Evaluation | None = None
        self._warned = False

    def update(self, batch: DetectionBatch, predictions: list[Detections]) -> None:
        """Take one batch's detections; pictures of weight 0 or seen before are left out, boxes that are not finite are dropped."""
        self._forget()
        for index, weight, detections in zip(batch.index.tolist(), batch.weight.tolist(), predictions, strict=True):
            if weight == 0 or index in self._predicted:
                continue
            if not 0 <= index < self.num_pictures:
                raise ValueError(f"picture {index} is not one of the {self.num_pictures} pictures of this dataset")
            predicted, num_dropped = canonical(detections, self.max_det)
            if num_dropped and not self._warned:
                self._warned = True
                log.warning("The network predicts numbers that are not finite (picture %d); those boxes are left out.", index)
            if len(predicted.labels) and not 0 <= predicted.labels.min() <= predicted.labels.max() < len(self.names):
                raise ValueError(f"picture {index} has a predicted class outside 0..{len(self.names) - 1}")
            self._predicted[index] = predicted

    def state(self) -> dict[str, np.ndarray]:
        """Return index, count int64 [P]; boxes float32 [., 4], scores float32 [.], labels int64 [.] of all detections in that order."""
        index = sorted(self._predicted)
        found = [self._predicted[i] for i in index]
        return {
            "index": np.array(index, np.int64),
            "count": np.array([len(p.scores) for p in found], np.int64),
            "boxes": np.concatenate([np.zeros((0, 4), np.float32), *(p.boxes for p in found)]),
            "scores": np.concatenate([np.zeros(0, np.float32), *(p.scores for p in found)]),
            "labels": np.concatenate([np.zeros(0, np.int64), *(p.labels for p in found)]),
        }

    def merge(self, states: Sequence[dict[str, np.ndarray]]) -> None:
        """Replace the content by the union of the states; a picture in two of them counts once (the first is kept)."""
        merged: dict[int, Predicted] = {}
        for state in states:
            ends = np.cumsum(state["count"])
            for index, start, end in zip(state["index"].tolist(), (ends - state["count"]).tolist(), ends.tolist(), strict=True):
                rows = slice(start, end)
                merged.setdefault(index, Predicted(state["boxes"][rows], state["scores"][rows], state["labels"][rows]))
        self._predicted = merged
        self._forget()

    def part(self, number: int, of: int) -> coco.Part:
        """Return COCO's tables of a part of the classes: matching takes most of the time."""
        return coco.evaluate_part(self._pictures(), len(self.names), self.max_det, number, of)

    def take_parts(self, parts: Sequence[coco.Part]) -> None:
        """Take COCO's tables of all classes."""
        self._evaluation = None
        self._tables = coco.put_together(parts, len(self.names), self.max_det)

    def compute(self) -> dict[str, float]:
        """Return the validation columns of results.csv, in their order; never NaN."""
        done = self._evaluate()
        with_truth = done.hits.instances > 0
        precision = float(done.point.precision[with_truth].mean()) if with_truth.any() else 0.0
        recall = float(done.point.recall[with_truth].mean()) if with_truth.any() else 0.0
        table = done.coco
        ap, ap50, ap75 = (table.ap(), table.ap(iou=0.5), table.ap(iou=0.75)) if table else (0.0, 0.0, 0.0)
        columns = {
            "precision": precision,
            "recall": recall,
            "mAP50-95": ap,
            "mAP50": ap50,
            "mAP75": ap75,
            "precision(B)": precision,
            "recall(B)": recall,
            "mAP50(B)": ap50,
            "mAP50-95(B)": ap,
            **{f"mAP_{size}": table.ap(size=size) if table else coco.EMPTY for size in coco.AREAS[1:]},
            **{f"AR{limit}": table.ar(max_det=limit) if table else 0.0 for limit in (1, 10, 100)},
            "AR_max_det": table.ar(max_det=self.max_det) if table else 0.0,
            "max_det": float(self.max_det),
            **{f"AR_{size}": table.ar(size=size) if table else coco.EMPTY for size in coco.AREAS[1:]},
            "best_conf": done.point.confidence,
            "best_conf_f1": done.point.mean_f1,
        }
        return {f"metrics/{name}": value for name, value in columns.items()}

    def class_metrics(self) -> list[tuple[str, dict[str, float]]]:
        """Return each class's name with the two APs of its row of `per_class`, under the names of their means; -1 without truth, as there."""
        return [(row["name"], {"mAP50-95": row["AP50-95"], "mAP50": row["AP50"]}) for row in self.per_class()]

    def per_class(self) -> list[dict[str, Any]]:
        """Return one row for each class: name, pictures (with a true box of it), instances, P, R (at best_conf), AP50, AP50-95.

        AP is -1 for a class without truth; its P and R are 0.
        """
        done = self._evaluate()
        num_classes = len(self.names)
        pictures = np.zeros(num_classes, np.int64)
        for picture in done.pictures:
            pictures[np.unique(picture.truth_labels)] += 1
        empty = np.full(num_classes, coco.EMPTY)
        ap50 = done.coco.ap_per_class(iou=0.5) if done.coco else empty
        ap = done.coco.ap_per_class() if done.coco else empty
        return [
            {
                "name": self.names[k],
                "pictures": int(pictures[k]),
                "instances": int(done.hits.instances[k]),
                "P": float(done.point.precision[k]),
                "R": float(done.point.recall[k]),
                "AP50": float(ap50[k]),
                "AP50-95": float(ap[k]),
            }
            for k in range(num_classes)
        ]

    def curves(self) -> dict[str, Any]:
        """Return what pictures are drawn from; S confidences, R 101 recall levels.

        names, instances [K]; pr_recall [R], pr_precision [K, R] and ap50 [K] (-1 without truth); confidence [S] with precision, recall, f1
        [K, S]; best_conf; confusion [K + 1, K + 1] (row predicted, column true, last background); pictures and mistakes [P], by index.
        """
        done = self._evaluate()
        num_classes = len(self.names)
        return {
            "names": dict(self.names),
            "instances": done.hits.instances,
            "pr_recall": np.linspace(0.0, 1.0, 101),
            "pr_precision": done.coco.precision_at_half() if done.coco else np.full((num_classes, 101), coco.EMPTY),
            "ap50": done.coco.ap_per_class(iou=0.5) if done.coco else np.full(num_classes, coco.EMPTY),
            **curves.confidence_curves(done.hits),
            "best_conf": done.point.confidence,
            "confusion": confusion.confusion_matrix(done.pictures, done.matches, num_classes),
            "pictures": np.array([picture.index for picture in done.pictures], np.int64),
            "mistakes": done.mistakes,
        }

    def worst(self, count: int) -> list[int]:
        """Return the places in the dataset of the `count` pictures with the worst mistakes, worst first (fewer where there are fewer)."""
        done = self._evaluate()
        return [done.pictures[i].index for i in np.argsort(-done.mistakes, kind="stable")[:count]]

    def sample(self, index: int, image: np.ndarray, title: str = "") -> DetectionSample:
        """Return an evaluated picture with its truth and detections, for drawing; `image` is uint8 [H, W, 3] RGB."""
        done = self._evaluate()
        place = next((i for i, picture in enumerate(done.pictures) if picture.index == index), None)
        if place is None:
            raise KeyError(f"picture {index} was not evaluated")
        picture = done.pictures[place]
        found = picture.predicted
        detections = Detections(*(torch.from_numpy(part.copy()) for part in (found.boxes, found.scores, found.labels)))
        return DetectionSample(image, picture.truth_boxes, picture.truth_labels, detections, title, float(done.mistakes[place]))

    def _evaluate(self) -> _Evaluation:
        if self._evaluation is None:
            pictures = self._pictures()
            num_classes = len(self.names)
            hits = curves.find_hits(pictures, num_classes)
            matches = [confusion.match(picture) for picture in pictures]
            self._evaluation = _Evaluation(
                pictures=pictures,
                coco=(self._tables or coco.evaluate(pictures, num_classes, self.max_det)) if hits.instances.any() else None,
                hits=hits,
                point=curves.best_operating_point(hits),
                matches=matches,
                mistakes=np.array([confusion.mistakes(p, m) for p, m in zip(pictures, matches, strict=True)], np.float64),
            )
        return self._evaluation

    def _forget(self) -> None:
        self._evaluation = self._tables = None

    def _pictures(self) -> list[Picture]:
        return [self._picture(index) for index in sorted(self._predicted)]

    def _picture(self, index: int) -> Picture:
        boxes, labels = self.truth(index)
        boxes = np.asarray(boxes, np.float32).reshape(-1, 4)
        labels = np.asarray(labels, np.int64).reshape(-1)
        if len(labels) and not 0 <= labels.min() <= labels.max() < len(self.names):
            raise ValueError(f"picture {index} has a true class outside 0..{len(self.names) - 1}")
        return Picture(index, self._predicted[index], boxes, labels)
