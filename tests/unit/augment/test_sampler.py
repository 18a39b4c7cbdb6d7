"""n pictures, batches over 1, 2, 4 ranks."""

import math

import numpy as np
import pytest

from libreyolo.data.sampler import EpochSampler, EvaluationSampler, repeat_factors
from libreyolo.errors import UserError


def epoch_of(n, *, batch=4, world_size=1, epoch=0, seed=3, **more):
    """All ranks' batches, [rank][step] -> list of Items."""
    return [list(EpochSampler(n, batch=batch, rank=r, world_size=world_size, seed=seed, **more).batches(epoch)) for r in range(world_size)]


@pytest.mark.parametrize("n", [1, 2, 3, 5, 7, 8, 9, 17])
def test_two_ranks_cover_every_picture_once_in_equally_many_equally_large_steps(n):
    ranks = epoch_of(n, world_size=2)
    assert {len(steps) for steps in ranks} == {math.ceil(n / 4)}
    for both in zip(*ranks, strict=True):
        assert len(both[0]) == len(both[1]) >= 1
    real = [item.index for steps in ranks for step in steps for item in step if item.weight == 1.0]
    assert sorted(real) == list(range(n))
    places = [item.place for steps in ranks for step in steps for item in step]
    assert sorted(places) == list(range(len(places)))


@pytest.mark.parametrize("n", [8, 9, 17])
def test_every_step_holds_the_same_pictures_for_any_number_of_ranks(n):
    alone = epoch_of(n)[0]
    for world_size in (2, 4):
        ranks = epoch_of(n, world_size=world_size)
        for step, items in enumerate(alone):
            together = [item for r in range(world_size) for item in ranks[r][step]]
            assert sorted(together, key=lambda i: i.place) == items


def test_rank_r_takes_every_world_size_th_place():
    assert [item.place for item in epoch_of(8, world_size=2)[1][1]] == [5, 7]


def test_the_short_last_batch_is_padded_to_a_whole_one_with_weight_0_from_the_same_order():
    steps = epoch_of(5)[0]
    assert [[i.weight for i in step] for step in steps] == [[1, 1, 1, 1], [1, 0, 0, 0]]
    assert [i.index for i in steps[1][1:]] == [i.index for i in steps[0][:3]]


@pytest.mark.parametrize(("n", "world_size", "size"), [(1, 1, 2), (3, 1, 3), (1, 2, 2), (3, 2, 4), (1, 4, 4)])
def test_a_set_smaller_than_the_batch_is_one_step_in_which_no_rank_is_empty(n, world_size, size):
    ranks = epoch_of(n, batch=32, world_size=world_size)
    assert [len(steps) for steps in ranks] == [1] * world_size
    assert sum(len(steps[0]) for steps in ranks) == size
    assert sum(i.weight for steps in ranks for i in steps[0]) == n


def test_orders_differ_between_epochs_and_seeds_and_repeat_for_the_same():
    orders = {tuple(EpochSampler(16, batch=4, seed=s).order(e)) for s in (0, 1) for e in (0, 1, 2)}
    assert len(orders) == 6
    assert epoch_of(16, epoch=2) == epoch_of(16, epoch=2)


def test_without_shuffle_pictures_come_in_order():
    assert [i.index for step in epoch_of(5, shuffle=False)[0] for i in step][:5] == [0, 1, 2, 3, 4]


def test_starting_in_the_middle_gives_the_rest_of_the_epoch():
    sampler = EpochSampler(17, batch=4, rank=1, world_size=2, seed=0)
    assert list(sampler.batches(2, start_step=3)) == list(sampler.batches(2))[3:]


def test_min_samples_repeats_the_whole_set():
    steps = epoch_of(3, batch=4, min_samples=7)[0]  # 3 passes of 3 = 9 pictures = 3 steps
    real = [i.index for step in steps for i in step if i.weight]
    assert len(steps) == 3
    assert sorted(real) == [0, 0, 0, 1, 1, 1, 2, 2, 2]
    assert sorted(real[:3]) == sorted(real[3:6]) == [0, 1, 2]


def test_repeat_factors_follow_the_formula():
    # 4 pictures: class 0 in three of them, class 1 in one (twice); t = 0.75 -> r = 1 and sqrt(0.75 / 0.25) = sqrt(3).
    offsets, labels = np.array([0, 1, 2, 5, 5]), np.array([0, 0, 1, 1, 0])
    assert repeat_factors(offsets, labels, 4, threshold=0.75) == pytest.approx([1, 1, math.sqrt(3), 1])


def test_repeat_factors_of_a_set_without_boxes_are_1():
    assert repeat_factors(np.zeros(4, int), np.zeros(0, int), 3).tolist() == [1, 1, 1]


def test_repeats_are_floor_or_ceil_with_the_factor_as_their_mean_and_a_fixed_sum():
    repeats = np.array([1.0, 1.5, 2.25, 1.0, 3.75, 1.5])  # sum 11
    sampler = EpochSampler(6, batch=4, seed=0, repeats=repeats)
    counts = np.array([np.bincount(sampler.order(e), minlength=6) for e in range(400)])
    assert (counts.sum(axis=1) == 11).all()
    assert (counts >= np.floor(repeats)).all()
    assert (counts <= np.ceil(repeats)).all()
    assert counts.mean(axis=0) == pytest.approx(repeats, abs=0.1)
    assert sampler.steps(0) == sampler.steps(7) == 3


def test_a_fractional_sum_of_repeats_still_gives_every_epoch_one_length():
    sampler = EpochSampler(3, batch=2, seed=0, repeats=np.array([1.2, 1.3, 1.1]))
    assert {len(sampler.order(e)) for e in range(50)} == {4}


def test_no_picture_is_an_error_that_says_the_numbers():
    with pytest.raises(UserError, match=r"0 pictures, batch=4, world_size=2"):
        EpochSampler(0, batch=4, world_size=2, seed=0)


def test_a_batch_that_the_ranks_do_not_divide_is_an_error_with_two_that_work():
    with pytest.raises(UserError, match=r"batch=6 .* world_size=4; use batch=4 or batch=8"):
        EpochSampler(10, batch=6, world_size=4, seed=0)


@pytest.mark.parametrize("n", [0, 1, 2, 3, 5, 7, 8, 9, 17])
def test_an_evaluation_sees_every_picture_exactly_once_over_the_ranks(n):
    samplers = [EvaluationSampler(n, batch=2, rank=r, world_size=2) for r in range(2)]
    seen = [[i.index for step in s.batches(0) for i in step] for s in samplers]
    assert seen == [list(range(0, n, 2)), list(range(1, n, 2))]
    assert [len(list(s.batches(0))) for s in samplers] == [s.steps(0) for s in samplers]
