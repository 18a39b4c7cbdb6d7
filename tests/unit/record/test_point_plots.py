"""Dots, crosses and cells, drawn where they belong."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from PIL import Image

from libreyolo.interfaces.batch import Points
from libreyolo.metrics.point_pictures import PointSample
from libreyolo.record.plots.boxes import class_color
from libreyolo.record.plots.dots import Dot, draw_dots
from libreyolo.record.plots.pairs import GAP, HEAD, TILE_W
from libreyolo.record.plots.point import draw_cells, draw_points
from libreyolo.results import PointResult

NAMES = {0: "ant", 1: "bee"}


def test_a_dot_and_a_cross_lie_at_their_points_and_only_there() -> None:
    picture = Image.new("RGB", (100, 60))
    draw_dots(picture, [Dot((20, 30), "", (255, 0, 0)), Dot((70, 40), "", (0, 255, 0), cross=True)])
    pixels = np.asarray(picture).astype(int)
    assert pixels[30, 20].tolist() == [255, 0, 0]
    assert pixels[40, 70].tolist() == [0, 255, 0]
    rows, columns = np.nonzero(pixels.sum(axis=2) > 100)
    assert all(min(abs(x - 20) + abs(y - 30), abs(x - 70) + abs(y - 40)) < 14 for x, y in zip(columns, rows, strict=True))


def test_a_result_counts_and_draws_its_points() -> None:
    points = Points(
        xy=torch.tensor([[20.0, 30.0], [60.0, 10.0]]),
        scores=torch.tensor([0.9, 0.5]),
        labels=torch.tensor([1, 1]),
        cells=torch.tensor([[2, 3], [7, 1]]),
        kept=torch.ones(2, 1, dtype=torch.bool),
    )
    result = PointResult(np.zeros((40, 80, 3), np.uint8), NAMES, None, points)
    assert result.summary() == "2 bee"
    drawn = result.plot()
    assert drawn[30, 20].tolist() == list(class_color(1))
    assert not result.picture.any()
    nothing = PointResult(result.picture, NAMES, None, Points(*(part[:0] for part in vars(points).values())))
    assert (len(nothing), nothing.summary()) == (0, "nothing")
    assert not nothing.plot().any()


def test_the_picture_with_the_worst_mistakes_comes_first_truth_left_and_points_right(tmp_path: Path) -> None:
    def sample(grey: int, mistakes: float) -> PointSample:
        return PointSample(
            image=np.full((100, 100, 3), grey, np.uint8),
            truth_xy=np.array([[50.0, 50.0]]),
            truth_labels=np.array([0]),
            missed=np.array([True]),
            xy=np.array([[25.0, 75.0]], np.float32),
            scores=np.array([0.8], np.float32),
            labels=np.array([1]),
            is_class=np.array([-1]),
            mistakes=mistakes,
        )

    draw_points([sample(40, 1.0), sample(90, 2.0)], NAMES, tmp_path / "pairs.png")
    sheet = np.asarray(Image.open(tmp_path / "pairs.png").convert("RGB"))
    assert sheet[HEAD + 390, 10].tolist() == [90, 90, 90]
    assert sheet[HEAD + 200, 200].tolist() == list(class_color(0))  # the cross in the middle of the left tile, four times as large
    assert sheet[HEAD + 300, TILE_W + GAP + 100].tolist() == list(class_color(1))
    second = 2 * TILE_W + 4 * GAP
    assert sheet[HEAD + 390, second + 10].tolist() == [40, 40, 40]


def test_a_training_batch_shows_the_cells_that_hold_an_object(tmp_path: Path) -> None:
    grid = torch.zeros(1, 4, 4, dtype=torch.int64)
    grid[0, 1, 2] = 2
    draw_cells(torch.zeros(1, 3, 32, 32), grid, 8, NAMES, tmp_path / "cells.png")
    sheet = np.asarray(Image.open(tmp_path / "cells.png").convert("RGB")).astype(int)
    scale = sheet.shape[1] / 32
    rows, columns = np.nonzero((abs(sheet - np.array(class_color(1))) < 20).all(axis=2))
    assert rows.max() / scale == np.clip(rows.max() / scale, 15.5, 16.5)
    assert (columns.min() / scale, columns.max() / scale) == (np.clip(columns.min() / scale, 15.5, 16.5), np.clip(columns.max() / scale, 23.5, 24.5))


def test_a_batch_without_objects_is_drawn_as_it_is(tmp_path: Path) -> None:
    draw_cells(torch.zeros(2, 3, 16, 16), torch.zeros(2, 2, 2, dtype=torch.int64), 8, NAMES, tmp_path / "cells.png")
    assert set(np.unique(np.asarray(Image.open(tmp_path / "cells.png").convert("RGB")))) <= {0, 255}
