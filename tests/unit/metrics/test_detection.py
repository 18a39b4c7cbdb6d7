"""The detection metric against hand values, and its independence of who saw what."""

from __future__ import annotations

import logging
import math

import numpy as np
import pytest
import torch

from libreyolo.interfaces.batch import Detections
from libreyolo.metrics import coco
from tests.unit.metrics.conftest import batch_of, detections, metric_for

COLUMN_TEXT = (
    "precision recall mAP50-95 mAP50 mAP75 precision(B) recall(B) mAP50(B) mAP50-95(B) mAP_small mAP_medium mAP_large "
    "AR1 AR10 AR100 AR_max_det max_det AR_small AR_medium AR_large best_conf best_conf_f1"
)
COLUMNS = COLUMN_TEXT.split()
SMALL, MEDIUM, LARGE = [0, 0, 20, 20], [0, 0, 60, 60], [0, 0, 200, 200]


def test_columns_are_the_published_ones_in_their_order():
    metric = metric_for({0: ([SMALL], [0])}, 1)
    metric.update(batch_of([0]), [detections([SMALL], [0.5], [0])])
    assert list(metric.compute()) == [f"metrics/{name}" for name in COLUMNS]


def test_perfect_predictions_score_one_everywhere():
    truth = {0: ([SMALL, LARGE], [0, 1]), 1: ([MEDIUM], [1])}
    metric = metric_for(truth, 2)
    metric.update(batch_of([0, 1]), [detections([SMALL, LARGE], [0.9, 0.8], [0, 1]), detections([MEDIUM], [0.7], [1])])
    result = metric.compute()
    ones = [name for name in COLUMNS if name not in ("max_det", "best_conf")]
    assert {name: result[f"metrics/{name}"] for name in ones} == pytest.approx(dict.fromkeys(ones, 1.0), abs=1e-9)
    assert result["metrics/best_conf"] == pytest.approx(0.7)
    assert result["metrics/max_det"] == 300


def test_known_curve_gives_its_hand_computed_ap():
    # Ranked: hit, miss, hit over 2 true boxes. Precision 1 up to recall .5 (51 of the 101 levels), then 2/3 up to recall 1 (50 levels).
    truth = {0: ([LARGE], [0]), 1: ([LARGE], [0])}
    metric = metric_for(truth, 1)
    metric.update(batch_of([0]), [detections([LARGE, [300, 300, 400, 400]], [0.9, 0.8], [0, 0])])
    metric.update(batch_of([1]), [detections([LARGE], [0.7], [0])])
    result = metric.compute()
    expected = (51 * 1.0 + 50 * 2 / 3) / 101
    assert result["metrics/mAP50"] == pytest.approx(expected, abs=1e-9)
    assert result["metrics/mAP50-95"] == pytest.approx(expected, abs=1e-9)
    # F1: .9 -> 2*1/(1+2) = .667, .8 -> .5, .7 -> 2*2/(3+2) = .8
    assert result["metrics/best_conf_f1"] == pytest.approx(0.8)
    assert result["metrics/best_conf"] == pytest.approx(0.7)
    assert result["metrics/precision"] == pytest.approx(2 / 3)
    assert result["metrics/recall"] == pytest.approx(1.0)


def test_overlap_decides_how_many_thresholds_are_met():
    # 100x100 against 100x72: IoU .72 meets .50 .55 .60 .65 .70, five of ten thresholds.
    metric = metric_for({0: ([[0, 0, 100, 100]], [0])}, 1)
    metric.update(batch_of([0]), [detections([[0, 0, 100, 72]], [0.9], [0])])
    result = metric.compute()
    assert result["metrics/mAP50"] == pytest.approx(1.0)
    assert result["metrics/mAP75"] == 0.0
    assert result["metrics/mAP50-95"] == pytest.approx(0.5)


def test_size_ranges_without_truth_are_minus_one_and_sizes_are_box_areas():
    metric = metric_for({0: ([[0, 0, 31, 31], LARGE], [0, 0])}, 1)
    metric.update(batch_of([0]), [detections([[0, 0, 31, 31]], [0.9], [0])])
    result = metric.compute()
    sizes = [result[f"metrics/{kind}_{size}"] for kind in ("mAP", "AR") for size in ("small", "medium", "large")]
    assert sizes == pytest.approx([1.0, -1.0, 0.0, 1.0, -1.0, 0.0])


def test_recall_is_limited_by_the_number_of_detections():
    boxes = [[40.0 * i, 0, 40.0 * i + 30, 30] for i in range(12)]
    metric = metric_for({0: (boxes, [0] * 12)}, 1)
    metric.update(batch_of([0]), [detections(boxes, np.linspace(0.9, 0.5, 12).tolist(), [0] * 12)])
    result = metric.compute()
    assert result["metrics/AR1"] == pytest.approx(1 / 12)
    assert result["metrics/AR10"] == pytest.approx(10 / 12)
    assert result["metrics/AR100"] == result["metrics/AR_max_det"] == pytest.approx(1.0)


def test_max_det_keeps_the_best_of_a_picture():
    boxes = [[40.0 * i, 0, 40.0 * i + 30, 30] for i in range(4)]
    metric = metric_for({0: (boxes, [0] * 4)}, 1, max_det=2)
    metric.update(batch_of([0]), [detections(boxes, [0.2, 0.9, 0.4, 0.8], [0] * 4)])
    assert metric.compute()["metrics/AR_max_det"] == pytest.approx(0.5)
    np.testing.assert_allclose(metric.state()["scores"], [0.9, 0.8])


@pytest.mark.parametrize(
    ("truth", "found"),
    [({}, {}), ({0: ([], [])}, {0: []}), ({0: ([], [])}, {0: [LARGE]}), ({0: ([LARGE], [1])}, {0: []})],
    ids=["no pictures", "nothing there", "no truth", "no predictions"],
)
def test_empty_cases_are_defined_and_never_nan(truth, found):
    metric = metric_for(truth, 2)
    for index, boxes in found.items():
        metric.update(batch_of([index]), [detections(boxes, [0.5] * len(boxes), [0] * len(boxes))])
    result = metric.compute()
    assert list(result) == [f"metrics/{name}" for name in COLUMNS]
    assert all(math.isfinite(value) for value in result.values())
    for name in ("precision", "recall", "mAP50-95", "mAP50", "AR100", "best_conf_f1", "best_conf"):
        assert result[f"metrics/{name}"] == 0.0
    curves = metric.curves()
    assert all(np.isfinite(value).all() for value in curves.values() if isinstance(value, np.ndarray))
    assert curves["confusion"].shape == (3, 3)
    assert [row["name"] for row in metric.per_class()] == ["class0", "class1"]
    assert metric.class_metrics() == [(row["name"], {"mAP50-95": row["AP50-95"], "mAP50": row["AP50"]}) for row in metric.per_class()]


def test_pictures_that_were_not_evaluated_do_not_count():
    metric = metric_for({0: ([LARGE], [0]), 1: ([LARGE], [0])}, 1)
    metric.update(batch_of([0]), [detections([LARGE], [0.9], [0])])
    assert metric.compute()["metrics/mAP50"] == pytest.approx(1.0)
    assert metric.per_class()[0]["instances"] == 1


def test_pictures_of_weight_zero_are_left_out():
    metric = metric_for({0: ([LARGE], [0]), 1: ([LARGE], [0])}, 1)
    metric.update(batch_of([0, 1], [1.0, 0.0]), [detections([LARGE], [0.9], [0]), detections([], [], [])])
    assert metric.state()["index"].tolist() == [0]


def test_result_is_equal_to_the_bit_however_pictures_were_shared_out(random_set):
    truth, found = random_set()
    whole = metric_for(truth, 5)
    for index in truth:
        whole.update(batch_of([index]), [found[index]])
    expected, expected_curves = whole.compute(), whole.curves()
    rng = np.random.default_rng(7)
    for world_size in (1, 2, 3, 5):
        order = rng.permutation(len(truth)).tolist()
        ranks = [metric_for(truth, 5) for _ in range(world_size)]
        for place, index in enumerate([*order, *order[:2]]):  # the first two are padded repeats that come with weight 1
            ranks[place % world_size].update(batch_of([index]), [found[index]])
        merged = metric_for(truth, 5)
        merged.merge([rank.state() for rank in reversed(ranks)])
        assert merged.compute() == expected
        for name, value in merged.curves().items():
            np.testing.assert_array_equal(value, expected_curves[name], err_msg=name)


def test_equal_scores_do_not_depend_on_the_order_of_the_rows(random_set):
    truth, found = random_set(seed=3)
    results = []
    for flip in (False, True):
        metric = metric_for(truth, 5)
        for index, rows in found.items():
            order = torch.arange(len(rows.scores)).flip(0) if flip else torch.arange(len(rows.scores))
            metric.update(batch_of([index]), [Detections(rows.boxes[order], rows.scores[order], rows.labels[order])])
        results.append(metric.compute())
    assert results[0] == results[1]
    assert 0.1 < results[0]["metrics/mAP50"] < 1.0


def test_truth_from_text_rows_and_from_json_gives_the_same_numbers(random_set):
    truth, found = random_set(seed=5)
    side = 512
    from_text, from_json = {}, {}
    for index, (boxes, labels) in truth.items():
        x1, y1, x2, y2 = np.array(boxes, np.float64).reshape(-1, 4).T
        cx, cy, w, h = (np.round(v / side, 9) for v in ((x1 + x2) / 2, (y1 + y2) / 2, x2 - x1, y2 - y1))
        from_text[index] = ((np.stack([cx - w / 2, cy - h / 2, cx + w / 2, cy + h / 2], 1) * side).tolist(), labels)
        x, y, width, height = (np.round(v, 6) for v in (x1, y1, x2 - x1, y2 - y1))
        from_json[index] = (np.stack([x, y, x + width, y + height], 1).tolist(), labels)
    results = []
    for source in (from_text, from_json):
        metric = metric_for(source, 5)
        for index in source:
            metric.update(batch_of([index]), [found[index]])
        results.append(metric.compute())
    assert results[0] == pytest.approx(results[1], abs=1e-6)


def test_classes_in_several_groups_give_the_same_result_as_in_one(random_set, monkeypatch):
    truth, found = random_set()
    results = []
    for size in (200_000, 1):
        monkeypatch.setattr("libreyolo.metrics.coco.GROUP_DETECTIONS", size)
        metric = metric_for(truth, 5)
        for index in truth:
            metric.update(batch_of([index]), [found[index]])
        results.append((metric.compute(), metric.per_class()))
    assert results[0] == results[1]


@pytest.mark.parametrize("ranks", [2, 3, 7])
def test_a_metric_worked_out_in_parts_is_the_whole_one_to_the_bit(random_set, ranks):
    truth, found = random_set()

    def filled():
        metric = metric_for(truth, 5)
        metric.update(batch_of(list(truth)), [found[index] for index in truth])
        return metric

    whole, first = filled(), filled()
    parts = [filled().part(number, ranks) for number in range(ranks)]
    assert sorted(k for part in parts for k in part.classes) == list(range(5))  # each class once; with 7 ranks some have nothing to do
    first.take_parts(parts)
    assert first.compute() == whole.compute()
    assert first.per_class() == whole.per_class()
    first.merge([metric_for(truth, 5).state()])
    assert first.compute()["metrics/mAP50"] == 0.0  # parts of what was there before are forgotten


def test_parts_have_about_as_many_boxes():
    sizes, known = np.array([10, 1, 6, 5, 3]), np.ones(5, bool)
    assert [coco._share(sizes, known, number, 2) for number in (0, 1)] == [[0, 4], [1, 2, 3]]  # 13 boxes and 12
    only_one = np.array([False, False, True, False, False])
    assert [coco._share(sizes, only_one, number, 2) for number in (0, 1)] == [[2], []]  # classes without truth are nobody's


def test_merging_replaces_what_was_there_and_forgets_the_old_result():
    metric = metric_for({0: ([LARGE], [0]), 1: ([LARGE], [0])}, 1)
    metric.update(batch_of([0]), [detections([LARGE], [0.9], [0])])
    assert metric.compute()["metrics/mAP50"] == pytest.approx(1.0)
    other = metric_for({0: ([LARGE], [0]), 1: ([LARGE], [0])}, 1)
    other.update(batch_of([1]), [detections([], [], [])])
    metric.merge([other.state()])
    assert metric.compute()["metrics/mAP50"] == 0.0
    assert metric.state()["index"].tolist() == [1]


def test_state_is_plain_arrays_and_survives_a_round_trip(random_set):
    truth, found = random_set(num_pictures=4)
    metric = metric_for(truth, 5)
    metric.update(batch_of(list(truth)), list(found.values()))
    state = metric.state()
    assert {name: value.dtype.name for name, value in state.items()} == {
        "index": "int64",
        "count": "int64",
        "boxes": "float32",
        "scores": "float32",
        "labels": "int64",
    }
    other = metric_for(truth, 5)
    other.merge([state])
    assert all(np.array_equal(other.state()[name], state[name]) for name in state)


def test_numbers_that_are_not_finite_are_dropped_with_one_warning(caplog):
    metric = metric_for({0: ([LARGE], [0]), 1: ([LARGE], [0])}, 1)
    bad = detections([LARGE, [0, 0, math.inf, 5]], [math.nan, 0.9], [0, 0])
    with caplog.at_level(logging.WARNING):
        metric.update(batch_of([0, 1]), [bad, bad])
    assert len(caplog.records) == 1
    assert metric.compute()["metrics/mAP50"] == 0.0


def test_a_class_or_a_picture_that_does_not_exist_is_an_error():
    metric = metric_for({0: ([LARGE], [0])}, 1)
    with pytest.raises(ValueError, match="predicted class outside"):
        metric.update(batch_of([0]), [detections([LARGE], [0.9], [1])])
    with pytest.raises(ValueError, match="not one of the 1 pictures"):
        metric.update(batch_of([1]), [detections([], [], [])])
    wrong = metric_for({0: ([LARGE], [4])}, 1)
    wrong.update(batch_of([0]), [detections([], [], [])])
    with pytest.raises(ValueError, match="true class outside"):
        wrong.compute()


def test_rows_by_class_tell_pictures_instances_and_ap():
    truth = {0: ([SMALL, LARGE], [0, 0]), 1: ([MEDIUM], [0])}
    metric = metric_for(truth, 2)
    metric.update(batch_of([0, 1]), [detections([SMALL, LARGE], [0.9, 0.8], [0, 0]), detections([MEDIUM], [0.7], [0])])
    first, second = metric.per_class()
    assert first == pytest.approx({"name": "class0", "pictures": 2, "instances": 3, "P": 1.0, "R": 1.0, "AP50": 1.0, "AP50-95": 1.0})
    assert second == {"name": "class1", "pictures": 0, "instances": 0, "P": 0.0, "R": 0.0, "AP50": -1.0, "AP50-95": -1.0}


def test_worst_pictures_come_first_and_can_be_shown():
    truth = {0: ([LARGE], [0]), 1: ([LARGE, SMALL], [0, 0]), 2: ([LARGE], [0])}
    metric = metric_for(truth, 2)
    found = [detections([LARGE], [0.9], [0]), detections([], [], []), detections([LARGE, [300, 300, 350, 350]], [0.9, 0.5], [1, 0])]
    metric.update(batch_of([0, 1, 2]), found)
    # picture 1 misses two boxes (2), picture 2 names a wrong class (1) and adds a false box of score .5
    np.testing.assert_allclose(metric.curves()["mistakes"], [0.0, 2.0, 1.5])
    assert metric.worst(2) == [1, 2]
    sample = metric.sample(2, np.zeros((400, 400, 3), np.uint8), "two")
    assert (sample.mistakes, sample.title, len(sample.truth_boxes)) == (1.5, "two", 1)
    assert sample.detections.labels.tolist() == [1, 0]
    with pytest.raises(KeyError):
        metric.sample(9, np.zeros((4, 4, 3), np.uint8))


def test_computing_writes_nothing_to_the_terminal(random_set, capfd):
    truth, found = random_set(num_pictures=3)
    metric = metric_for(truth, 5)
    metric.update(batch_of(list(truth)), list(found.values()))
    metric.compute()
    assert capfd.readouterr() == ("", "")
