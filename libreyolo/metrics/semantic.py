"""The metric of semantic segmentation: one confusion matrix a picture, which ranks merge without counting a picture twice.

P pictures, K classes, E entries of a picture's matrix that are not 0.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from libreyolo.interfaces.batch import SemanticBatch

IGNORED = 255
SHOWN_SIDE = 512  # pixels of the longer side of what is kept to be drawn


@dataclass(frozen=True)
class Counts:
    """One picture's confusion matrix, sparse: places int64 [E] (true * K + predicted, rising) and pixels int64 [E], all above 0."""

    places: np.ndarray
    pixels: np.ndarray


@dataclass(frozen=True)
class SemanticSample:
    """A picture to show: uint8 [H, W, 3] RGB, truth and prediction uint8 [h, w] of its shape but not its size, and the share of wrong pixels."""

    image: np.ndarray
    truth: np.ndarray
    predicted: np.ndarray
    title: str = ""
    mistakes: float = 0.0


class SemanticMetric:
    """Counts, at the original size of every picture, which class each labelled pixel was given; ignored pixels count nowhere.

    Whole numbers, picture by picture: the result is equal to the bit whoever saw which picture and in whatever order.

    IoU of a class = pixels that are and were called it / pixels that are or were called it (Everingham et al., IJCV 2010). mIoU is the mean over
    the classes that occur, in the truth or in the predictions; it and the pixel accuracy are 0 where there is no labelled pixel at all.
    samples: predictions that are kept to be drawn, those with the largest share of wrong pixels (of equals, the first pictures of the data).
    """

    def __init__(self, names: dict[int, str], *, samples: int = 0) -> None:
        """`names` are 0..K-1."""
        self.names, self.num_samples = names, samples
        self._counts: dict[int, Counts] = {}
        self._maps: dict[int, tuple[np.ndarray, np.ndarray]] = {}  # truth and prediction of the worst pictures, shrunk

    def update(self, batch: SemanticBatch, predictions: Sequence[Any]) -> None:
        """Take one batch's class maps (uint8 [h, w] at the original sizes); pictures of weight 0 or seen before are left out."""
        rows = zip(batch.index.tolist(), batch.weight.tolist(), batch.original_hw.tolist(), batch.truth.numpy(), predictions, strict=True)
        for index, weight, (height, width), truth, predicted in rows:
            if weight == 0 or index in self._counts:
                continue
            true, found = truth[:height, :width], np.asarray(predicted)
            if found.shape != true.shape:
                raise ValueError(f"picture {index} is {true.shape}, its prediction {found.shape}")
            self._counts[index] = self._count(index, true, found)
            self._keep(index, true, found)

    def state(self) -> dict[str, Any]:
        """Return index and size int64 [P] with places and pixels int64 [sum of sizes] in that order, and the kept maps, compressed."""
        index = sorted(self._counts)
        found = [self._counts[i] for i in index]
        nothing = np.zeros(0, np.int64)
        return {
            "index": np.array(index, np.int64),
            "size": np.array([len(c.places) for c in found], np.int64),
            "places": np.concatenate([nothing, *(c.places for c in found)]),
            "pixels": np.concatenate([nothing, *(c.pixels for c in found)]),
            "maps": {i: (true.shape, zlib.compress(np.stack([true, guess]).tobytes(), 1)) for i, (true, guess) in self._maps.items()},
        }

    def merge(self, states: Sequence[dict[str, Any]]) -> None:
        """Replace the content by the union of the states; a picture in two of them counts once (the first is kept)."""
        self._counts, self._maps = {}, {}
        for state in states:
            ends = np.cumsum(state["size"])
            for index, start, end in zip(state["index"].tolist(), (ends - state["size"]).tolist(), ends.tolist(), strict=True):
                self._counts.setdefault(index, Counts(state["places"][start:end], state["pixels"][start:end]))
            for index, (shape, packed) in state["maps"].items():
                true, guess = np.frombuffer(zlib.decompress(packed), np.uint8).reshape(2, *shape)
                self._maps.setdefault(index, (true, guess))
        self._drop_better()

    def compute(self) -> dict[str, float]:
        """Return the validation columns of results.csv, in their order; never NaN."""
        matrix = self.confusion()
        iou, occurs = _iou(matrix)
        mean = float(iou[occurs].mean()) if occurs.any() else 0.0
        accuracy = float(matrix.trace() / matrix.sum()) if matrix.any() else 0.0
        return {"metrics/mIoU": mean, "metrics/pixel_accuracy": accuracy, "metrics/fitness": mean}

    def confusion(self) -> np.ndarray:
        """Return counts of pixels, int64 [K, K]: row = true, column = predicted."""
        total = np.zeros(len(self.names) ** 2, np.int64)
        for counts in self._counts.values():
            total[counts.places] += counts.pixels
        return total.reshape(len(self.names), len(self.names))

    def per_class(self) -> list[dict[str, Any]]:
        """Return one row for each class: name, pictures (in whose truth it is), pixels (of its truth), IoU, precision, recall.

        IoU is -1 for a class that occurs nowhere; precision is 0 where it was never predicted, recall where it never is.
        """
        matrix = self.confusion()
        iou, occurs = _iou(matrix)
        hits, true, called = matrix.diagonal(), matrix.sum(axis=1), matrix.sum(axis=0)
        pictures = np.zeros(len(self.names), np.int64)
        for counts in self._counts.values():
            pictures[np.unique(counts.places // len(self.names))] += 1
        return [
            {
                "name": self.names[k],
                "pictures": int(pictures[k]),
                "pixels": int(true[k]),
                "IoU": float(iou[k]) if occurs[k] else -1.0,
                "precision": float(hits[k] / max(called[k], 1)),
                "recall": float(hits[k] / max(true[k], 1)),
            }
            for k in range(len(self.names))
        ]

    def class_metrics(self) -> list[tuple[str, dict[str, float]]]:
        """Return each class's name with its IoU, -1 where it occurs nowhere."""
        return [(row["name"], {"IoU": row["IoU"]}) for row in self.per_class()]

    def curves(self) -> dict[str, Any]:
        """Return what pictures are drawn from: names, confusion [K, K] (row true, column predicted), per_class, pictures and mistakes [P]."""
        index = sorted(self._counts)
        mistakes = np.array([self._share_wrong(i) for i in index], np.float64)
        return {
            "names": dict(self.names),
            "confusion": self.confusion(),
            "per_class": self.per_class(),
            "pictures": np.array(index, np.int64),
            "mistakes": mistakes,
        }

    def worst(self, count: int) -> list[int]:
        """Return the places in the dataset of the kept pictures, the largest share of wrong pixels first, at most `count`."""
        return sorted(self._maps, key=self._badness)[:count]

    def sample(self, index: int, image: np.ndarray, title: str = "") -> SemanticSample:
        """Return a kept picture with its truth and prediction, for drawing; `image` is uint8 [H, W, 3] RGB. Raises KeyError."""
        true, guess = self._maps[index]
        return SemanticSample(image, true, guess, title, self._share_wrong(index))

    def _count(self, index: int, true: np.ndarray, found: np.ndarray) -> Counts:
        num_classes = len(self.names)
        labelled = true != IGNORED
        true, found = true[labelled].astype(np.int64), found[labelled].astype(np.int64)
        for what, classes in (("true", true), ("predicted", found)):
            if classes.size and classes.max() >= num_classes:
                raise ValueError(f"picture {index} has a {what} class outside 0..{num_classes - 1}")
        counts = np.bincount(true * num_classes + found, minlength=num_classes**2)
        places = np.flatnonzero(counts)
        return Counts(places.astype(np.int64), counts[places].astype(np.int64))

    def _keep(self, index: int, true: np.ndarray, found: np.ndarray) -> None:
        if self.num_samples:
            step = -(-max(true.shape) // SHOWN_SIDE)
            self._maps[index] = true[::step, ::step].copy(), found[::step, ::step].copy()
            self._drop_better()

    def _drop_better(self) -> None:
        kept = sorted(self._maps, key=self._badness)[: self.num_samples]
        self._maps = {i: self._maps[i] for i in kept}

    def _badness(self, index: int) -> tuple[float, int]:
        return -self._share_wrong(index), index

    def _share_wrong(self, index: int) -> float:
        counts = self._counts[index]
        right = counts.pixels[counts.places // len(self.names) == counts.places % len(self.names)].sum()
        total = counts.pixels.sum()
        return float((total - right) / total) if total else 0.0


def _iou(matrix: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the IoU of every class, float64 [K] (0 where it does not occur), and whether it occurs, bool [K]."""
    hits = matrix.diagonal()
    union = matrix.sum(axis=0) + matrix.sum(axis=1) - hits
    return np.divide(hits, union, out=np.zeros(len(hits)), where=union > 0), union > 0
