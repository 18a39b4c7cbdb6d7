"""A classifier's pictures: what is drawn where, and what stays small for many classes."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from libreyolo.interfaces.events import TrainEnd, TrainStart, ValidationEnd
from libreyolo.metrics.classification import NO_GUESS, ClassifySample, Guesses
from libreyolo.record.plots.captions import GAP, LINE, TILE, WHITE, Captioned, draw_captioned
from libreyolo.record.plots.classify import (
    RIGHT,
    WRONG,
    ClassifyValidationPictures,
    _guess_lines,
    draw_class_batch,
    draw_class_counts,
    draw_guesses,
    most_confused,
)

NAMES = {0: "cat", 1: "dog", 2: "emu"}


def pixels(path: Path) -> np.ndarray:
    return np.asarray(Image.open(path).convert("RGB"))


def sample(truth: int, labels: list[int], scores: list[float], mistakes: float, grey: int = 90) -> ClassifySample:
    guesses = Guesses(np.array(labels), np.array(scores, np.float32), 0.1)
    return ClassifySample(np.full((30, 60, 3), grey, np.uint8), truth, guesses, "x.jpg", mistakes)


def test_tiles_stand_in_rows_with_their_words_below(tmp_path: Path) -> None:
    tiles = [Captioned(np.full((20, 20, 3), 40 * i, np.uint8), [("words", (200, 0, 0))]) for i in range(1, 6)]
    draw_captioned(tiles, tmp_path / "a.png", columns=2)
    sheet = pixels(tmp_path / "a.png")
    height = TILE + LINE + 4
    assert sheet.shape == (3 * (height + GAP) - GAP, 2 * TILE + GAP, 3)
    for i in range(5):
        x, y = (i % 2) * (TILE + GAP), (i // 2) * (height + GAP)
        assert (sheet[y : y + TILE, x : x + TILE] == 40 * (i + 1)).all()
        below = sheet[y + TILE : y + height, x : x + TILE].reshape(-1, 3).astype(int)
        assert (below[:, 0] - below[:, 1]).max() > 100  # red letters
    assert (sheet[2 * (height + GAP) :, TILE + GAP :] == WHITE).all()
    draw_captioned([], tmp_path / "none.png")
    assert (tmp_path / "none.png").exists()


def test_the_guess_is_green_where_right_and_red_where_wrong() -> None:
    assert _guess_lines(sample(1, [1, 0, 2], [0.6, 0.3, 0.1], 0.4), NAMES)[1] == ("dog 0.60", RIGHT)
    lines = _guess_lines(sample(1, [0, 1, 2], [0.6, 0.3, 0.1], 1.7), NAMES)
    assert [text for text, _ in lines] == ["true: dog   x.jpg", "cat 0.60", "dog 0.30"]
    assert [color for _, color in lines[1:]] == [WRONG, RIGHT]
    assert _guess_lines(sample(1, [NO_GUESS] * 3, [0, 0, 0], 2.0), NAMES)[1][0] == "no number"


def test_the_worst_picture_comes_first(tmp_path: Path) -> None:
    draw_guesses([sample(0, [0, 1], [0.9, 0.1], 0.1, grey=10), sample(0, [1, 0], [0.9, 0.1], 1.9, grey=200)], NAMES, tmp_path / "p.png")
    assert pixels(tmp_path / "p.png")[TILE // 2, TILE // 2].tolist() == [200] * 3


def test_of_many_classes_the_most_confused_are_shown_in_their_order() -> None:
    counts = np.diag(np.full(100, 5))
    counts[7, 93], counts[93, 50] = 4, 3
    shown, names = most_confused(counts, {i: f"c{i}" for i in range(100)}, limit=3)
    assert list(names.values()) == ["c7", "c50", "c93"]
    assert shown.tolist() == [[5, 0, 4], [0, 5, 0], [0, 3, 5]]
    assert most_confused(counts[:3, :3], NAMES)[1] == NAMES


def test_a_run_leaves_confusion_and_predictions_of_its_best_validation(tmp_path: Path) -> None:
    listener = ClassifyValidationPictures(tmp_path, NAMES, every=1)
    listener.on_train_start(TrainStart(tmp_path, {}, 3, 0, 2, 1, NAMES))
    listener.on_validation_end(ValidationEnd(1, {}, {"confusion": np.eye(3, dtype=int)}, [sample(0, [0, 1], [0.9, 0.1], 0.1)]))
    listener._to_draw = listener._validation
    listener.on_train_end(TrainEnd(tmp_path, {}))
    assert sorted(p.name for p in (tmp_path / "plots").iterdir()) == ["confusion.png", "predictions.png"]


@pytest.mark.parametrize("num_classes", [1, 3, 200])
def test_class_counts_of_any_number_of_classes_are_drawn(tmp_path: Path, num_classes: int) -> None:
    counts = {"train": np.arange(num_classes) + 1, "val": np.zeros(num_classes, int)}
    draw_class_counts(counts, np.array([[10, 20], [30, 40]]), {i: f"class {i}" for i in range(num_classes)}, tmp_path / "c.png")
    assert 300 < pixels(tmp_path / "c.png").shape[0] < 4000


def test_a_training_batch_is_drawn_with_its_labels(tmp_path: Path) -> None:
    images = torch.zeros(3, 3, 8, 8)
    images[1] = 1.0
    draw_class_batch(images, torch.tensor([[0, 1], [2, 2], [1, 1]]), torch.tensor([[0.7, 0.3], [1.0, 0.0], [0.6, 0.4]]), NAMES, tmp_path / "b.png")
    sheet = pixels(tmp_path / "b.png")
    assert sheet[5, 5].tolist() == [0] * 3
    assert sheet[5, TILE + GAP + 5].tolist() == [255] * 3
