"""The arithmetic of batch=-1, with a memory that is a formula."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from libreyolo.engine.capacity import Measured, OutOfMemoryError, fit, global_batch, largest_batch


def memory(fixed: int, each: int, *, limit: int = 10**9, bend: float = 0.0) -> tuple[Callable[[int], int], list[int]]:
    """Return a device of `limit` bytes on which a batch takes fixed + each * batch * (1 + bend * batch), and the sizes it was asked for."""
    asked: list[int] = []

    def measure(batch: int) -> int:
        asked.append(batch)
        taken = round(fixed + each * batch * (1 + bend * batch))
        if taken > limit:
            raise OutOfMemoryError
        return taken

    return measure, asked


def test_the_line_through_small_sizes_is_the_memory_model() -> None:
    fixed, each = fit([Measured(2, 1200), Measured(4, 1400), Measured(8, 1800), Measured(16, None)])
    assert (fixed, each) == pytest.approx((1000.0, 100.0))


def test_a_linear_memory_is_found_in_one_trial_and_rounded_to_eights() -> None:
    measure, asked = memory(1000, 100)
    found = largest_batch(measure, budget=7000, most=500)
    assert found is not None
    assert asked == [2, 4, 8, 56]  # (7000 - 1000) / 100 = 60
    assert (found.batch, found.predicted, found.reached) == (56, 6600, 6600)
    assert [point.batch for point in found.measured] == [2, 4, 8, 56]


def test_a_memory_that_grows_faster_than_the_line_is_found_by_running_it() -> None:
    measure, asked = memory(1000, 100, bend=0.01)
    found = largest_batch(measure, budget=20_000, most=500)
    assert found is not None
    assert found.reached <= 20_000
    assert max(asked) > found.batch  # the line's promise did not hold
    # The largest multiple of 8 that fits is 88; the search may stop a few below it, never above.
    assert 72 <= found.batch <= 88


def test_running_out_of_memory_is_part_of_the_search() -> None:
    measure, asked = memory(1000, 100, limit=3000, bend=0.02)
    found = largest_batch(measure, budget=2900, most=500)
    assert found is not None
    assert found.reached <= 2900
    assert found.batch in asked


def test_a_device_that_is_full_at_the_first_sizes_gets_what_still_fits() -> None:
    measure, _ = memory(1000, 600, limit=2400)
    found = largest_batch(measure, budget=2400, most=500)
    assert found is not None
    assert found.batch == 2
    measure, _ = memory(1000, 900, limit=2400)
    found = largest_batch(measure, budget=2400, most=500)
    assert found is not None
    assert (found.batch, found.reached) == (1, 1900)


def test_where_not_even_one_picture_fits_there_is_no_batch() -> None:
    measure, asked = memory(5000, 100, limit=2400)
    assert largest_batch(measure, budget=2400, most=500) is None
    assert asked == [2, 1]


@pytest.mark.parametrize(("most", "batch"), [(1, 1), (2, 2), (3, 3), (5, 5), (9, 9), (20, 20), (21, 21)])
def test_a_tiny_set_is_its_own_limit_and_nothing_larger_is_run(most: int, batch: int) -> None:
    measure, asked = memory(1000, 1)
    found = largest_batch(measure, budget=7000, most=most)
    assert found is not None
    assert found.batch == batch
    assert max(asked) <= most


def test_memory_that_does_not_grow_gives_all_pictures() -> None:
    measure, _ = memory(1000, 0)
    found = largest_batch(measure, budget=2000, most=37)
    assert found is not None
    assert found.batch == 37


@pytest.mark.parametrize(
    ("per_device", "world_size", "nbs", "num_pictures", "batch"),
    [
        (48, 1, None, 10_000, 48),
        (48, 2, None, 10_000, 96),  # exactly twice
        (48, 2, 64, 10_000, 64),  # capped by the nominal batch
        (48, 4, 64, 10_000, 64),
        (48, 3, 64, 10_000, 63),  # rounded down to what three divide
        (16, 2, 64, 10_000, 32),  # below it: two windows of accumulation instead of four
        (48, 2, None, 21, 20),  # a set smaller than the batch
        (48, 4, None, 3, 4),  # one picture for each rank, some of them padding
        (48, 4, 2, 10_000, 4),
    ],
)
def test_the_global_batch_is_a_multiple_of_the_ranks_within_every_limit(
    per_device: int, world_size: int, nbs: int | None, num_pictures: int, batch: int
) -> None:
    assert global_batch(per_device, world_size, nbs=nbs, num_pictures=num_pictures) == batch
