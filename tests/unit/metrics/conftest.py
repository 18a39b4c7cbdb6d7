"""Tiny detection sets for the metric's tests."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import pytest
import torch

from libreyolo.interfaces.batch import DetectionBatch, Detections
from libreyolo.metrics.detection import DetectionMetric

Boxes = Sequence[Sequence[float]]


def detections(boxes: Boxes, scores: Sequence[float], labels: Sequence[int]) -> Detections:
    return Detections(
        torch.tensor(boxes, dtype=torch.float32).reshape(-1, 4),
        torch.tensor(scores, dtype=torch.float32),
        torch.tensor(labels, dtype=torch.int64),
    )


def batch_of(indices: Sequence[int], weights: Sequence[float] | None = None) -> DetectionBatch:
    num = len(indices)
    return DetectionBatch(
        images=torch.zeros(num, 3, 2, 2),
        weight=torch.ones(num) if weights is None else torch.tensor(weights),
        index=torch.tensor(indices, dtype=torch.int64),
        epoch=0,
        key=torch.zeros(num, 2, dtype=torch.int64),
        boxes=torch.zeros(num, 1, 4),
        labels=torch.zeros(num, 1, dtype=torch.int64),
        valid=torch.zeros(num, 1, dtype=torch.bool),
        num_boxes=torch.zeros(num, dtype=torch.int64),
        original_hw=torch.full((num, 2), 500),
        to_input=torch.ones(num, 4),
    )


def metric_for(truth: dict[int, tuple[Boxes, Sequence[int]]], num_classes: int, max_det: int = 300) -> DetectionMetric:
    def look_up(index: int) -> tuple[np.ndarray, np.ndarray]:
        boxes, labels = truth[index]
        return np.array(boxes, np.float32).reshape(-1, 4), np.array(labels, np.int64)

    return DetectionMetric({k: f"class{k}" for k in range(num_classes)}, look_up, num_pictures=max(truth, default=-1) + 1, max_det=max_det)


@pytest.fixture
def random_set() -> Callable[..., tuple[dict[int, tuple[Boxes, list[int]]], dict[int, Detections]]]:
    """A maker of random truth and detections; scores come from few values, so ties abound."""

    def make(num_pictures: int = 24, num_classes: int = 5, seed: int = 0) -> tuple[dict, dict]:
        rng = np.random.default_rng(seed)
        truth, found = {}, {}
        for index in range(num_pictures):
            num_true = int(rng.integers(0, 6))
            corner = rng.uniform(0, 300, (num_true, 2))
            boxes = np.concatenate([corner, corner + rng.uniform(8, 150, (num_true, 2))], axis=1)
            labels = rng.integers(0, num_classes, num_true)
            truth[index] = (boxes.tolist(), labels.tolist())
            near = boxes + rng.normal(0, 6, boxes.shape)
            stray = rng.uniform(0, 200, (4, 2))
            guesses = np.concatenate([near, np.concatenate([stray, stray + 60], axis=1)])
            guess_labels = np.concatenate([labels, rng.integers(0, num_classes, 4)])
            found[index] = detections(guesses.tolist(), rng.choice([0.1, 0.3, 0.5, 0.5, 0.9], len(guesses)).tolist(), guess_labels.tolist())
        return truth, found

    return make
