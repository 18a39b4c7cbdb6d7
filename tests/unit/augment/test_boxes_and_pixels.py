"""Where a rectangle is drawn, its box must be."""

import numpy as np
import pytest
import torch

from libreyolo.data.augment.boxes import place_boxes
from libreyolo.data.augment.plan import Plan, Slot, draw_plan
from libreyolo.data.augment.settings import AugmentSettings
from tests.unit.augment.pictures import DrawnPictures, boxes_of, render

HW = (160, 192)
SIZES = [(120, 160), (200, 90), (64, 64), (160, 192), (33, 47), (240, 100)] * 3

CASES = {
    "letterbox": {"mosaic_prob": 0},
    "stretch": {"mosaic_prob": 0, "resize": "stretch"},
    "flips": {"mosaic_prob": 0, "flip_prob": 1.0, "flipud": 1.0},
    "rotation": {"mosaic_prob": 0, "affine_without_mosaic": True, "degrees": 40, "mosaic_scale": (0.8, 0.8)},
    "zoom": {"mosaic_prob": 0, "affine_without_mosaic": True, "mosaic_scale": (0.4, 1.8), "translate": 0.2},
    "shear": {"mosaic_prob": 0, "affine_without_mosaic": True, "shear": 15, "mosaic_scale": (0.7, 1.0)},
    "perspective": {"mosaic_prob": 0, "affine_without_mosaic": True, "perspective": 0.001, "mosaic_scale": (0.7, 1.0)},
    "mosaic": {"mosaic_scale": (0.5, 1.5)},
    "mosaic, all": {"mosaic_scale": (0.5, 1.2), "degrees": 20, "shear": 5, "perspective": 0.0005, "flip_prob": 0.5, "flipud": 0.5},
}


@pytest.mark.parametrize("case", CASES)
def test_a_filled_rectangle_lands_within_one_pixel_of_its_box(case):
    settings = AugmentSettings(imgsz=HW, hsv_prob=0, **CASES[case])
    compared = 0
    for place in range(60):
        index = place % len(SIZES)
        h, w = SIZES[index]
        rectangles = [None] * len(SIZES)
        rectangles[index] = (w // 5, h // 4, w // 5 + w // 2, h // 4 + h // 3)
        pictures = DrawnPictures(SIZES, rectangles)
        plan = draw_plan(settings, pictures.size, len(pictures), seed=1, index=index, epoch=0, place=place)
        boxes, labels = boxes_of(plan, pictures, settings)
        if sum(s.picture == index for s in plan.slots) != 1 or len(boxes) != 1:
            continue
        inside = (boxes[0, :2] > 1).all() and (boxes[0, 2:] < np.array(HW[::-1]) - 1).all()
        if not inside:  # the envelope of a cut, rotated rectangle is larger than what is left of it
            continue
        ys, xs = torch.nonzero(render(plan, pictures, HW)[0] > 0.5, as_tuple=True)  # white; the padding is 0.447
        drawn = [int(xs.min()), int(ys.min()), int(xs.max()) + 1, int(ys.max()) + 1]
        # A turned corner ends in a pixel that is less than half white: up to half a pixel more is not seen of it.
        turned = any(CASES[case].get(knob) for knob in ("degrees", "shear", "perspective"))
        assert np.abs(boxes[0] - drawn).max() <= (1.5 if turned else 1.0), (place, boxes[0], drawn)
        assert labels.tolist() == [index % 3]
        compared += 1
    assert compared >= 6


def unit_square_to(matrix, *, shown=(0.0, 0.0, 1.0, 1.0), hw=(100, 100)):
    return Plan((Slot(0, 0, matrix, shown, (0, 0, hw[1], hw[0]), (1.0, 1.0)),), None, 0.0, False)


def placed(matrix, boxes, *, shown=(0.0, 0.0, 1.0, 1.0), max_labels=300):
    boxes = np.array(boxes, np.float32).reshape(-1, 4)
    return place_boxes(unit_square_to(matrix, shown=shown), lambda _: (boxes, np.arange(len(boxes))), (100, 100), max_labels)


def test_a_box_is_mapped_to_the_envelope_of_its_corners():
    quarter_turn = np.array([[0.0, -100, 100], [100, 0, 0], [0, 0, 1]])
    boxes, _ = placed(quarter_turn, [[0.1, 0.2, 0.3, 0.6]])
    assert boxes[0] == pytest.approx([40, 10, 80, 30])


def test_boxes_are_cut_to_the_output_and_to_what_the_slot_shows():
    shifted = np.array([[100.0, 0, -50], [0, 100, 0], [0, 0, 1]])
    boxes, _ = placed(shifted, [[0.2, 0.2, 0.8, 0.8]], shown=(0.0, 0.0, 1.0, 0.5))
    assert boxes[0] == pytest.approx([0, 20, 30, 50])


def test_boxes_that_are_tiny_thin_or_mostly_gone_are_dropped():
    size = np.diag([100.0, 100.0, 1.0])
    shifted = np.array([[100.0, 0, -91], [0, 100, 0], [0, 0, 1]])
    assert placed(size, [[0.1, 0.1, 0.119, 0.5]])[0].shape == (0, 4)  # 1.9 px wide
    assert placed(size, [[0.1, 0.1, 0.121, 0.5]])[0].shape == (1, 4)
    assert placed(shifted, [[0.0, 0.0, 1.0, 0.5]])[0].shape == (0, 4)  # 9 % left
    assert placed(shifted, [[0.2, 0.0, 1.0, 0.5]])[0].shape == (1, 4)  # 11 % left
    assert placed(np.diag([1.0, 1000.0, 1.0]) * 3, [[0.0, 0.0, 1.0, 1.0]])[0].shape == (0, 4)


def test_where_there_are_too_many_boxes_the_largest_stay_in_their_order():
    boxes = [[0.0, 0.0, 0.1, 0.1], [0.0, 0.0, 0.9, 0.9], [0.0, 0.0, 0.2, 0.2], [0.0, 0.0, 0.5, 0.5]]
    assert placed(np.diag([100.0, 100.0, 1.0]), boxes, max_labels=2)[1].tolist() == [1, 3]


def test_a_picture_without_boxes_gives_none():
    boxes, labels = placed(np.diag([100.0, 100.0, 1.0]), [])
    assert boxes.shape == (0, 4)
    assert boxes.dtype == np.float32
    assert labels.dtype == np.int64
