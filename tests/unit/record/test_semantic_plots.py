"""Pictures of masks: colours where classes are, names below, nothing cut off."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from libreyolo.metrics.semantic import SemanticSample
from libreyolo.record.plots.boxes import class_color
from libreyolo.record.plots.confusion import draw_confusion
from libreyolo.record.plots.masks import IGNORED_COLOR, legend, overlay, with_legend
from libreyolo.record.plots.semantic import HEAD, TILE, WRONG, draw_batch, draw_classes, draw_ious, draw_predictions
from libreyolo.results import SemanticResult
from tests.unit.record.test_plots import texts  # noqa: F401 - a fixture

NAMES = {0: "road", 1: "a car of $1 with a rather long name", 2: "sky"}


def pixels_of(path: Path) -> np.ndarray:
    return np.array(Image.open(path).convert("RGB"))


def split_mask(hw: tuple[int, int] = (40, 60)) -> np.ndarray:
    """Left third class 0, middle third class 2, right third ignored."""
    return np.repeat(np.array([0, 2, 255], np.uint8), hw[1] // 3)[None].repeat(hw[0], axis=0)


def test_each_pixel_leans_to_the_colour_of_its_class_and_borders_have_it_full() -> None:
    painted = overlay(np.full((40, 60, 3), 100, np.uint8), split_mask())
    for column, color in ((5, class_color(0)), (25, class_color(2)), (55, IGNORED_COLOR)):
        assert painted[20, column].tolist() == [round(50 + c / 2) for c in color]
    assert tuple(painted[20, 19]) == class_color(0)
    assert tuple(painted[20, 39]) == class_color(2)


def test_a_small_mask_is_enlarged_without_mixing_classes() -> None:
    painted = overlay(np.zeros((400, 600, 3), np.uint8), split_mask(), strength=1.0)
    assert {tuple(color) for color in painted.reshape(-1, 3)} == {class_color(0), class_color(2), IGNORED_COLOR}


def test_the_legend_names_every_class_within_its_width_in_as_many_lines_as_it_needs() -> None:
    names = {k: f"class number {k}" for k in range(40)}
    narrow, wide = legend(200, list(range(40)), names), legend(4000, [0, 1, 255], names)
    assert narrow.width == 200
    assert narrow.height >= 40 * 20 // 2
    pixels = np.asarray(narrow)
    assert all((pixels == class_color(k)).all(axis=2).any() for k in range(40))
    assert (pixels[:, -1] == 255).all()
    assert wide.height == 20
    assert (np.asarray(wide) == IGNORED_COLOR).all(axis=2).any()


def test_a_result_tells_shares_and_draws_the_picture_at_its_size_with_names_below() -> None:
    result = SemanticResult(np.zeros((40, 60, 3), np.uint8), NAMES, None, np.minimum(split_mask(), 2))
    assert result.summary() == "66.7 % sky, 33.3 % road"
    assert result.shares == {"sky": pytest.approx(2 / 3), "road": pytest.approx(1 / 3)}
    assert result.plot().shape[1:] == (60, 3)
    assert np.array_equal(result.plot()[:40], overlay(result.picture, result.mask))
    assert with_legend(result.picture, [0], NAMES).shape[0] == 60


def test_a_training_sheet_shows_each_picture_with_its_classes(tmp_path: Path) -> None:
    images = torch.zeros(2, 3, 40, 60)
    images[1] = 1.0
    draw_batch(images, torch.from_numpy(np.stack([split_mask()] * 2)), NAMES, tmp_path / "b.png")
    sheet = pixels_of(tmp_path / "b.png")
    tile_w = (1280 - 6) // 2
    assert sheet.shape[1] == 1280
    assert sheet[200, 50].tolist() == [round(c / 4) for c in class_color(0)]
    assert sheet[200, tile_w + 6 + 300].tolist() == [round(0.75 * 255 + c / 4) for c in class_color(2)]


def test_the_worst_prediction_comes_first_and_its_wrong_pixels_are_red(tmp_path: Path) -> None:
    truth = split_mask()
    image = np.full((40, 60, 3), 100, np.uint8)
    good = SemanticSample(image, truth, np.minimum(truth, 2), "good", 0.0)
    bad = SemanticSample(image, truth, np.zeros_like(truth), "bad", 0.5)
    draw_predictions([good, bad], NAMES, tmp_path / "p.png")
    sheet = pixels_of(tmp_path / "p.png")
    last, middle = 3 * (TILE + 6), TILE // 2
    assert tuple(sheet[HEAD + 100, last + middle]) == WRONG  # the middle third is sky and was called road
    assert tuple(sheet[HEAD + 100, last + 20]) != WRONG
    assert tuple(sheet[HEAD + 100, last + TILE - 20]) != WRONG  # ignored: no mistake
    second = sheet[HEAD + 213 + HEAD :]
    assert not (second == WRONG).all(axis=2).any()


@pytest.mark.parametrize("num_classes", [1, 3, 40, 150])
def test_no_text_of_a_diagram_is_cut_off_and_none_covers_another(num_classes: int, tmp_path: Path, texts: Any) -> None:  # noqa: F811
    names = {k: NAMES[1] if k == 1 else f"${k}" for k in range(num_classes)}
    rng = np.random.default_rng(0)
    pixels = rng.integers(0, 10**7, num_classes + 1)
    draw_classes(pixels, rng.integers(0, 50, num_classes + 1), 50, names, tmp_path / "labels.png")
    rows = [{"name": names[k], "IoU": float(rng.random())} for k in range(num_classes)]
    draw_ious(rows, tmp_path / "iou.png")
    draw_confusion(rng.integers(0, 10**10, (num_classes, num_classes)), names, tmp_path / "confusion.png")
    assert len(texts) == 3
    for figure, found in texts:
        assert len(found) > 3
        assert [t for t, box in found if box.x0 < figure.x0 or box.y0 < figure.y0 or box.x1 > figure.x1 or box.y1 > figure.y1] == []
        boxes = np.array([[box.x0 + 1, box.y0 + 1, box.x1 - 1, box.y1 - 1] for _, box in found])
        meets = (boxes[:, None, :2] < boxes[None, :, 2:]).all(-1) & (boxes[None, :, :2] < boxes[:, None, 2:]).all(-1)
        assert [(found[i][0], found[j][0]) for i, j in np.argwhere(meets) if i < j] == []


def test_empty_data_gives_pictures_that_say_so(tmp_path: Path, texts: Any) -> None:  # noqa: F811
    draw_classes(np.zeros(4, np.int64), np.zeros(4, np.int64), 0, NAMES, tmp_path / "labels.png")
    draw_ious([{"name": "road", "IoU": -1.0}], tmp_path / "iou.png")
    assert "0 pictures" in [text for text, _ in texts[0][1]]
    assert "IoU of 0 classes, mean 0.000" in [text for text, _ in texts[1][1]]
