"""Pictures: what is on them, that nothing is cut off or written over, and that nothing of them stays in memory."""

from __future__ import annotations

import gc
import subprocess
import sys

import matplotlib
import numpy as np
import pytest
import torch
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.text import Text
from PIL import Image

from libreyolo.interfaces.batch import Detections
from libreyolo.metrics.pictures import DetectionSample
from libreyolo.record.plots.boxes import CLASS_COLORS, Mark, class_color, draw_marks
from libreyolo.record.plots.confusion import draw_confusion
from libreyolo.record.plots.curves import plot_curves
from libreyolo.record.plots.f1_curve import draw_confidence_curves
from libreyolo.record.plots.labels import draw_labels
from libreyolo.record.plots.pr_curve import draw_pr_curve
from libreyolo.record.plots.predictions import draw_predictions
from libreyolo.record.plots.train_batch import draw_batch
from tests.unit.record.conftest import row_of, validation_of


def names_of(num_classes: int) -> dict[int, str]:
    return {k: "a class with a rather long name" if k == 1 else f"${k} note" for k in range(num_classes)}


def draw_all_diagrams(num_classes: int, folder) -> None:
    rng = np.random.default_rng(0)
    names = names_of(num_classes)
    counts = rng.integers(0, 2000, (num_classes + 1, num_classes + 1))
    draw_confusion(counts, names, folder / "confusion.png")
    falling = np.sort(rng.random((num_classes, 101)))[:, ::-1]
    draw_pr_curve(np.linspace(0, 1, 101), falling, falling.mean(axis=1), names, folder / "pr.png")
    axis = np.linspace(0, 1, 101)
    draw_confidence_curves(axis, falling, falling[:, ::-1], falling, np.ones(num_classes), 0.4, names, folder / "f1.png")
    labels = rng.integers(0, num_classes, 500)
    draw_labels(labels, rng.random((500, 4)), rng.integers(0, 40, 60), names, folder / "labels.png")
    plot_curves([row_of(epoch) for epoch in range(1, 12)], folder / "curves.png")


@pytest.fixture
def texts(monkeypatch):
    """What is really written on each figure: (figure box, [(text, box)])."""
    seen = []
    write_png, draw_text = FigureCanvasAgg.print_png, Text.draw

    def look(self, *args, **kwargs):
        drawn: list[Text] = []
        with monkeypatch.context() as patch:
            patch.setattr(Text, "draw", lambda text, renderer, *a, **k: (drawn.append(text), draw_text(text, renderer, *a, **k)))
            write_png(self, *args, **kwargs)
        written = [text for text in drawn if text.get_visible() and text.get_text().strip()]
        seen.append((self.figure.bbox.frozen(), [(text.get_text(), text.get_window_extent()) for text in written]))

    monkeypatch.setattr(FigureCanvasAgg, "print_png", look)
    return seen


@pytest.mark.parametrize("num_classes", [1, 2, 9, 30, 80])
def test_no_text_is_cut_off_and_none_covers_another(num_classes, tmp_path, texts):
    draw_all_diagrams(num_classes, tmp_path)
    assert len(texts) == 5
    for figure, found in texts:
        assert len(found) > 5
        outside = [t for t, box in found if box.x0 < figure.x0 or box.y0 < figure.y0 or box.x1 > figure.x1 or box.y1 > figure.y1]
        assert outside == []
        boxes = np.array([[box.x0 + 1, box.y0 + 1, box.x1 - 1, box.y1 - 1] for _, box in found])
        meets = (boxes[:, None, :2] < boxes[None, :, 2:]).all(-1) & (boxes[None, :, :2] < boxes[:, None, 2:]).all(-1)
        assert [(found[i][0], found[j][0]) for i, j in np.argwhere(meets) if i < j] == []


def test_confusion_shows_shares_of_columns_and_counts(tmp_path, texts):
    draw_confusion(np.array([[30, 5, 4], [10, 0, 0], [0, 15, 0]]), {0: "cat", 1: "dog"}, tmp_path / "c.png")
    cells = [text for text, _ in texts[0][1] if "\n" in text]
    assert cells == ["75%\n30", "25%\n5", "100%\n4", "25%\n10", "75%\n15"]
    ticks = [text for text, _ in texts[0][1] if text in ("cat", "dog", "background")]
    assert ticks == ["cat", "dog", "background"] * 2


def test_a_matrix_without_background_has_none(tmp_path, texts):
    draw_confusion(np.eye(2, dtype=np.int64), {0: "cat", 1: "dog"}, tmp_path / "c.png")
    assert "background" not in [text for text, _ in texts[0][1]]


def test_many_classes_are_drawn_without_a_legend_of_all(tmp_path, texts):
    draw_pr_curve(np.linspace(0, 1, 101), np.full((80, 101), 0.5), np.full(80, 0.5), names_of(80), tmp_path / "pr.png")
    assert [text for text, _ in texts[0][1] if "note" in text] == []
    assert "mean of 80 classes 0.500" in [text for text, _ in texts[0][1]]


def test_classes_without_truth_are_left_out_of_the_mean(tmp_path, texts):
    precision = np.stack([np.full(101, 0.8), np.full(101, -1.0)])
    draw_pr_curve(np.linspace(0, 1, 101), precision, np.array([0.8, -1.0]), {0: "cat", 1: "dog"}, tmp_path / "pr.png")
    written = [text for text, _ in texts[0][1]]
    assert "mean of 1 class 0.800" in written
    assert not any(text.startswith("dog") for text in written)


def test_rare_classes_are_summed_up_in_the_label_picture(tmp_path, texts):
    labels = np.repeat(np.arange(40), np.arange(40, 0, -1))
    draw_labels(labels, np.full((len(labels), 4), 0.5), np.array([0, 3]), names_of(40), tmp_path / "l.png")
    written = [text for text, _ in texts[0][1]]
    assert "16 others" in written
    assert f" {sum(range(1, 17))}" in written
    assert "2 pictures, 1 without a box" in written


def test_run_curves_show_one_line_for_equal_rates_and_mark_the_best(tmp_path, texts):
    rows = [{**row_of(epoch), "lr/group1": 0.01, "lr/group2": 0.02 * epoch} for epoch in (1, 2, 3)]
    plot_curves(rows, tmp_path / "c.png")
    written = [text for text, _ in texts[0][1]]
    assert {"group0, group1", "group2", "total", "box", "mAP50-95", "best 0.3000 (epoch 3)"} <= set(written)


def test_a_line_that_hardly_moves_lies_below_the_frame_of_a_diagram_from_zero(tmp_path, monkeypatch):
    limits, write_png = {}, FigureCanvasAgg.print_png

    def look(self, *args, **kwargs):
        limits.update({axes.get_title(): axes.get_ylim() for axes in self.figure.axes})
        write_png(self, *args, **kwargs)

    monkeypatch.setattr(FigureCanvasAgg, "print_png", look)
    plot_curves([row_of(epoch) | {"system/gpu_memory_gb": value} for epoch, value in ((1, 5.836), (2, 5.838))], tmp_path / "curves.png")
    bottom, top = limits["GPU memory (GB)"]
    assert bottom == 0
    assert 6.0 < top < 6.5


@pytest.mark.parametrize("rows", [[], [{"epoch": 1, "train/loss": None, "lr/group0": float("nan")}]])
def test_runs_without_numbers_give_an_empty_diagram(rows, tmp_path, texts):
    plot_curves(rows, tmp_path / "c.png")
    assert [text for text, _ in texts[0][1]].count("nothing yet") == 3


def test_empty_data_gives_pictures_that_say_so(tmp_path, texts):
    draw_labels(np.zeros(0), np.zeros((0, 4)), np.zeros(0), {0: "cat"}, tmp_path / "labels.png")
    draw_pr_curve(np.linspace(0, 1, 101), np.full((1, 101), -1.0), np.array([-1.0]), {0: "cat"}, tmp_path / "pr.png")
    zeros = np.zeros((1, 11))
    draw_confidence_curves(np.linspace(0, 1, 11), zeros, zeros, zeros, np.zeros(1), 0.0, {0: "cat"}, tmp_path / "f1.png")
    draw_confusion(np.zeros((2, 2), np.int64), {0: "cat"}, tmp_path / "confusion.png")
    assert "0 boxes of 1 class" in [text for text, _ in texts[0][1]]
    assert "no labelled object" in [text for text, _ in texts[1][1]]
    assert len(list(tmp_path.glob("*.png"))) == 4


def pixels_of(path) -> np.ndarray:
    return np.array(Image.open(path).convert("RGB"))


def test_a_training_sheet_has_its_boxes_where_they_are_in_the_colour_of_their_class(tmp_path):
    images = torch.zeros(5, 3, 64, 64)
    boxes = torch.zeros(5, 2, 4)
    boxes[4, 0] = torch.tensor([16.0, 32, 48, 56])
    boxes[4, 1] = torch.tensor([1.0, 1, 9, 9])  # not valid
    labels, valid = torch.ones(5, 2, dtype=torch.int64), torch.zeros(5, 2, dtype=torch.bool)
    valid[4, 0] = True
    draw_batch(images, boxes, labels, valid, {0: "cat", 1: "dog"}, tmp_path / "b.png")
    sheet = pixels_of(tmp_path / "b.png")
    # five pictures: three columns of (1280 - 8) // 3 = 424 pixels and two rows; the fifth lies in the middle below
    assert sheet.shape == (2 * 424 + 4, 3 * 424 + 8, 3)
    tile = sheet[428:, 428 : 428 + 424]
    scale = 424 / 64
    assert tuple(tile[round(56 * scale), round(32 * scale)]) == CLASS_COLORS[1]
    assert tuple(tile[round(44 * scale), round(16 * scale)]) == CLASS_COLORS[1]
    assert not tile[round(44 * scale), round(30 * scale)].any()
    assert not tile[: round(20 * scale)].any()
    assert not sheet[:424, :424].any()


def test_a_training_sheet_takes_sixteen_pictures_at_most_and_any_range(tmp_path):
    images = torch.full((20, 3, 32, 64), 3.0)
    none = torch.zeros(20, 1, dtype=torch.bool)
    draw_batch(images, torch.zeros(20, 1, 4), none.long(), none, {0: "cat"}, tmp_path / "b.png")
    sheet = pixels_of(tmp_path / "b.png")
    assert sheet.shape == (4 * 158 + 12, 4 * 317 + 12, 3)
    assert (sheet == 255).all()


def sample(level: int, mistakes: float, boxes, labels, found, scores, found_labels) -> DetectionSample:
    detections = Detections(torch.tensor(found).reshape(-1, 4), torch.tensor(scores), torch.tensor(found_labels, dtype=torch.int64))
    image = np.full((320, 400, 3), level, np.uint8)
    return DetectionSample(image, np.array(boxes, np.float32).reshape(-1, 4), np.array(labels, np.int64), detections, "x", mistakes)


def test_the_worst_picture_comes_first_with_truth_left_and_detections_right(tmp_path):
    box = [100.0, 100, 200, 200]
    good = sample(10, 0.0, [box], [0], [box], [0.9], [0])
    bad = sample(60, 2.0, [box], [0], [300.0, 200, 380, 300], [0.8], [1])
    draw_predictions([good, bad], {0: "cat", 1: "dog"}, tmp_path / "p.png")
    sheet = pixels_of(tmp_path / "p.png")
    assert sheet.shape == (320 + 24, 2 * 806 + 18, 3)
    assert tuple(sheet[24 + 5, 5]) == (60, 60, 60)
    assert tuple(sheet[24 + 5, 824 + 5]) == (10, 10, 10)
    assert tuple(sheet[24 + 150, 100]) == class_color(0)  # left edge of the truth
    assert tuple(sheet[24 + 150, 406 + 100]) == (60, 60, 60)  # nothing was detected there
    assert tuple(sheet[24 + 250, 406 + 300]) == class_color(1)


def test_marks_name_what_was_missed_false_and_confused(tmp_path, monkeypatch):
    written = []
    monkeypatch.setattr("libreyolo.record.plots.predictions.draw_marks", lambda tile, marks: written.append([m.text for m in marks]))
    a, b, c, d = ([100.0 * i, 0, 100.0 * i + 50, 50] for i in range(4))
    shown = sample(0, 1.0, [a, b, c], [0, 0, 1], [a, b, d, c], [0.9, 0.8, 0.7, 0.1], [0, 1, 1, 1])
    draw_predictions([shown], {0: "cat", 1: "dog"}, tmp_path / "p.png")
    assert written == [["cat", "cat", "dog: missed"], ["cat 0.90", "dog 0.80: is cat", "dog 0.70: false"]]


def test_a_name_longer_than_the_picture_ends_in_dots_inside_it():
    picture, longer = Image.new("RGB", (120, 40)), Image.new("RGB", (120, 40))
    draw_marks(picture, [Mark((0, 20, 119, 39), "a name that no such picture is wide enough for", (250, 250, 250))])
    draw_marks(longer, [Mark((0, 20, 119, 39), "a name that no such picture is wide enough for, and more", (250, 250, 250))])
    assert picture.tobytes() == longer.tobytes()  # what is cut off is not there
    bright = (np.array(picture) == 250).all(-1)[6:16]
    end = np.flatnonzero(bright[0])[-1]
    assert 100 < end < 119 and bright[:, end].all()  # the plate lies inside and its last column holds no half letter


def test_names_stay_inside_the_picture_and_never_cover_each_other():
    picture = Image.new("RGB", (120, 60))
    color = (250, 250, 250)
    draw_marks(picture, [Mark((100, -5, 119, 40), "a long name", color)])
    columns = np.flatnonzero((np.array(picture) == 250).all(-1)[1])  # a row of the plate above its letters
    assert columns.max() == 119
    assert columns.min() < 80  # moved to the left, so that it ends inside
    assert len(columns) == columns.max() - columns.min() + 1
    colors = [(250, 250, 250), (250, 250, 0), (250, 0, 250), (0, 250, 250)]
    sheet = Image.new("RGB", (200, 100))
    draw_marks(sheet, [Mark((10, 50, 160, 90), f"name {i}", color) for i, color in enumerate(colors)])
    down = [tuple(pixel) for pixel in np.array(sheet)[:80, 20].tolist()]
    black = (0, 0, 0)
    # The first one above its box, the next a line below it, the third a line above it; where the fourth would be, all is taken.
    assert [color for color, before in zip(down[1:], down, strict=False) if color != before] == [colors[2], colors[0], colors[1], black]


def test_what_went_wrong_is_drawn_over_what_went_well():
    picture = Image.new("RGB", (60, 60))
    draw_marks(picture, [Mark((10, 10, 50, 50), "", (250, 0, 0), strong=True), Mark((10, 10, 50, 50), "", (0, 0, 250))])
    assert tuple(np.array(picture)[10, 30]) == (250, 0, 0)


def test_boxes_with_turned_corners_do_not_stop_the_drawing():
    picture = Image.new("RGB", (50, 50))
    draw_marks(picture, [Mark((40, 40, 10, 10), "", (255, 0, 0))])
    assert tuple(np.array(picture)[10, 25]) == (255, 0, 0)


def test_class_colours_differ_for_eighty_classes_and_never_change():
    colors = [class_color(k) for k in range(80)]
    assert len(set(colors)) == 80
    assert colors == [class_color(k) for k in range(80)]


def test_figures_do_not_accumulate_and_settings_stay_as_they_were(tmp_path):
    settings = dict(matplotlib.rcParams)
    validation = validation_of(1)

    def figures() -> list[Figure]:
        gc.collect()
        return [thing for thing in gc.get_objects() if type(thing) is Figure]

    before = figures()  # held, so that none of another test's goes meanwhile
    curves, names = validation.curves, {0: "cat", 1: "dog"}
    for _ in range(10):
        draw_confusion(curves["confusion"], names, tmp_path / "c.png")
        draw_pr_curve(curves["pr_recall"], curves["pr_precision"], curves["ap50"], names, tmp_path / "p.png")
    assert len(figures()) == len(before)
    assert dict(matplotlib.rcParams) == settings


def test_drawing_never_loads_pyplot(tmp_path):
    code = (
        "import sys, numpy as np; from pathlib import Path\n"
        "from libreyolo.record.plots import listener, labels, train_batch\n"
        "labels.draw_labels(np.zeros(1), np.full((1, 4), .5), np.ones(1), {0: 'cat'}, Path(sys.argv[1]) / 'x.png')\n"
        "assert 'matplotlib.pyplot' not in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", code, str(tmp_path)], check=True)
    assert (tmp_path / "x.png").stat().st_size > 1000
