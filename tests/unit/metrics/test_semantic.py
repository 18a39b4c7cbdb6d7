"""Mean IoU by hand, and merged without counting a picture twice."""

from __future__ import annotations

import pickle
from typing import Any

import numpy as np
import pytest
import torch

from libreyolo.interfaces.batch import SemanticBatch
from libreyolo.interfaces.input import InputSpec
from libreyolo.interfaces.metric import ClassMetric
from libreyolo.metrics.semantic import SHOWN_SIDE, SemanticMetric
from libreyolo.ops.input import apply_input_spec
from libreyolo.tasks import passes
from libreyolo.tasks.semantic import SemanticTask
from tests.family.batches import semantic_batch

NAMES = {0: "road", 1: "car", 2: "sky"}


def show(metric: SemanticMetric, index: int, truth: Any, predicted: Any, weight: float = 1.0) -> None:
    true = torch.tensor(np.asarray(truth, np.uint8))[None]
    batch = semantic_batch(torch.zeros(1, 3, *true.shape[1:]), true, weight=[weight])
    batch.index = torch.tensor([index])
    metric.update(batch, [torch.tensor(np.asarray(predicted, np.uint8))])


def values(metric: SemanticMetric) -> tuple[float, float]:
    found = metric.compute()
    assert list(found) == ["metrics/mIoU", "metrics/pixel_accuracy", "metrics/fitness"]
    assert found["metrics/fitness"] == found["metrics/mIoU"]
    return found["metrics/mIoU"], found["metrics/pixel_accuracy"]


def test_the_mean_is_over_classes_that_occur_in_truth_or_prediction() -> None:
    """road: 2 of 2 true and 3 called, IoU 2/3. car: 1 of 2, IoU 1/2. sky does not occur."""
    metric = SemanticMetric(NAMES)
    show(metric, 0, [[0, 0, 1], [1, 255, 255]], [[0, 0, 1], [0, 2, 1]])
    assert values(metric) == (pytest.approx((2 / 3 + 1 / 2) / 2), 0.75)
    show(metric, 1, [[0]], [[2]])  # called sky once, and it never is: IoU 0, and it counts; road is now 2 of 4
    assert values(metric) == (pytest.approx((2 / 4 + 1 / 2 + 0) / 3), pytest.approx(3 / 5))
    assert metric.confusion().tolist() == [[2, 0, 1], [1, 1, 0], [0, 0, 0]]


def test_matrices_are_added_before_ratios_are_taken() -> None:
    """A large picture all right and a small one all wrong."""
    metric = SemanticMetric(NAMES)
    show(metric, 0, np.zeros((10, 9)), np.zeros((10, 9)))
    show(metric, 1, np.zeros((2, 5)), np.ones((2, 5)))
    assert values(metric) == (pytest.approx((90 / 100 + 0) / 2), 0.9)


@pytest.mark.parametrize("truth", [None, [[255, 255]]])
def test_without_a_labelled_pixel_every_number_is_defined(truth: Any) -> None:
    metric = SemanticMetric(NAMES, samples=2)
    if truth is not None:
        show(metric, 0, truth, [[0, 1]])
    assert values(metric) == (0.0, 0.0)
    merged = SemanticMetric(NAMES, samples=2)
    merged.merge([metric.state(), SemanticMetric(NAMES).state()])
    assert values(merged) == (0.0, 0.0)
    assert [row["IoU"] for row in merged.per_class()] == [-1.0] * 3
    assert merged.curves()["confusion"].shape == (3, 3)


def drawn(num: int) -> list[tuple[np.ndarray, np.ndarray]]:
    rng = np.random.default_rng(4)
    found = []
    for _ in range(num):
        hw = tuple(rng.integers(3, 30, 2))
        truth = rng.choice([0, 1, 2, 255], hw).astype(np.uint8)
        found.append((truth, np.where(rng.random(hw) < rng.random(), truth % 3, rng.integers(0, 3, hw)).astype(np.uint8)))
    return found


def test_the_result_is_equal_to_the_bit_however_pictures_are_shared_and_twice_is_once() -> None:
    pictures = drawn(9)
    alone = SemanticMetric(NAMES, samples=3)
    for index, pair in enumerate(pictures):
        show(alone, index, *pair)
    for shares in ([range(0, 9, 2), range(1, 9, 2)], [range(8, -1, -1), []], [range(5), range(3, 9), range(9)]):
        states = []
        for share in shares:
            part = SemanticMetric(NAMES, samples=3)
            for index in share:
                show(part, index, *pictures[index])
            states.append(pickle.loads(pickle.dumps(part.state())))
        merged = SemanticMetric(NAMES, samples=3)
        merged.merge(states)
        assert merged.compute() == alone.compute()
        assert merged.per_class() == alone.per_class()
        assert merged.worst(3) == alone.worst(3)
        for index in alone.worst(3):
            one, other = (m.sample(index, np.zeros((2, 2, 3), np.uint8)) for m in (alone, merged))
            assert np.array_equal(one.truth, other.truth) and np.array_equal(one.predicted, other.predicted)
            assert one.mistakes == other.mistakes


def test_padded_repeats_and_pictures_seen_before_are_left_out() -> None:
    metric = SemanticMetric(NAMES)
    show(metric, 0, [[0, 1]], [[0, 0]])
    before = metric.compute()
    show(metric, 0, [[1, 1]], [[1, 1]])
    show(metric, 1, [[1, 1]], [[1, 1]], weight=0.0)
    assert metric.compute() == before


def test_the_numbers_of_every_class_are_there() -> None:
    metric = SemanticMetric(NAMES)
    show(metric, 0, [[0, 0, 1, 1]], [[0, 1, 1, 1]])
    show(metric, 3, [[0]], [[0]])
    road, car, sky = metric.per_class()
    assert road == {"name": "road", "pictures": 2, "pixels": 3, "IoU": pytest.approx(2 / 3), "precision": 1.0, "recall": pytest.approx(2 / 3)}
    assert car == {"name": "car", "pictures": 1, "pixels": 2, "IoU": pytest.approx(2 / 3), "precision": pytest.approx(2 / 3), "recall": 1.0}
    assert sky == {"name": "sky", "pictures": 0, "pixels": 0, "IoU": -1.0, "precision": 0.0, "recall": 0.0}
    assert metric.class_metrics() == [("road", {"IoU": road["IoU"]}), ("car", {"IoU": car["IoU"]}), ("sky", {"IoU": -1.0})]
    assert isinstance(metric, ClassMetric)
    curves = metric.curves()
    assert curves["per_class"] == metric.per_class()
    assert (curves["pictures"].tolist(), curves["mistakes"].tolist()) == ([0, 3], [0.25, 0.0])


def test_the_worst_pictures_are_kept_small_and_of_equals_the_first() -> None:
    metric = SemanticMetric(NAMES, samples=2)
    for index, wrong in ((5, 0.5), (2, 0.5), (7, 0.1), (9, 0.9)):
        show(metric, index, np.zeros((10, 1200)), (np.arange(1200) < 1200 * wrong)[None].repeat(10, 0))
    assert metric.worst(8) == [9, 2]
    sample = metric.sample(9, np.zeros((10, 1200, 3), np.uint8), "nine")
    assert max(sample.truth.shape) <= SHOWN_SIDE
    assert sample.predicted.mean() == pytest.approx(0.9, abs=0.01)
    assert sample.mistakes == pytest.approx(0.9)


@pytest.mark.parametrize(("truth", "predicted", "words"), [([[3]], [[0]], "a true class outside"), ([[0]], [[3]], "a predicted class outside")])
def test_a_class_that_is_none_is_a_bug(truth: Any, predicted: Any, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        show(SemanticMetric(NAMES), 0, truth, predicted)


@pytest.mark.parametrize(("pixels", "expected"), [(1, [1, 1, 1, 1, 1]), (2 * 8 * 16, [2, 2, 1]), (5 * 8 * 16, [5])])
def test_a_batch_of_large_pictures_goes_through_the_network_in_passes(pixels: int, expected: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(passes, "PIXELS_PER_PASS", pixels)
    task = SemanticTask(criterion=None, class_logits=lambda output: output, spec=InputSpec(), names=NAMES)
    images, seen = torch.rand(5, 3, 8, 16), []

    class Net(torch.nn.Module):
        def forward(self, given: torch.Tensor) -> torch.Tensor:
            seen.append(len(given))
            return given * 2

    batch = SemanticBatch(
        images=images, weight=torch.ones(5), index=torch.arange(5), epoch=0, key=torch.zeros(5, 2, dtype=torch.int64),
        masks=torch.zeros(5, 8, 16, dtype=torch.uint8), original_hw=torch.tensor([[8, 16]] * 5), content=torch.tensor([[0, 0, 8, 16]] * 5),
        truth=torch.zeros(5, 8, 16, dtype=torch.uint8),
    )  # fmt: skip
    assert torch.equal(task.forward(Net(), batch), apply_input_spec(images, InputSpec()) * 2)
    assert seen == expected


def test_predictions_are_cut_out_of_the_letterbox_and_brought_to_the_original_size() -> None:
    """Input 8x8, the picture in its rows 2 to 6; logits at half of that. Class 1 is the picture's right half, class 2 the padding."""
    logits = torch.zeros(1, 3, 4, 4)
    logits[0, 0, :, :2] = logits[0, 1, :, 2:] = 5.0
    logits[0, 2, 0] = logits[0, 2, 3] = 9.0
    task = SemanticTask(criterion=None, class_logits=lambda output: output, spec=InputSpec(), names=NAMES)
    batch = SemanticBatch(
        images=torch.zeros(1, 3, 8, 8), weight=torch.ones(1), index=torch.tensor([0]), epoch=0, key=torch.zeros(1, 2, dtype=torch.int64),
        masks=torch.zeros(1, 8, 8, dtype=torch.uint8), original_hw=torch.tensor([[20, 40]]), content=torch.tensor([[2, 0, 6, 8]]),
        truth=torch.zeros(1, 20, 40, dtype=torch.uint8),
    )  # fmt: skip
    [mask] = task.decode(logits, batch)
    assert mask.shape == (20, 40)
    assert mask.dtype == torch.uint8
    assert sorted(mask.unique().tolist()) == [0, 1]
    assert (mask[:, :20] == 0).all() and (mask[:, 20:] == 1).all()
