"""The classification metric: accuracies and the confusion matrix, from states that ranks can merge.

P pictures, K classes, T the guesses that are kept of a picture: five, or as many as there are classes.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from libreyolo.interfaces.batch import ClassifyBatch, ClassScores

log = logging.getLogger(__name__)

NUM_GUESSES = 5
NO_GUESS = -1  # of a picture whose probabilities are not finite


@dataclass(frozen=True)
class Guesses:
    """The best guesses of a picture, best first: labels int64 [T], scores float32 [T]; and the probability of its true class."""

    labels: np.ndarray
    scores: np.ndarray
    of_truth: float


@dataclass(frozen=True)
class ClassifySample:
    """A picture to show: its image, uint8 [H, W, 3] RGB, its class, the guesses, and how wrong they are (see `ClassificationMetric.mistakes`)."""

    image: np.ndarray
    truth: int
    guesses: Guesses
    title: str
    mistakes: float


class ClassificationMetric:
    """Collects probabilities picture by picture; the result is equal to the bit whoever saw which picture and in whatever order.

    accuracy_top1 and accuracy_top5 are the shares of pictures whose class is the best guess, and one of the five best (of all classes where there are
    fewer than five, so that it is 1). precision, recall and f1 are means over the classes that have a picture; a class that is never guessed has
    precision 0. `fitness` is accuracy_top1. Everything is 0 without pictures. Equal probabilities go to the smaller class id.
    """

    def __init__(self, names: dict[int, str], truth: np.ndarray) -> None:
        """`names` are 0..K-1; `truth`: int64 [P], the class of each picture of the set."""
        self.names, self.truth = names, truth
        self._guesses: dict[int, Guesses] = {}
        self._warned = False

    def update(self, batch: ClassifyBatch, predictions: list[ClassScores]) -> None:
        """Take one batch's probabilities; pictures of weight 0 or seen before are left out, those that are not finite count as wrong."""
        for index, weight, scores in zip(batch.index.tolist(), batch.weight.tolist(), predictions, strict=True):
            if weight == 0 or index in self._guesses:
                continue
            if not 0 <= index < len(self.truth):
                raise ValueError(f"picture {index} is not one of the {len(self.truth)} pictures of this dataset")
            probs = scores.probs.detach().cpu().numpy().astype(np.float32)
            if probs.shape != (len(self.names),):
                raise ValueError(f"picture {index} has probabilities of shape {probs.shape}, not of {len(self.names)} classes")
            if not np.isfinite(probs).all():
                probs = self._without_guess(index)
            self._guesses[index] = _best(probs, int(self.truth[index]))

    def _without_guess(self, index: int) -> np.ndarray:
        if not self._warned:
            self._warned = True
            log.warning("The network predicts numbers that are not finite (picture %d); such pictures count as wrong.", index)
        return np.full(len(self.names), -1.0, np.float32)

    def state(self) -> dict[str, np.ndarray]:
        """Return index int64 [P], labels int64 [P, T], scores float32 [P, T] and of_truth float64 [P]."""
        index = sorted(self._guesses)
        found = [self._guesses[i] for i in index]
        num = min(NUM_GUESSES, len(self.names))
        return {
            "index": np.array(index, np.int64),
            "labels": np.array([g.labels for g in found], np.int64).reshape(-1, num),
            "scores": np.array([g.scores for g in found], np.float32).reshape(-1, num),
            "of_truth": np.array([g.of_truth for g in found], np.float64),
        }

    def merge(self, states: Sequence[dict[str, np.ndarray]]) -> None:
        """Replace the content by the union of the states; a picture in two of them counts once (the first is kept)."""
        merged: dict[int, Guesses] = {}
        for state in states:
            for row, index in enumerate(state["index"].tolist()):
                merged.setdefault(index, Guesses(state["labels"][row], state["scores"][row], float(state["of_truth"][row])))
        self._guesses = merged

    def compute(self) -> dict[str, float]:
        """Return the validation columns of results.csv, in their order; never NaN."""
        state = self.state()
        hits = state["labels"] == self.truth[state["index"]][:, None]
        num = max(len(hits), 1)
        top1, top5 = int(hits[:, 0].sum()) / num, int(hits.any(axis=1).sum()) / num
        rows = [row for row in self.per_class() if row["pictures"]]
        means = {name: sum(row[name] for row in rows) / max(len(rows), 1) for name in ("precision", "recall", "f1")}
        columns = {"accuracy_top1": top1, "accuracy_top5": top5, **means}
        return {**{f"metrics/{name}": value for name, value in columns.items()}, "metrics/fitness": top1}

    def class_metrics(self) -> list[tuple[str, dict[str, float]]]:
        """Return each class's name with the numbers of its row of `per_class`."""
        return [(row["name"], {name: row[name] for name in ("precision", "recall", "f1")}) for row in self.per_class()]

    def per_class(self) -> list[dict[str, Any]]:
        """Return one row for each class: name, pictures, precision, recall and f1 (0 where there is no picture, or nothing is right)."""
        counts = self.confusion()
        right, guessed = np.diag(counts), counts.sum(axis=1)
        pictures = np.bincount(self.truth[sorted(self._guesses)], minlength=len(self.names))
        rows = []
        for k, name in self.names.items():
            precision, recall = right[k] / max(guessed[k], 1), right[k] / max(pictures[k], 1)
            f1 = 2 * precision * recall / (precision + recall) if right[k] else 0.0
            row = {"precision": float(precision), "recall": float(recall), "f1": float(f1)}
            rows.append({"name": name, "pictures": int(pictures[k]), **row})
        return rows

    def confusion(self) -> np.ndarray:
        """Return counts, int64 [K, K]: row = guessed, column = true. Pictures without a guess are in no cell."""
        state = self.state()
        guessed, truth = state["labels"][:, 0], self.truth[state["index"]]
        counts = np.zeros((len(self.names), len(self.names)), np.int64)
        there = guessed != NO_GUESS
        np.add.at(counts, (guessed[there], truth[there]), 1)
        return counts

    def curves(self) -> dict[str, Any]:
        """Return what pictures are drawn from: names, confusion [K, K], per_class (its rows), and pictures and mistakes [P], by index."""
        index = sorted(self._guesses)
        return {
            "names": dict(self.names),
            "confusion": self.confusion(),
            "per_class": self.per_class(),
            "pictures": np.array(index, np.int64),
            "mistakes": np.array([self.mistakes(i) for i in index], np.float64),
        }

    def mistakes(self, index: int) -> float:
        """Return how wrong an evaluated picture is: what the true class lacks of probability 1, and 1 more where another one is guessed."""
        guesses = self._guesses[index]
        return float(guesses.labels[0] != self.truth[index]) + 1.0 - guesses.of_truth

    def worst(self, count: int) -> list[int]:
        """Return the places in the dataset of the `count` pictures with the worst mistakes, worst first (fewer where there are fewer)."""
        return sorted(self._guesses, key=lambda index: (-self.mistakes(index), index))[:count]

    def sample(self, index: int, image: np.ndarray, title: str = "") -> ClassifySample:
        """Return an evaluated picture with its class and the guesses, for drawing; `image` is uint8 [H, W, 3] RGB."""
        return ClassifySample(image, int(self.truth[index]), self._guesses[index], title, self.mistakes(index))


def _best(probs: np.ndarray, truth: int) -> Guesses:
    """Return the best guesses of probabilities [K]; of negative ones, which mean that there are none, NO_GUESS at score 0."""
    order = np.argsort(-probs, kind="stable")[:NUM_GUESSES]
    if probs[0] < 0:
        return Guesses(np.full(len(order), NO_GUESS), np.zeros(len(order), np.float32), 0.0)
    return Guesses(order.astype(np.int64), probs[order], float(probs[truth]))
