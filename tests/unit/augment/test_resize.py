"""The resize of training pictures: Pillow's but for rounding, the same everywhere, of any part of a picture."""

from __future__ import annotations

import zlib

import numpy as np
import pytest
from PIL import Image

from libreyolo.data.augment.resize import resize_for_training

PILLOW = {"pil": Image.Resampling.BILINEAR, "pil-bicubic": Image.Resampling.BICUBIC}


def photograph(h: int, w: int) -> np.ndarray:
    """Large shapes, fine stripes and a little noise."""
    y, x = np.mgrid[:h, :w] / 10
    shapes = np.stack([np.sin(x / 3) + np.cos(y / 2), np.sin(5 * x + y), np.cos(x * y / 9)], axis=2)
    return (127 + 55 * shapes + np.random.default_rng(0).normal(0, 5, (h, w, 3))).clip(0, 255).astype(np.uint8)


@pytest.mark.parametrize("filter", ["pil", "pil-bicubic"])
@pytest.mark.parametrize("new_hw", [(45, 60), (61, 87), (32, 32), (119, 160), (7, 5), (1, 1)])
def test_a_photograph_shrinks_to_what_pillow_makes_of_it_but_for_rounding(new_hw: tuple[int, int], filter) -> None:
    picture = photograph(120, 160)
    expected = np.asarray(Image.fromarray(picture).resize(new_hw[::-1], PILLOW[filter]))
    off = np.abs(resize_for_training(picture, new_hw, filter).astype(int) - expected)
    assert off.max() <= 1
    assert (off > 0).mean() < 0.02


@pytest.mark.parametrize("filter", ["pil", "pil-bicubic"])
def test_a_part_is_resized_as_if_nothing_lay_around_it(filter) -> None:
    picture = photograph(60, 80)
    part = picture[7:40, 11:70]
    assert np.array_equal(resize_for_training(part, (24, 24), filter), resize_for_training(part.copy(), (24, 24), filter))
    untouched = resize_for_training(part, (33, 59), filter)
    assert np.array_equal(untouched, part) and untouched.flags.c_contiguous


@pytest.mark.parametrize("hw", [(1, 1), (1, 4000), (4000, 1), (2, 3)])
def test_any_shape_becomes_a_whole_writable_picture(hw: tuple[int, int]) -> None:
    for new_hw in ((9, 16), (1, 30), (30, 1)):
        resized = resize_for_training(np.full((*hw, 3), 77, np.uint8), new_hw, "pil-bicubic")
        assert resized.shape == (*new_hw, 3)
        assert (resized == 77).all()
        assert resized.flags.c_contiguous and resized.flags.writeable


def test_the_bits_are_those_of_every_processor() -> None:
    """Noted with torch 2.6 and 2.14, with AVX2, AVX-512 and neither. Caches on disk hold such pictures: with a sum, PIXELS_VERSION must change."""
    noise = np.random.default_rng(0).integers(0, 256, (48, 64, 3), dtype=np.uint8)
    sums = [zlib.crc32(resize_for_training(noise, (31, 40), filter).tobytes()) for filter in ("pil", "pil-bicubic")]
    assert sums == [3176802560, 4004032717]
