"""The kernel that paints plans against plain torch; on the CPU it runs in Triton's interpreter."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from libreyolo.data.augment import compose as plain
from libreyolo.data.augment.compose import SLOTS_PER_LAYER, SlotNumbers, compose, stack_plans
from libreyolo.data.augment.hsv import TINY
from libreyolo.data.augment.paint import paint
from libreyolo.data.augment.plan import Plan, Slot
from libreyolo.data.augment.settings import AugmentSettings
from tests import kernels
from tests.unit.augment.pictures import noisy_pictures
from tests.unit.augment.test_compose import many

pytestmark = pytest.mark.skipif(not kernels.RUN, reason=kernels.REASON)
DEVICE = torch.device("cuda" if kernels.ON_GPU else "cpu")


def painted(tiles, plans, hw):
    found = paint(tiles.to(DEVICE), plans.to(DEVICE), hw, plain.PAD, SLOTS_PER_LAYER)
    return found.cpu()


# The output's sides are no multiples of a program's; tiles differ in size, and what lies beside them in the buffer must not be seen.
@pytest.mark.parametrize(
    "changes",
    [{}, {"mixup_prob": 0.2, "degrees": 20.0}, {"perspective": 0.001, "shear": 5.0, "hsv_prob": 0.5}, {"mosaic_prob": 0.0, "resize": "stretch"}],
)
def test_pictures_are_those_of_plain_torch(changes):
    hw = (37, 45)
    plans, tiles, stacked = many(AugmentSettings(imgsz=hw, **changes), noisy_pictures(6), 3)
    if "mixup_prob" in changes:
        assert {plan.blend > 0 for plan in plans} == {True, False}
    torch.testing.assert_close(painted(tiles, stacked, hw), compose(tiles, stacked, hw), atol=3e-5, rtol=0)


def test_enlarging_by_two_is_bilinear_with_half_pixel_centres_and_colours_that_do_not_change_stay_to_the_bit():
    tiles = torch.tensor([[[[0] * 3, [255] * 3], [[0] * 3, [255] * 3]]], dtype=torch.uint8)
    slot = Slot(0, 0, np.diag([4.0, 4.0, 1.0]), (0.0, 0.0, 1.0, 1.0), (0, 0, 4, 4), (4.0, 4.0))
    out = painted(tiles, stack_plans([Plan((slot,), None, 0.0, False)], {0: 0}, np.array([[2, 2]])), (4, 4))
    expected = torch.tensor([0.0, 0.25, 0.75, 1.0])
    torch.testing.assert_close(out[0, :, 1], expected.expand(3, 4), atol=1e-6, rtol=0)
    assert torch.equal(out[0, 0], out[0, 2])


def test_a_plan_without_slots_is_grey_and_no_plans_are_no_pictures():
    tiles = torch.full((1, 2, 2, 3), 255, dtype=torch.uint8)
    nothing = stack_plans([Plan((), None, 0.0, False)], {}, np.array([[2, 2]]))
    torch.testing.assert_close(painted(tiles, nothing, (5, 4)), torch.full((1, 3, 5, 4), plain.PAD))
    assert paint(tiles[:0], stack_plans([], {}, np.zeros((0, 2), np.int64)), (5, 4), plain.PAD, SLOTS_PER_LAYER).shape == (0, 3, 5, 4)


def test_the_kernel_s_places_of_a_slot_s_numbers_and_its_smallest_number_are_those_of_the_plain_code():
    from libreyolo.data.augment import paint_kernel

    assert [getattr(paint_kernel, name.upper()).value for name in SlotNumbers._fields] == list(range(paint_kernel.FIELDS.value))
    assert paint_kernel.TINY.value == TINY


def test_torch_s_profiler_gives_the_kernel_s_time_to_an_operator():
    _, tiles, stacked = many(AugmentSettings(imgsz=(16, 16)), noisy_pictures(4), 1)
    painted(tiles, stacked, (16, 16))  # compiled before
    with torch.profiler.profile() as found:
        painted(tiles, stacked, (16, 16))
    (event,) = [e for e in found.key_averages() if e.key == "Paint"]
    assert event.count == 1
    assert event.device_time_total > 0 or not kernels.ON_GPU
