"""Curves against confidence, and the confusion matrix, by hand."""

from __future__ import annotations

import numpy as np
import pytest

from libreyolo.metrics import confusion, curves
from libreyolo.metrics.pictures import Picture, Predicted, pairwise_iou

A, B, C = [0, 0, 10, 10], [100, 0, 110, 10], [200, 0, 210, 10]


def picture(boxes, scores, labels, truth, truth_labels, index=0) -> Picture:
    predicted = Predicted(np.array(boxes, np.float32).reshape(-1, 4), np.array(scores, np.float32), np.array(labels, np.int64))
    return Picture(index, predicted, np.array(truth, np.float32).reshape(-1, 4), np.array(truth_labels, np.int64))


def test_iou_by_hand():
    iou = pairwise_iou(np.array([A, [5, 0, 15, 10], [3, 3, 3, 3]], np.float32), np.array([A, [3, 3, 3, 3]], np.float32))
    np.testing.assert_allclose(iou, [[1, 0], [50 / 150, 0], [0, 0]])


def test_a_true_box_is_found_once_by_the_best_score():
    hits = curves.find_hits([picture([A, [0, 0, 10, 9]], [0.9, 0.8], [0, 0], [A], [0])], 1)
    assert hits.hit.tolist() == [True, False]


def test_a_detection_takes_the_free_box_it_overlaps_most():
    near, far = [0, 0, 10, 10], [0, 0, 10, 12]
    hits = curves.find_hits([picture([near, near], [0.9, 0.8], [0, 0], [far, near], [0, 0])], 1)
    assert hits.hit.tolist() == [True, True]


def test_another_class_does_not_count_as_found():
    hits = curves.find_hits([picture([A], [0.9], [1], [A], [0])], 2)
    assert hits.hit.tolist() == [False]
    assert hits.instances.tolist() == [1, 0]


def test_best_confidence_maximises_the_mean_over_classes_with_truth():
    # class 0: hit .9, false .3; class 1: false .6, hit .5; class 2 has no truth, its detection must not matter
    found = picture([A, C, C, B, C], [0.9, 0.3, 0.6, 0.5, 0.95], [0, 0, 1, 1, 2], [A, B], [0, 1])
    point = curves.best_operating_point(curves.find_hits([found], 3))
    # at .9: (1 + 0) / 2; at .6: (1 + 0) / 2; at .5: (1 + 2/3) / 2; at .3: (2/3 + 2/3) / 2
    assert point.confidence == pytest.approx(0.5)
    assert point.mean_f1 == pytest.approx((1 + 2 / 3) / 2)
    np.testing.assert_allclose(point.precision, [1, 0.5, 0])
    np.testing.assert_allclose(point.recall, [1, 1, 0])


def test_detections_of_equal_score_are_taken_together():
    found = picture([A, C], [0.5, 0.5], [0, 0], [A], [0])
    point = curves.best_operating_point(curves.find_hits([found], 1))
    assert point.precision[0] == pytest.approx(0.5)
    assert point.mean_f1 == pytest.approx(2 / 3)


def test_running_sum_equals_a_plain_search_over_all_confidences():
    rng = np.random.default_rng(1)
    labels, hit, scores = rng.integers(0, 4, 200), rng.random(200) < 0.4, np.sort(rng.choice(np.linspace(0.05, 0.95, 40), 200))[::-1]
    instances = np.array([30, 50, 0, 41])
    point = curves.best_operating_point(curves.Hits(scores, labels, hit, instances))

    def mean_f1(confidence: float) -> float:
        above = scores >= confidence
        return np.mean([2 * (hit & above & (labels == k)).sum() / ((above & (labels == k)).sum() + instances[k]) for k in (0, 1, 3)])

    best = max(mean_f1(c) for c in scores)
    assert point.mean_f1 == pytest.approx(best)
    assert mean_f1(point.confidence) == pytest.approx(best)


def test_curves_against_confidence_by_hand():
    found = picture([A, C], [0.75, 0.25], [0, 0], [A, B], [0, 0])
    tables = curves.confidence_curves(curves.find_hits([found], 1))
    at = {c: round(c * (curves.NUM_STEPS - 1)) for c in (0.0, 0.25, 0.5, 0.75, 1.0)}
    assert [tables["precision"][0, at[c]] for c in at] == [0.5, 0.5, 1.0, 1.0, 0.0]
    assert [tables["recall"][0, at[c]] for c in at] == [0.5, 0.5, 0.5, 0.5, 0.0]
    assert [tables["f1"][0, at[c]] for c in at] == pytest.approx([0.5, 0.5, 2 / 3, 2 / 3, 0.0])


def test_confusion_matrix_by_hand():
    # A found right, B found as class 1, C missed, one false box; the box of confidence .2 is not looked at
    found = picture([A, B, [50, 50, 60, 60], C], [0.9, 0.8, 0.7, 0.2], [0, 1, 1, 0], [A, B, C], [0, 0, 1])
    matched = confusion.match(found)
    counts = confusion.confusion_matrix([found], [matched], 2)
    assert counts.tolist() == [[1, 0, 0], [1, 0, 1], [0, 1, 0]]
    assert confusion.mistakes(found, matched) == pytest.approx(1 + 1 + 0.7, abs=1e-6)


def test_confusion_pairs_the_largest_overlap_first_and_one_to_one():
    loose, tight = [0, 0, 10, 7], [0, 0, 10, 9]
    found = picture([loose, tight], [0.9, 0.5], [1, 0], [A], [0])
    matched = confusion.match(found)
    assert matched.pairs.tolist() == [[1, 0]]
    assert matched.false.tolist() == [0]


def test_confusion_calls_no_right_detection_false_because_a_wrong_one_fits_better():
    right, wrong = [0, 0, 10, 7], [0, 0, 10, 9]
    found = picture([right, wrong, B], [0.9, 0.5, 0.4], [0, 1, 1], [A, B], [0, 0])
    matched = confusion.match(found)
    assert matched.pairs.tolist() == [[0, 0], [2, 1]]  # B is all that its object has, and taken for class 1
    assert matched.false.tolist() == [1]
    assert confusion.confusion_matrix([found], [matched], 2).tolist() == [[1, 0, 0], [1, 0, 1], [0, 0, 0]]


def test_confusion_counts_add_up_to_truth_and_confident_detections(random_set):
    truth, rows = random_set()
    pictures = [
        picture(rows[i].boxes.numpy(), np.sort(rows[i].scores.numpy())[::-1], rows[i].labels.numpy(), truth[i][0], truth[i][1], index=i)
        for i in sorted(truth)
    ]
    counts = confusion.confusion_matrix(pictures, [confusion.match(p) for p in pictures], 5)
    true = np.bincount(np.concatenate([p.truth_labels for p in pictures]), minlength=5)
    confident = np.concatenate([p.predicted.labels[p.predicted.scores >= 0.25] for p in pictures])
    assert counts[:, :5].sum(axis=0).tolist() == true.tolist()
    assert counts[:5].sum(axis=1).tolist() == np.bincount(confident, minlength=5).tolist()
    assert counts[5, 5] == 0
