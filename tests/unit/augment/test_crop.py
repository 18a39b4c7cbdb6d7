"""Crops: the middle as torchvision's published evaluation takes it, random parts as their rule says."""

from __future__ import annotations

import numpy as np
import pytest
from PIL import Image
from torchvision.transforms import v2

from libreyolo.data.augment.crop import RATIOS, centre_crop, draw_part, enough_hw, mirror, show_part
from libreyolo.interfaces.input import InputSpec
from libreyolo.ops.keyed import generator

SPEC = InputSpec(resize="crop", filter="pil-bicubic", crop_pct=0.95, stride=1)


def noise(height: int, width: int) -> np.ndarray:
    return np.random.default_rng(height * 1000 + width).integers(0, 256, (height, width, 3), dtype=np.uint8)


@pytest.mark.parametrize("crop_pct", [0.95, 0.875, 1.0])
@pytest.mark.parametrize("hw", [(97, 131), (131, 97), (40, 301), (64, 64), (33, 32)])
def test_the_middle_is_the_published_resize_and_centre_crop_to_the_bit(hw: tuple[int, int], crop_pct: float) -> None:
    for side in (64, 95):
        spec = InputSpec(resize="crop", filter="pil-bicubic", crop_pct=crop_pct)
        reference = v2.Compose([v2.Resize(int(side / crop_pct), interpolation=v2.InterpolationMode.BICUBIC), v2.CenterCrop(side)])
        expected = np.asarray(reference(Image.fromarray(noise(*hw))))
        np.testing.assert_array_equal(centre_crop(noise(*hw), (side, side), spec), expected)


def test_a_wide_input_shows_the_middle_of_a_wide_picture_whole() -> None:
    picture = noise(50, 100)
    shown = centre_crop(picture, (50, 100), InputSpec(resize="crop", filter="pil-bicubic", crop_pct=1.0))
    np.testing.assert_array_equal(shown, picture)
    assert centre_crop(noise(90, 40), (32, 96), SPEC).shape == (32, 96, 3)


@pytest.mark.parametrize("hw", [(1, 1), (1, 30000), (30000, 1), (2, 7)])
def test_tiny_and_thin_pictures_are_shown_without_filling_the_memory(hw: tuple[int, int]) -> None:
    picture = np.full((*hw, 3), 77, np.uint8)
    assert (centre_crop(picture, (64, 64), SPEC) == 77).all()
    for i in range(5):
        part = draw_part(generator(0, "tiny", i), hw, (64, 64), (0.5, 1.0))
        assert (show_part(picture, part, (64, 64), SPEC) == 77).all()


def test_parts_have_the_area_and_shape_of_their_rule_and_lie_in_the_picture() -> None:
    parts = np.array([draw_part(generator(0, "part", i), (200, 260), (64, 64), (0.3, 0.8)) for i in range(500)])
    width, height = (parts[:, 2] - parts[:, 0]) * 260, (parts[:, 3] - parts[:, 1]) * 200
    assert parts.min() >= 0 and parts.max() <= 1 + 1e-12
    area, ratio = width * height / (200 * 260), width / height
    assert 0.3 <= area.min() < 0.33 and 0.75 < area.max() <= 0.8
    assert RATIOS[0] <= ratio.min() < 0.8 and 1.25 < ratio.max() <= RATIOS[1]
    assert abs(np.log(ratio).mean()) < 0.03  # as often wide as tall
    free = (parts[:, 0] * 260) / (260 - width)
    assert abs(free.mean() - 0.5) < 0.05 and free.min() < 0.03 and free.max() > 0.97


def test_where_no_draw_fits_the_largest_middle_part_of_an_allowed_shape_is_shown() -> None:
    x0, y0, x1, y1 = draw_part(generator(0, "thin"), (10, 1000), (64, 64), (0.9, 1.0))
    assert ((x1 - x0) * 1000) / ((y1 - y0) * 10) == pytest.approx(RATIOS[1])
    assert (y0, y1) == (0.0, 1.0)
    assert x0 + x1 == pytest.approx(1.0)
    x0, y0, x1, y1 = draw_part(generator(0, "tall"), (1000, 10), (64, 64), (0.9, 1.0))
    assert ((x1 - x0) * 10) / ((y1 - y0) * 1000) == pytest.approx(RATIOS[0])


def test_a_part_is_shown_at_the_input_s_size_where_it_lies() -> None:
    picture = np.zeros((40, 80, 3), np.uint8)
    picture[:, 40:] = 255
    right = show_part(picture, (0.5, 0.0, 1.0, 1.0), (16, 16), SPEC)
    assert right.shape == (16, 16, 3)
    assert right.min() == 255  # the filter reads nothing beyond the part
    whole = show_part(picture, (0.0, 0.0, 1.0, 1.0), (16, 16), SPEC)
    assert whole[:, :6].max() == 0 and whole[:, 10:].min() == 255


@pytest.mark.parametrize("filter", ["pil", "pil-bicubic"])
def test_a_part_ends_at_whole_pixels_and_is_resized_by_the_family_s_filter(filter) -> None:
    picture = np.random.default_rng(1).integers(90, 160, (40, 80, 3), dtype=np.uint8)
    shown = show_part(picture, (0.113, 0.26, 0.74, 0.93), (16, 16), InputSpec(resize="crop", filter=filter, crop_pct=1.0))
    kind = {"pil": Image.Resampling.BILINEAR, "pil-bicubic": Image.Resampling.BICUBIC}[filter]
    expected = np.asarray(Image.fromarray(picture[10:37, 9:59]).resize((16, 16), kind))  # 0.26 * 40 = 10.4, 0.113 * 80 = 9.04, ...
    assert np.abs(shown.astype(int) - expected).max() <= 1


@pytest.mark.parametrize("left_right", [False, True])
@pytest.mark.parametrize("upside_down", [False, True])
def test_a_picture_is_mirrored_as_asked(left_right: bool, upside_down: bool) -> None:
    picture = noise(5, 7)
    expected = picture[:: -1 if upside_down else 1, :: -1 if left_right else 1]
    mirrored = mirror(picture, left_right=left_right, upside_down=upside_down)
    np.testing.assert_array_equal(mirrored, expected)
    assert mirrored.flags.c_contiguous


def test_pictures_are_decoded_large_enough_for_the_smallest_part() -> None:
    for scale in ((0.5, 1.0), (0.08, 1.0)):
        side = enough_hw((224, 224), scale)[0]
        height, width = side * 3 / 4, side  # the picture, shrunk to fit
        area = scale[0] * height * width
        assert (area * RATIOS[0]) ** 0.5 >= 224 * 0.99  # the shorter side of its smallest part
