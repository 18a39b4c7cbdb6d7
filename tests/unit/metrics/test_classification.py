"""Accuracies, macro means and the confusion matrix: hand values, and states that merge to the bit."""

from __future__ import annotations

import math
import random

import numpy as np
import pytest
import torch

from libreyolo.interfaces.batch import ClassifyBatch, ClassScores
from libreyolo.metrics.classification import ClassificationMetric

NAMES = {0: "ant", 1: "bee", 2: "cat"}


def batch_of(index: list[int], weight: list[float] | None = None) -> ClassifyBatch:
    count = len(index)
    weights = torch.ones(count) if weight is None else torch.tensor(weight)
    none = torch.zeros(count, 2, dtype=torch.int64)
    return ClassifyBatch(torch.zeros(count, 3, 1, 1), weights, torch.tensor(index), 0, none, none, torch.ones(count, 2))


def scores(*probs: list[float]) -> list[ClassScores]:
    return [ClassScores(torch.tensor(row)) for row in probs]


@pytest.fixture
def judged() -> ClassificationMetric:
    """Five pictures: ants right, right, taken for a bee; a bee right; a bee taken for a cat. No cat."""
    metric = ClassificationMetric(NAMES, np.array([0, 0, 0, 1, 1]))
    metric.update(batch_of([0, 1, 2, 3, 4]), scores([0.8, 0.1, 0.1], [0.5, 0.3, 0.2], [0.2, 0.7, 0.1], [0.1, 0.6, 0.3], [0.0, 0.1, 0.9]))
    return metric


def test_hand_values(judged: ClassificationMetric) -> None:
    found = judged.compute()
    # Ants: P 2/2, R 2/3, F 4/5. Bees: P 1/2, R 1/2, F 1/2. Cats have no picture and count nowhere.
    assert found == {
        "metrics/accuracy_top1": pytest.approx(3 / 5),
        "metrics/accuracy_top5": 1.0,
        "metrics/precision": pytest.approx((1 + 1 / 2) / 2),
        "metrics/recall": pytest.approx((2 / 3 + 1 / 2) / 2),
        "metrics/f1": pytest.approx((4 / 5 + 1 / 2) / 2),
        "metrics/fitness": pytest.approx(3 / 5),
    }
    assert list(found)[-1] == "metrics/fitness"
    assert judged.confusion().tolist() == [[2, 0, 0], [1, 1, 0], [0, 1, 0]]


def test_per_class_numbers_are_rows_by_name(judged: ClassificationMetric) -> None:
    ant, bee, cat = judged.curves()["per_class"]
    assert ant == {"name": "ant", "pictures": 3, "precision": 1.0, "recall": pytest.approx(2 / 3), "f1": pytest.approx(4 / 5)}
    assert (bee["pictures"], bee["f1"]) == (2, pytest.approx(1 / 2))
    assert judged.class_metrics()[1] == ("bee", {"precision": 0.5, "recall": 0.5, "f1": pytest.approx(0.5)})
    assert cat == {"name": "cat", "pictures": 0, "precision": 0.0, "recall": 0.0, "f1": 0.0}


def test_the_worst_pictures_are_the_surest_mistakes(judged: ClassificationMetric) -> None:
    assert judged.worst(3) == [4, 2, 1]
    assert judged.mistakes(4) == pytest.approx(1 + 0.9)
    sample = judged.sample(4, np.zeros((2, 2, 3), np.uint8), "bee.jpg")
    assert (sample.truth, sample.guesses.labels.tolist()) == (1, [2, 1, 0])


def test_top5_is_one_of_five_guesses() -> None:
    names = {i: str(i) for i in range(7)}
    metric = ClassificationMetric(names, np.array([4, 5, 6]))
    row = [0.3, 0.2, 0.15, 0.13, 0.12, 0.06, 0.04]
    metric.update(batch_of([0, 1, 2]), scores(row, row, row))
    assert metric.compute()["metrics/accuracy_top5"] == pytest.approx(1 / 3)
    assert metric.compute()["metrics/accuracy_top1"] == 0.0


def test_equal_probabilities_go_to_the_smaller_class() -> None:
    metric = ClassificationMetric(NAMES, np.array([0, 2]))
    metric.update(batch_of([0, 1]), scores([0.4, 0.4, 0.2], [0.2, 0.4, 0.4]))
    assert metric.confusion().tolist() == [[1, 0, 0], [0, 0, 1], [0, 0, 0]]


def test_pictures_shared_in_any_way_give_the_same_numbers_to_the_bit() -> None:
    draw = np.random.default_rng(1)
    truth, probs = draw.integers(3, size=40), draw.dirichlet([1, 1, 1], size=40).astype(np.float32)

    def run(parts: list[list[int]]) -> tuple[dict[str, float], list[float]]:
        states = []
        for part in parts:
            metric = ClassificationMetric(NAMES, truth)
            for i in part:
                metric.update(batch_of([i]), scores(probs[i].tolist()))
            states.append(metric.state())
        merged = ClassificationMetric(NAMES, truth)
        merged.merge(states)
        return merged.compute(), merged.curves()["mistakes"].tolist()

    order = list(range(40))
    random.Random(0).shuffle(order)
    alone = run([list(range(40))])
    assert run([order[:25], order[25:]]) == alone
    assert run([order[0::3], order[1::3], order[2::3], [], order[:4]]) == alone  # nobody's share is empty, some is seen twice


def test_padded_repeats_count_nowhere(judged: ClassificationMetric) -> None:
    before = judged.compute()
    judged.update(batch_of([1], [0.0]), scores([0.0, 0.0, 1.0]))
    judged.update(batch_of([1]), scores([0.0, 0.0, 1.0]))
    assert judged.compute() == before


def test_without_pictures_everything_is_0() -> None:
    metric = ClassificationMetric(NAMES, np.array([0, 1]))
    assert set(metric.compute().values()) == {0.0}
    assert metric.worst(4) == []
    assert metric.curves()["confusion"].sum() == 0
    metric.merge([metric.state(), metric.state()])
    assert set(metric.compute().values()) == {0.0}


def test_probabilities_that_are_not_finite_count_as_wrong_with_one_warning(caplog: pytest.LogCaptureFixture) -> None:
    metric = ClassificationMetric(NAMES, np.array([0, 1]))
    metric.update(batch_of([0, 1]), scores([math.nan] * 3, [math.nan] * 3))
    assert set(metric.compute().values()) == {0.0}
    assert metric.confusion().sum() == 0
    assert caplog.text.count("not finite") == 1


def test_a_picture_outside_the_set_and_a_wrong_number_of_classes_are_errors() -> None:
    metric = ClassificationMetric(NAMES, np.array([0, 1]))
    with pytest.raises(ValueError, match="picture 2 is not one of the 2 pictures"):
        metric.update(batch_of([2]), scores([1.0, 0.0, 0.0]))
    with pytest.raises(ValueError, match="not of 3 classes"):
        metric.update(batch_of([0]), scores([1.0, 0.0]))
