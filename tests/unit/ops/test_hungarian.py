"""Assignment of targets to predictions, and its costs."""

from __future__ import annotations

import math

import pytest
import torch

from libreyolo.ops.hungarian import box_cost, focal_cost, match


def test_the_cheapest_whole_assignment_wins_over_the_greedy_one() -> None:
    # Both targets like query 0 best; target 0 gives way, for it loses less: 2 + 1 < 0 + 9.
    cost = torch.tensor([[[[0.0, 1.0], [2.0, 9.0], [5.0, 9.5]]]])
    found = match(cost, torch.tensor([2]))
    assert found.queries.tolist() == [[[1, 0]]]
    assert found.found.tolist() == [[[True, True]]]


def test_levels_and_pictures_are_matched_apart_and_padding_gets_no_query() -> None:
    cost = torch.zeros(2, 2, 3, 2)
    cost[0, 0, 2, 0] = cost[1, 0, 1, 0] = -1
    cost[:, 0, :, 1] = -100  # a padded target, however cheap
    found = match(cost, torch.tensor([1, 0]))
    assert found.queries[:, 0, 0].tolist() == [2, 1]
    assert found.found.tolist() == [[[True, False], [False, False]]] * 2


def test_with_more_targets_than_queries_some_stay_without() -> None:
    found = match(torch.tensor([[[[3.0, 1.0, 2.0]]]]), torch.tensor([3]))
    assert found.found.tolist() == [[[False, True, False]]]


def test_a_cost_that_is_no_number_is_the_dearest() -> None:
    found = match(torch.tensor([[[[math.nan], [5.0], [math.inf]]]]), torch.tensor([1]))
    assert found.queries.item() == 1


def test_the_class_cost_is_the_focal_loss_gained() -> None:
    logits = torch.tensor([[0.0, math.log(3)]])  # p = 0.5 and 0.75
    expected = [0.25 * (1 - p) ** 2 * -math.log(p) - 0.75 * p**2 * -math.log(1 - p) for p in (0.75, 0.5, 0.75)]
    assert focal_cost(logits, torch.tensor([1, 0, 1])).tolist()[0] == pytest.approx(expected)


def test_the_box_cost_of_the_same_box_is_minus_the_overlap_and_grows_with_distance() -> None:
    boxes = torch.tensor([[0.5, 0.5, 0.2, 0.2], [0.7, 0.5, 0.2, 0.2]])
    cost = box_cost(boxes, boxes[:1], torch.tensor([100.0, 50.0, 100.0, 50.0]), l1=5.0, giou=2.0)
    assert cost.flatten().tolist() == pytest.approx([-2.0, 5 * 0.2 - 2 * 0.0], abs=1e-4)
