"""Mixing, erasing and policies: hand values, and draws that are functions of their key."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from PIL import Image

from libreyolo.data.augment.mixing import NOTHING, draw_cutmix, draw_erased, draw_mixup, erase, mix
from libreyolo.data.augment.policy import apply_policy
from libreyolo.ops.keyed import generator


def test_a_blend_is_the_weighted_sum_and_a_pasted_box_shows_the_partner_alone() -> None:
    own, partner = torch.full((3, 3, 4, 6), 0.8), torch.full((3, 3, 4, 6), 0.2)
    blend, boxes = torch.tensor([0.25, 1.0, 1.0]), torch.tensor([NOTHING, (1.0, 2.0, 4.0, 4.0), NOTHING])
    mixed = mix(own, partner, blend, boxes)
    assert mixed[0].unique().tolist() == pytest.approx([0.8 * 0.25 + 0.2 * 0.75])
    is_partner = mixed[1] == torch.tensor(0.2)
    assert is_partner.sum() == 3 * 2 * 3
    assert is_partner[:, 2:4, 1:4].all()
    assert torch.equal(mixed[2], own[2])


def test_the_share_of_a_pasted_label_is_the_part_of_the_picture_that_is_seen() -> None:
    shares = []
    for i in range(300):
        drawn = draw_cutmix(generator(0, "cut", i), (20, 30))
        image = mix(torch.ones(1, 1, 20, 30).expand(1, 3, 20, 30), torch.zeros(1, 3, 20, 30), torch.ones(1), torch.tensor([drawn.pasted]))
        assert float(image[0, 0].mean()) == pytest.approx(drawn.share)
        shares.append(drawn.share)
    assert min(shares) < 0.25 and max(shares) > 0.95


def test_the_weight_of_a_blend_is_uniform() -> None:
    weights = np.array([draw_mixup(generator(0, "mix", i)).share for i in range(2000)])
    assert np.histogram(weights, bins=4, range=(0, 1))[0].min() > 430


def test_an_erased_rectangle_has_the_area_and_shape_of_its_rule_and_takes_one_colour() -> None:
    boxes = np.array([draw_erased(generator(0, "erase", i), (60, 80)) for i in range(500)])
    width, height = boxes[:, 2] - boxes[:, 0], boxes[:, 3] - boxes[:, 1]
    assert boxes.min() >= 0 and boxes[:, 2].max() <= 80 and boxes[:, 3].max() <= 60
    area = width * height / 4800
    assert 0.015 < area.min() < 0.04 and 0.28 < area.max() < 0.35
    assert abs(np.log(height / width).mean()) < 0.1
    erased = erase(torch.ones(2, 3, 4, 5), torch.tensor([(1.0, 1.0, 3.0, 4.0), NOTHING]), (0.1, 0.2, 0.3))
    assert torch.equal(erased[1], torch.ones(3, 4, 5))
    assert erased[0, :, 1:4, 1:3].amax(dim=(1, 2)).tolist() == pytest.approx([0.1, 0.2, 0.3])
    assert float(erased[0].sum()) == pytest.approx(3 * 20 - 6 * 3 + 6 * 0.6, rel=1e-6)


@pytest.mark.parametrize("name", ["randaugment", "autoaugment", "augmix"])
def test_a_policy_is_a_function_of_its_seed_and_leaves_the_process_s_generator_alone(name: str) -> None:
    picture = Image.fromarray(np.random.default_rng(0).integers(0, 256, (24, 24, 3), dtype=np.uint8))
    before = torch.get_rng_state()
    drawn = [np.asarray(apply_policy(name, picture, seed)) for seed in (1, 2, 3, 4, 5, 6)]
    assert torch.equal(torch.get_rng_state(), before)
    torch.manual_seed(9)
    for seed, image in zip((1, 2, 3, 4, 5, 6), drawn, strict=True):
        np.testing.assert_array_equal(np.asarray(apply_policy(name, picture, seed)), image)
    assert len({image.tobytes() for image in drawn}) >= 4
    assert all(image.shape == (24, 24, 3) and image.dtype == np.uint8 for image in drawn)
