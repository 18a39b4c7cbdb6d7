"""The point metric: precision, recall and F1 of points against the cells that hold an object, from states that ranks can merge.

P pictures, D points of a picture, G objects of it, K classes, R radii of suppression, T confidence thresholds. Distances are in cells.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any

import numpy as np

from libreyolo.interfaces.batch import DetectionBatch, Points
from libreyolo.metrics import confusion
from libreyolo.metrics.curves import Hits, confidence_curves
from libreyolo.metrics.point_pictures import PointPicture, PointSample, Seen, sample_of
from libreyolo.ops.cells import cells_of


@dataclass(frozen=True)
class _Radius:
    """What suppression at one radius gives: every point of all pictures, best first, and its distance to the object it found (else 0)."""

    hits: Hits
    distance: np.ndarray


@dataclass(frozen=True)
class _Point:
    """Where a model is used: one threshold and one radius, and what comes of it, [K] each."""

    threshold: float
    radius: int
    true: np.ndarray
    false: np.ndarray
    missed: np.ndarray
    mean_distance: float

    @property
    def f1(self) -> float:
        return float(_f1(self.true.sum(), self.false.sum(), self.missed.sum()))


@dataclass(frozen=True)
class _Evaluation:
    """Everything computed from the pictures, once."""

    best: _Point
    at_best: _Radius
    pictures: list[PointPicture]
    matches: list[confusion.Match]
    mistakes: np.ndarray


class PointMetric:
    """Collects points picture by picture; the result is equal to the bit whoever saw which picture and in whatever order.

    Truth are the cells that hold an object's centre, as the loss sees them: of several objects in one cell the last counts. Best first, each
    point takes the nearest free cell of its class within `tolerance`. Every threshold and radius is tried; reported is the pair with the best
    F1 over all points and classes together (the first of equals), and there also the means over the classes with truth.
    """

    def __init__(
        self,
        names: dict[int, str],
        *,
        num_pictures: int,
        stride: int,
        thresholds: Sequence[float],
        radii: Sequence[int],
        tolerance: float,
    ) -> None:
        """`names` are 0..K-1; index < `num_pictures`; `stride`: side of a cell in input pixels; predictions hold `radii` in this order."""
        self.names, self.num_pictures, self.stride = names, num_pictures, stride
        self.thresholds, self.radii = sorted(thresholds), list(radii)
        self.tolerance = tolerance
        self._seen: dict[int, Seen] = {}
        self._evaluation: _Evaluation | None = None

    def update(self, batch: DetectionBatch, predictions: list[Points]) -> None:
        """Take one batch's points and true boxes; pictures of weight 0 or seen before are left out."""
        self._evaluation = None
        height, width = batch.images.shape[-2:]
        cells = cells_of(batch.boxes, (height // self.stride, width // self.stride), self.stride).cpu().numpy()
        labels, counts = batch.labels.cpu().numpy(), batch.num_boxes.tolist()
        rows = zip(batch.index.tolist(), batch.weight.tolist(), predictions, strict=True)
        for place, (index, weight, points) in enumerate(rows):
            if weight == 0 or index in self._seen:
                continue
            if not 0 <= index < self.num_pictures:
                raise ValueError(f"picture {index} is not one of the {self.num_pictures} pictures of this dataset")
            count = counts[place]
            self._seen[index] = Seen.of(points, cells[place, :count], labels[place, :count])

    def state(self) -> dict[str, np.ndarray]:
        """Return index, points, objects int64 [P] (the latter two are counts) and the columns of `Seen` of all pictures in that order."""
        index = sorted(self._seen)
        seen = [self._seen[i] for i in index]
        nothing = Seen.nothing(len(self.radii))
        return {
            "index": np.array(index, np.int64),
            "points": np.array([len(s.scores) for s in seen], np.int64),
            "objects": np.array([len(s.truth_labels) for s in seen], np.int64),
            **{f.name: np.concatenate([getattr(nothing, f.name), *(getattr(s, f.name) for s in seen)]) for f in fields(Seen)},
        }

    def merge(self, states: Sequence[dict[str, np.ndarray]]) -> None:
        """Replace the content by the union of the states; a picture in two of them counts once (the first is kept)."""
        merged: dict[int, Seen] = {}
        for state in states:
            points, objects = _slices(state["points"]), _slices(state["objects"])
            for place, index in enumerate(state["index"].tolist()):
                rows = {f.name: objects[place] if f.name.startswith("truth_") else points[place] for f in fields(Seen)}
                merged.setdefault(index, Seen(**{name: state[name][part] for name, part in rows.items()}))
        self._seen = merged
        self._evaluation = None

    def compute(self) -> dict[str, float]:
        """Return the validation columns of results.csv, in their order; never NaN. Without any object or point they are 0."""
        best = self._evaluate().best
        true, false, missed = (int(part.sum()) for part in (best.true, best.false, best.missed))
        known = best.true + best.missed > 0
        by_class = (_precision(best.true, best.false), _recall(best.true, best.missed), _f1(best.true, best.false, best.missed))
        precision, recall, f1 = (float(part[known].mean()) if known.any() else 0.0 for part in by_class)
        return {
            "metrics/grid_F1": best.f1,
            "metrics/grid_precision": float(_precision(true, false)),
            "metrics/grid_recall": float(_recall(true, missed)),
            "metrics/grid_mean_distance": best.mean_distance,
            "metrics/grid_TP": float(true),
            "metrics/grid_FP": float(false),
            "metrics/grid_FN": float(missed),
            "metrics/precision": precision,
            "metrics/recall": recall,
            "metrics/f1": f1,
            "decode/threshold": best.threshold,
            "decode/nms_radius": float(best.radius),
        }

    def class_metrics(self) -> list[tuple[str, dict[str, float]]]:
        """Return each class's name with its row of `per_class`, under the names of the means over classes."""
        return [(row["name"], {"precision": row["P"], "recall": row["R"], "f1": row["F1"]}) for row in self.per_class()]

    def per_class(self) -> list[dict[str, Any]]:
        """Return one row for each class: name, pictures (with an object of it), instances (cells), P, R, F1 at the best threshold and radius."""
        done = self._evaluate()
        best, pictures = done.best, np.zeros(len(self.names), np.int64)
        for picture in done.pictures:
            pictures[np.unique(picture.truth_labels)] += 1
        precision, recall = _precision(best.true, best.false), _recall(best.true, best.missed)
        f1 = _f1(best.true, best.false, best.missed)
        return [
            {
                "name": name,
                "pictures": int(pictures[k]),
                "instances": int(best.true[k] + best.missed[k]),
                "P": float(precision[k]),
                "R": float(recall[k]),
                "F1": float(f1[k]),
            }
            for k, name in sorted(self.names.items())
        ]

    def curves(self) -> dict[str, Any]:
        """Return what pictures are drawn from; S confidences from the lowest threshold up, all at the best radius.

        names, instances [K]; confidence [S] with precision, recall, f1 [K, S]; best_conf, best_radius; confusion [K + 1, K + 1] (row predicted,
        column true, last background); pictures and mistakes [P], by index; per_class as `per_class` returns it.
        """
        done = self._evaluate()
        tables = confidence_curves(done.at_best.hits)
        seen = tables["confidence"] >= self.thresholds[0]  # below it no point was looked at
        return {
            "names": dict(self.names),
            "instances": done.at_best.hits.instances,
            **{name: table[..., seen] for name, table in tables.items()},
            "best_conf": done.best.threshold,
            "best_radius": done.best.radius,
            "confusion": confusion.confusion_matrix(done.pictures, done.matches, len(self.names)),
            "pictures": np.array([picture.index for picture in done.pictures], np.int64),
            "mistakes": done.mistakes,
            "per_class": self.per_class(),
        }

    def worst(self, count: int) -> list[int]:
        """Return the places in the dataset of the `count` pictures with the worst mistakes, worst first (fewer where there are fewer)."""
        done = self._evaluate()
        return [done.pictures[i].index for i in np.argsort(-done.mistakes, kind="stable")[:count]]

    def sample(self, index: int, image: np.ndarray, boxes: np.ndarray, title: str = "") -> PointSample:
        """Return an evaluated picture for drawing. image: uint8 [H, W, 3] RGB. boxes: its true ones, float [G, 4] xyxy in its pixels."""
        done = self._evaluate()
        place = next((i for i, picture in enumerate(done.pictures) if picture.index == index), None)
        if place is None:
            raise KeyError(f"picture {index} was not evaluated")
        return sample_of(image, boxes, self._seen[index], done.pictures[place], done.matches[place], title, float(done.mistakes[place]))

    def _evaluate(self) -> _Evaluation:
        if self._evaluation is None:
            by_radius = [self._at_radius(place) for place in range(len(self.radii))]
            tried = [(self._at(place, found, t), found) for t in self.thresholds for place, found in enumerate(by_radius)]
            best, at_best = max(tried, key=lambda pair: pair[0].f1)  # max keeps the first of equals
            place = self.radii.index(best.radius)
            pictures = [PointPicture.of(i, self._seen[i], place, best.threshold) for i in sorted(self._seen)]
            matches = [_match(picture, self.tolerance) for picture in pictures]
            mistakes = np.array([confusion.mistakes(p, m) for p, m in zip(pictures, matches, strict=True)], np.float64)
            self._evaluation = _Evaluation(best, at_best, pictures, matches, mistakes)
        return self._evaluation

    def _at_radius(self, place: int) -> _Radius:
        """Match every point above the lowest threshold. Best first, so what counts at a higher threshold is a part of it, unchanged."""
        pictures = [PointPicture.of(i, self._seen[i], place, self.thresholds[0]) for i in sorted(self._seen)]
        found = [_find(picture, self.tolerance) for picture in pictures]
        scores = np.concatenate([np.zeros(0), *(p.predicted.scores.astype(np.float64) for p in pictures)])
        labels = np.concatenate([np.zeros(0, np.int64), *(p.predicted.labels for p in pictures)])
        truth = np.concatenate([np.zeros(0, np.int64), *(p.truth_labels for p in pictures)])
        distance = np.concatenate([np.zeros(0), *found])
        order = np.argsort(-scores, kind="stable")
        hits = Hits(scores[order], labels[order], np.isfinite(distance)[order], np.bincount(truth, minlength=len(self.names)))
        return _Radius(hits, np.where(hits.hit, distance[order], 0.0))

    def _at(self, place: int, found: _Radius, threshold: float) -> _Point:
        """Return what the points above a threshold are worth."""
        hits, num = found.hits, int((found.hits.scores > threshold).sum())
        hit, labels = hits.hit[:num], hits.labels[:num]
        true = np.bincount(labels[hit], minlength=len(self.names))
        false = np.bincount(labels[~hit], minlength=len(self.names))
        distance = float(found.distance[:num].sum()) / max(int(true.sum()), 1)
        return _Point(threshold, self.radii[place], true, false, hits.instances - true, distance)


def _find(picture: PointPicture, tolerance: float) -> np.ndarray:
    """Return each point's distance to the object it takes, float64 [D]; infinite where it takes none."""
    distance = _distances(picture)
    distance[(picture.predicted.labels[:, None] != picture.truth_labels[None]) | (distance > tolerance)] = np.inf
    found = np.full(len(distance), np.inf)
    for d in np.flatnonzero(np.isfinite(distance).any(axis=1)):
        nearest = int(distance[d].argmin())
        found[d] = distance[d, nearest]
        if np.isfinite(found[d]):
            distance[:, nearest] = np.inf  # taken
    return found


def _match(picture: PointPicture, tolerance: float) -> confusion.Match:
    """Pair points with objects, those of their own class first, for the confusion matrix."""
    distance = _distances(picture)
    return confusion.pair_off(distance, distance <= tolerance, picture)


def _distances(picture: PointPicture) -> np.ndarray:
    """Return the Euclidean distance of every pair in cells, float64 [D, G]."""
    apart = picture.predicted.cells[:, None] - picture.truth_cells[None]
    return np.sqrt((apart.astype(np.float64) ** 2).sum(axis=-1))


def _slices(counts: np.ndarray) -> list[slice]:
    ends = np.cumsum(counts)
    return [slice(start, end) for start, end in zip((ends - counts).tolist(), ends.tolist(), strict=True)]


def _precision(true: Any, false: Any) -> Any:
    return true / np.maximum(true + false, 1)


def _recall(true: Any, missed: Any) -> Any:
    return true / np.maximum(true + missed, 1)


def _f1(true: Any, false: Any, missed: Any) -> Any:
    return 2 * true / np.maximum(2 * true + false + missed, 1)
