import colorsys

import pytest
import torch

from libreyolo.data.augment.hsv import jitter_hsv


def one(colour, gains):
    image = torch.tensor(colour, dtype=torch.float32)[None, :, None, None]
    return jitter_hsv(image, torch.tensor([gains], dtype=torch.float32)).flatten().tolist()


def test_gains_that_change_nothing_give_the_picture_back():
    images = torch.rand((2, 3, 16, 16), generator=torch.Generator().manual_seed(0))
    images[0, :, 0] = 0.3  # grey has no hue
    images[0, :, 1] = 0.0
    torch.testing.assert_close(jitter_hsv(images, torch.tensor([[0.0, 1.0, 1.0]] * 2)), images, atol=1e-6, rtol=0)


def test_the_hue_wraps_around_the_circle():
    assert one([1, 0, 0], [1 / 3, 1, 1]) == pytest.approx([0, 1, 0], abs=1e-5)
    assert one([1, 0, 0], [-1 / 6, 1, 1]) == pytest.approx([1, 0, 1], abs=1e-5)  # 0 - 60 degrees = 300: magenta
    assert one([1, 0, 1], [1 / 4, 1, 1]) == pytest.approx([1, 0.5, 0], abs=1e-5)  # 300 + 90 = 30: orange


def test_saturation_and_value_are_scaled_and_cut():
    assert one([0.5, 0.25, 0.25], [0, 2, 1]) == pytest.approx([0.5, 0, 0], abs=1e-6)
    assert one([0.5, 0.25, 0.25], [0, 9, 1]) == pytest.approx([0.5, 0, 0], abs=1e-6)
    assert one([0.8, 0.4, 0.4], [0, 1, 2]) == pytest.approx([1, 0.5, 0.5], abs=1e-6)


def test_every_picture_has_its_own_gains_and_agrees_with_colorsys():
    images = torch.rand((3, 3, 5, 7), generator=torch.Generator().manual_seed(1))
    gains = torch.tensor([[0.1, 0.5, 1.1], [-0.4, 1.3, 0.7], [0.9, 0.0, 1.0]])
    out = jitter_hsv(images, gains)
    for b in range(3):
        for y in range(5):
            for x in range(7):
                h, s, v = colorsys.rgb_to_hsv(*images[b, :, y, x].tolist())
                dh, fs, fv = gains[b].tolist()
                expected = colorsys.hsv_to_rgb((h + dh) % 1.0, min(1.0, s * fs), min(1.0, v * fv))
                assert out[b, :, y, x].tolist() == pytest.approx(expected, abs=1e-5)
