"""The point metric: hand cases, thresholds and radii, several objects in a cell, and the same to the bit however pictures are shared out."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import pytest
import torch

from libreyolo.interfaces.batch import DetectionBatch, Points
from libreyolo.metrics.point import PointMetric

NAMES = {0: "a", 1: "b"}
Row = tuple[int, int, int]  # column, row, class


def points(rows: Sequence[tuple[int, int, int, float]], kept: Sequence[Sequence[bool]] | None = None) -> Points:
    """Points (column, row, class, score) of pictures of 96 px with cells of 8 px."""
    cells = torch.tensor([row[:2] for row in rows], dtype=torch.int64).reshape(-1, 2)
    return Points(
        xy=(cells.float() + 0.5) * 8,
        scores=torch.tensor([row[3] for row in rows], dtype=torch.float32),
        labels=torch.tensor([row[2] for row in rows], dtype=torch.int64),
        cells=cells,
        kept=torch.ones(len(rows), 2, dtype=torch.bool) if kept is None else torch.tensor(kept),
    )


def batch_of(indices: Sequence[int], objects: Sequence[Sequence[Row]], weights: Sequence[float] | None = None) -> DetectionBatch:
    most = max(1, *map(len, objects), 1)
    boxes, labels = torch.zeros(len(objects), most, 4), torch.zeros(len(objects), most, dtype=torch.int64)
    for i, rows in enumerate(objects):
        for j, (column, row, label) in enumerate(rows):
            boxes[i, j] = torch.tensor([8 * column + 2, 8 * row + 2, 8 * column + 7, 8 * row + 7])
            labels[i, j] = label
    counts = torch.tensor([len(rows) for rows in objects])
    return DetectionBatch(
        images=torch.zeros(len(objects), 3, 96, 96),
        weight=torch.ones(len(objects)) if weights is None else torch.tensor(weights),
        index=torch.tensor(indices),
        epoch=0,
        key=torch.zeros(len(objects), 2, dtype=torch.int64),
        boxes=boxes,
        labels=labels,
        valid=torch.arange(most)[None] < counts[:, None],
        num_boxes=counts,
        original_hw=torch.full((len(objects), 2), 96),
        to_input=torch.tensor([[1.0, 1.0, 0.0, 0.0]] * len(objects)),
    )


def metric(thresholds: Sequence[float] = (0.5,), radii: Sequence[int] = (1, 2)) -> PointMetric:
    return PointMetric(NAMES, num_pictures=100, stride=8, thresholds=thresholds, radii=radii, tolerance=1.5)


def judged(objects: Sequence[Row], found: Sequence[tuple[int, int, int, float]]) -> tuple[int, int, int]:
    """Return true, false and missed points of one picture."""
    one = metric()
    one.update(batch_of([0], [objects]), [points(found)])
    columns = one.compute()
    true, false, missed = (int(columns[f"metrics/grid_{name}"]) for name in ("TP", "FP", "FN"))
    return true, false, missed


@pytest.mark.parametrize(
    ("objects", "found", "expected"),
    [
        ([(3, 2, 0)], [(3, 2, 0, 0.9)], (1, 0, 0)),
        ([(3, 2, 0)], [(4, 3, 0, 0.9)], (1, 0, 0)),  # sqrt 2 lies within 1.5
        ([(3, 2, 0)], [(5, 2, 0, 0.9)], (0, 1, 1)),  # 2 does not
        ([(3, 2, 0)], [(3, 2, 1, 0.9)], (0, 1, 1)),  # another class
        ([(5, 2, 0)], [(5, 2, 0, 0.8), (4, 2, 0, 0.9)], (1, 1, 0)),  # one object, taken by the better point
        ([(4, 2, 0), (5, 2, 0)], [(4, 2, 0, 0.9), (3, 2, 0, 0.8)], (1, 1, 1)),  # the better one takes the nearer, and nothing is left for the other
        ([(4, 2, 0), (5, 2, 0)], [(4, 2, 0, 0.8), (3, 2, 0, 0.9)], (2, 0, 0)),
        ([(1, 1, 0), (1, 1, 0)], [(1, 1, 0, 0.9)], (1, 0, 0)),  # two objects in a cell are one
        ([(1, 1, 0), (1, 1, 1)], [(1, 1, 1, 0.9)], (1, 0, 0)),  # of two classes the last counts
        ([(1, 1, 0)], [(1, 1, 0, 0.5)], (0, 0, 1)),  # at the threshold is not above it
        ([], [(1, 1, 0, 0.9)], (0, 1, 0)),
        ([(1, 1, 0)], [], (0, 0, 1)),
    ],
)
def test_points_are_counted_as_by_hand(objects: list[Row], found: list[tuple[int, int, int, float]], expected: tuple[int, int, int]) -> None:
    assert judged(objects, found) == expected


def test_the_best_threshold_and_radius_are_reported_and_the_numbers_are_those_there() -> None:
    """Radius 2 strikes the false point of score .7; threshold .6 the one of .55; .9 would lose a true one."""
    one = metric(thresholds=(0.9, 0.3, 0.6))
    found = points(
        [(2, 2, 0, 0.95), (4, 2, 0, 0.7), (8, 8, 1, 0.8), (0, 11, 1, 0.55)], kept=[[True, True], [True, False], [True, True], [True, True]]
    )
    one.update(batch_of([0], [[(2, 2, 0), (9, 8, 1), (11, 11, 1)]]), [found])
    columns = one.compute()
    assert (columns["decode/threshold"], columns["decode/nms_radius"]) == (0.6, 2.0)
    assert (columns["metrics/grid_TP"], columns["metrics/grid_FP"], columns["metrics/grid_FN"]) == (2, 0, 1)
    assert columns["metrics/grid_F1"] == pytest.approx(4 / 5)
    assert columns["metrics/grid_precision"] == 1.0
    assert columns["metrics/grid_recall"] == pytest.approx(2 / 3)
    assert columns["metrics/grid_mean_distance"] == pytest.approx(0.5)  # 0 and 1 cells
    assert columns["metrics/recall"] == pytest.approx((1 + 0.5) / 2)  # the mean over classes
    assert columns["metrics/f1"] == pytest.approx((1 + 2 / 3) / 2)
    assert [row["F1"] for row in one.per_class()] == pytest.approx([1.0, 2 / 3])
    assert [(row["pictures"], row["instances"]) for row in one.per_class()] == [(1, 1), (1, 2)]
    assert one.curves()["per_class"] == one.per_class()
    assert one.class_metrics()[1] == ("b", {"precision": 1.0, "recall": 0.5, "f1": pytest.approx(2 / 3)})


def test_the_confusion_matrix_pairs_whatever_the_class_and_mistakes_order_pictures() -> None:
    one = metric()
    one.update(
        batch_of([4, 7], [[(3, 2, 0), (9, 9, 1)], [(1, 1, 0)]]),
        [points([(3, 3, 1, 0.9), (0, 0, 0, 0.75)]), points([(1, 1, 0, 0.9)])],
    )
    curves = one.curves()
    assert curves["confusion"].tolist() == [[1, 0, 1], [1, 0, 0], [0, 1, 0]]
    assert curves["mistakes"].tolist() == pytest.approx([2.75, 0.0])
    assert one.worst(5) == [4, 7]
    sample = one.sample(4, np.zeros((96, 96, 3), np.uint8), np.array([[24, 16, 32, 24], [72, 72, 80, 80]]))
    assert sample.missed.tolist() == [False, True]
    assert sample.is_class.tolist() == [0, -1]
    assert sample.truth_xy.tolist() == [[28, 20], [76, 76]]
    with pytest.raises(KeyError, match="picture 5 was not evaluated"):
        one.sample(5, np.zeros((96, 96, 3), np.uint8), np.zeros((0, 4)))


def test_curves_start_at_the_lowest_threshold_and_agree_with_the_columns() -> None:
    one = metric(thresholds=(0.4, 0.7))
    one.update(batch_of([0], [[(3, 2, 0), (6, 6, 0)]]), [points([(3, 2, 0, 0.9), (6, 6, 0, 0.5), (0, 9, 0, 0.45)])])
    curves, columns = one.curves(), one.compute()
    assert curves["confidence"][0] == pytest.approx(0.4)
    at = int(np.searchsorted(curves["confidence"], columns["decode/threshold"] + 1e-9))
    assert curves["recall"][0, at] == columns["metrics/grid_recall"]
    assert curves["precision"][0, at] == columns["metrics/grid_precision"]


@pytest.mark.parametrize("pictures", [0, 2])
def test_nothing_to_judge_gives_zeros_and_no_nan(pictures: int) -> None:
    one = metric()
    if pictures:
        one.update(batch_of([0, 1], [[], []]), [points([]), points([])])
    assert all(math.isfinite(value) for value in one.compute().values())
    assert one.compute()["metrics/grid_F1"] == 0.0
    assert one.curves()["confusion"].tolist() == np.zeros((3, 3)).tolist()
    assert [row["F1"] for row in one.per_class()] == [0.0, 0.0]


def drawn(index: int) -> tuple[list[Row], Points]:
    draw = np.random.default_rng(index)
    objects = [(int(c), int(r), int(k)) for c, r, k in draw.integers(0, [12, 12, 2], (draw.integers(0, 6), 3))]
    # Two digits: ties between pictures must not depend on who saw them first.
    found = [(*map(int, draw.integers(0, [12, 12, 2])), round(float(draw.random()), 2)) for _ in range(draw.integers(0, 9))]
    kept = draw.random((len(found), 2)) > 0.3
    return objects, points(found, kept.tolist() if found else np.zeros((0, 2), bool))


def filled(indices: Sequence[int], batch: int = 3) -> PointMetric:
    one = metric(thresholds=(0.1, 0.4, 0.7))
    for start in range(0, len(indices), batch):
        part = indices[start : start + batch]
        objects, found = zip(*(drawn(i) for i in part), strict=True)
        one.update(batch_of(part, objects), list(found))
    return one


def test_ranks_merge_to_what_one_sees_whoever_saw_what() -> None:
    """A rank without pictures, one picture in two states, another order of points."""
    whole = filled(range(20))
    for shares in ([range(0, 20, 2), range(1, 20, 2)], [range(20), []], [range(15, 20), range(16)], [[], range(19, -1, -1)]):
        merged = metric(thresholds=(0.1, 0.4, 0.7))
        merged.merge([filled(list(share), batch=2).state() for share in shares])
        assert merged.compute() == whole.compute()
        assert merged.per_class() == whole.per_class()
        for name, table in whole.curves().items():
            assert np.array_equal(merged.curves()[name], table), name
    assert 0 < whole.compute()["metrics/grid_F1"] < 1


def test_a_padded_repeat_and_a_picture_seen_twice_count_once() -> None:
    one = metric()
    one.update(batch_of([3, 3, 5], [[(1, 1, 0)]] * 3, weights=[1, 1, 0]), [points([(1, 1, 0, 0.9)])] * 3)
    assert one.compute()["metrics/grid_TP"] == 1
    assert one.state()["index"].tolist() == [3]


def test_a_picture_that_the_set_does_not_have_is_a_fault_of_the_code() -> None:
    with pytest.raises(ValueError, match="picture 100 is not one of the 100"):
        metric().update(batch_of([100], [[]]), [points([])])
