import numpy as np
import pytest

from libreyolo.data.augment.matrices import flip, project
from libreyolo.data.augment.plan import draw_plan
from libreyolo.data.augment.settings import AugmentSettings


def plan_of(settings, *, epoch=0, place=0, n=50, seed=0, size=(48, 64)):
    return draw_plan(settings, lambda _: size, n, seed=seed, index=place % n, epoch=epoch, place=place)


def same(one, other):
    return (
        one.hsv == other.hsv
        and one.blend == other.blend
        and len(one.slots) == len(other.slots)
        and all(
            a.picture == b.picture and a.shown == b.shown and np.array_equal(a.to_output, b.to_output)
            for a, b in zip(one.slots, other.slots, strict=True)
        )
    )


def test_a_plan_is_a_function_of_its_key_alone():
    settings = AugmentSettings(imgsz=(64, 64), mixup_prob=0.5, degrees=10)
    first = [plan_of(settings, place=p) for p in range(20)]
    np.random.seed(1)
    again = [plan_of(settings, place=p) for p in reversed(range(20))][::-1]
    assert all(same(a, b) for a, b in zip(first, again, strict=True))


@pytest.mark.parametrize("change", [{"epoch": 1}, {"place": 50}, {"seed": 1}])
def test_epoch_place_and_seed_each_change_the_plan(change):
    settings = AugmentSettings(imgsz=(64, 64), epochs=3)
    assert not same(plan_of(settings), plan_of(settings, **change))


def test_one_picture_many_times_is_never_augmented_alike():
    settings = AugmentSettings(imgsz=(64, 64), mosaic_prob=0, flip_prob=0.5, epochs=2)
    colours = {plan_of(settings, n=1, place=p, epoch=e).hsv for p in range(16) for e in range(2)}
    assert len(colours) == 32


def test_mosaic_mixup_and_affine_close_at_the_right_epoch_while_flips_and_colours_stay():
    with_end = AugmentSettings(imgsz=(64, 64), mixup_prob=1.0, degrees=20, epochs=4, no_aug_epochs=2, flip_prob=0.5)
    for place in range(8):
        plans = [plan_of(with_end, epoch=e, place=place) for e in range(4)]
        assert [p.mosaic for p in plans] == [True, True, False, False]
        assert [p.blend for p in plans] == [0.5, 0.5, 0.0, 0.0]
        endless = AugmentSettings(imgsz=(64, 64), mixup_prob=1.0, degrees=20, epochs=4, no_aug_epochs=0, flip_prob=0.5)
        assert plans[3].hsv == plan_of(endless, epoch=3, place=place).hsv
        (slot,) = plans[3].slots
        mirrored = slot.to_output[0, 0] < 0
        # 48x64 fits 64x64 by its width: identity scale, top left, mirrored or not.
        expected = [[-64, 0, 64], [0, 48, 0], [0, 0, 1]] if mirrored else [[64, 0, 0], [0, 48, 0], [0, 0, 1]]
        assert slot.to_output == pytest.approx(np.array(expected, float))


@pytest.mark.parametrize(("name", "value"), [("mosaic_prob", 0.25), ("hsv_prob", 0.3), ("mixup_prob", 0.4)])
def test_probabilities_are_shares_of_the_pictures(name, value):
    settings = AugmentSettings(imgsz=(64, 64), **{"mixup_prob": 1.0, name: value})
    plans = [plan_of(settings, place=p) for p in range(600)]
    seen = {
        "mosaic_prob": [p.mosaic for p in plans],
        "hsv_prob": [p.hsv is not None for p in plans],
        "mixup_prob": [p.blend > 0 for p in plans],
    }
    assert np.mean(seen[name]) == pytest.approx(value, abs=0.06)


def test_mixup_never_fires_without_mosaic_unless_the_recipe_says_so():
    off = AugmentSettings(imgsz=(64, 64), mosaic_prob=0, mixup_prob=1.0)
    assert all(plan_of(off, place=p).blend == 0 for p in range(10))
    on = AugmentSettings(imgsz=(64, 64), mosaic_prob=0, mixup_prob=1.0, affine_without_mosaic=True)
    assert all(plan_of(on, place=p).blend == 0.5 for p in range(10))


def test_the_four_tiles_meet_at_one_point_and_partners_come_from_the_whole_set():
    settings = AugmentSettings(imgsz=(64, 64), translate=0, mosaic_scale=(0.5, 0.5), flip_prob=0)  # shows the whole canvas
    partners = set()
    for place in range(40):
        plan = plan_of(settings, place=place, n=30)
        assert plan.slots[0].picture == place % 30
        partners |= {s.picture for s in plan.slots[1:]}
        # Top left tile's bottom right corner = bottom right tile's top left corner, and so on.
        meeting = [(1, 1), (0, 1), (1, 0), (0, 0)]
        corners = [project(s.to_output, np.array(c, float))[0] for s, c in zip(plan.slots, meeting, strict=True)]
        assert np.ptp(corners, axis=0) == pytest.approx(0, abs=1e-9)
        assert 16 <= corners[0][0] <= 48
    assert len(partners) == 30


def test_a_picture_that_cannot_be_seen_is_not_planned():
    settings = AugmentSettings(imgsz=(64, 64), mosaic_scale=(8.0, 8.0), translate=0)  # shows an eighth of the canvas's middle
    numbers = [len(plan_of(settings, place=p).slots) for p in range(50)]
    assert min(numbers) >= 0
    assert np.mean(numbers) < 2


def test_stretched_pictures_fill_the_input():
    settings = AugmentSettings(imgsz=(32, 96), mosaic_prob=0, flip_prob=0, resize="stretch")
    assert plan_of(settings).slots[0].to_output == pytest.approx(np.diag([96.0, 32.0, 1.0]))


@pytest.mark.parametrize(("horizontal", "vertical"), [(True, False), (False, True), (True, True)])
def test_flips_are_their_own_inverse(horizontal, vertical):
    matrix = flip((30, 50), horizontal=horizontal, vertical=vertical)
    assert matrix @ matrix == pytest.approx(np.eye(3))
    assert project(matrix, np.array([0.0, 0.0]))[0].tolist() == [50.0 * horizontal, 30.0 * vertical]


def test_projection_divides_by_the_third_row():
    matrix = np.array([[2.0, 0, 1], [0, 3, 0], [0.5, 0, 1]])
    point, divisor = project(matrix, np.array([2.0, 4.0]))
    assert divisor == 2.0
    assert point.tolist() == [2.5, 6.0]
