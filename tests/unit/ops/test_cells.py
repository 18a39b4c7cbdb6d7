"""Objects as cells: which cell, several in one, and suppression against a slow loop."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from libreyolo.ops.cells import cells_of, peaks, target_grid

GRID = (12, 12)


def box(x: float, y: float) -> list[float]:
    """A box of 4 px around a centre."""
    return [x - 2, y - 2, x + 2, y + 2]


@pytest.mark.parametrize(
    ("centre", "cell"),
    [((4, 4), (0, 0)), ((7.99, 4), (0, 0)), ((8, 4), (1, 0)), ((20, 44), (2, 5)), ((96, 96), (11, 11)), ((0, 96), (0, 11))],
)
def test_an_object_lies_in_the_cell_of_its_centre_and_the_far_edge_in_the_last_one(centre: tuple[float, float], cell: tuple[int, int]) -> None:
    assert tuple(cells_of(torch.tensor(box(*centre)), GRID, 8).tolist()) == cell


def test_a_cell_holds_its_class_plus_one_and_background_is_zero() -> None:
    boxes = torch.tensor([[box(12, 4), box(4, 4)], [box(90, 60), box(0, 0)]])
    grid = target_grid(boxes, torch.tensor([[4, 0], [2, 7]]), torch.tensor([[True, True], [True, False]]), GRID, 8)
    assert {tuple(place): int(grid[tuple(place)]) for place in grid.nonzero().tolist()} == {(0, 0, 0): 1, (0, 0, 1): 5, (1, 7, 11): 3}


def test_of_several_objects_in_a_cell_the_last_decides_and_rows_that_are_not_valid_never() -> None:
    boxes = torch.tensor([[box(4, 4), box(5, 5), box(3, 3), box(4, 4)]])
    grid = target_grid(boxes, torch.tensor([[1, 3, 2, 9]]), torch.tensor([[True, True, True, False]]), GRID, 8)
    assert int(grid[0, 0, 0]) == 3
    assert int((grid > 0).sum()) == 1


def test_a_picture_without_objects_is_all_background() -> None:
    grid = target_grid(torch.zeros(1, 1, 4), torch.zeros(1, 1, dtype=torch.int64), torch.zeros(1, 1, dtype=torch.bool), GRID, 8)
    assert grid.shape == (1, 12, 12)
    assert not grid.any()


def slow_peaks(scores: Tensor, candidates: Tensor, radius: int) -> set[tuple[int, int]]:
    """Best first, one after the other; equal scores by row, then column."""
    places = sorted(map(tuple, candidates.nonzero().tolist()), key=lambda place: (-float(scores[place]), place))
    kept: list[tuple[int, int]] = []
    for row, column in places:
        if all(max(abs(row - r), abs(column - c)) > radius for r, c in kept):
            kept.append((row, column))
    return set(kept)


@pytest.mark.parametrize("radius", [0, 1, 2, 5])
@pytest.mark.parametrize("levels", [4, 1000])
def test_suppression_is_that_of_a_loop_in_order_of_the_scores(radius: int, levels: int) -> None:
    """With few levels nearly every score has its equal."""
    draw = torch.Generator().manual_seed(radius)
    scores = torch.randint(levels, (6, 9, 13), generator=draw) / levels
    candidates = torch.rand(6, 9, 13, generator=draw) > 0.3
    found = peaks(scores, candidates, radius)
    for i in range(6):
        assert {tuple(place) for place in found[i].nonzero().tolist()} == slow_peaks(scores[i], candidates[i], radius)


def test_a_chain_of_falling_scores_keeps_every_second_cell() -> None:
    """The one in the middle is taken away by the first, so it takes nothing away itself."""
    scores = torch.tensor([[[0.9, 0.8, 0.7, 0.6, 0.5]]])
    assert peaks(scores, scores > 0, 1).tolist() == [[[True, False, True, False, True]]]


def test_no_candidate_gives_no_peak() -> None:
    assert not peaks(torch.rand(2, 3, 4), torch.zeros(2, 3, 4, dtype=torch.bool), 1).any()
