"""Every schedule against values worked out by hand, and nothing but a function of the step."""

from __future__ import annotations

import math

import pytest

from libreyolo.engine.schedule import Schedule
from libreyolo.recipe import Recipe
from libreyolo.recipe.base import recipe_fields

KINDS = ("yoloxwarmcos", "linear", "cos", "flat_cosine", "poly", "constant", "step")
HALF_COSINE = 0.5 * (1 + math.cos(math.pi / 4))  # a quarter of the way down


def schedule(kind: str, **changes: object) -> Schedule:
    """100 steps, 10 of warm-up from 0.1 to a peak of 1, 20 of tail, an end of 0.2."""
    numbers = {"total_steps": 100, "warmup_steps": 10, "lr_start": 0.1, "min_ratio": 0.2, "tail_steps": 20, "poly_power": 2.0, "drop_step": 60}
    return Schedule(kind, 1.0, **{**numbers, **changes})  # type: ignore[arg-type]


@pytest.mark.parametrize("kind", KINDS)
def test_the_warm_up_starts_at_its_first_value_and_reaches_the_peak(kind: str) -> None:
    curve = schedule(kind)
    assert curve.lr(0) == pytest.approx(0.1)
    # Half way: a line gives 0.1 + 0.9 * 0.5, YOLOX's square 0.1 + 0.9 * 0.25.
    assert curve.lr(5) == pytest.approx(0.325 if kind == "yoloxwarmcos" else 0.55)
    assert curve.lr(10) == pytest.approx(1.0)


# Steps after the warm-up: 10..100 is 90 steps (yoloxwarmcos: 10..80 is 70 and then the tail), 80..100 the tail.
BY_HAND = {
    "yoloxwarmcos": {27.5: 0.2 + 0.8 * HALF_COSINE, 45: 0.6, 80: 0.2, 99: 0.2},
    "linear": {32.5: 0.8, 55: 0.6, 100: 0.2},
    "cos": {32.5: 0.2 + 0.8 * HALF_COSINE, 55: 0.6, 100: 0.2},
    "flat_cosine": {79: 1.0, 85: 0.2 + 0.8 * HALF_COSINE, 90: 0.6, 100: 0.2},
    "poly": {55: 0.2 + 0.8 * 0.25, 100: 0.2},
    "constant": {11: 1.0, 99: 1.0},
    "step": {59: 1.0, 60: 0.1, 99: 0.1},
}


@pytest.mark.parametrize("kind", KINDS)
def test_the_curve_after_the_warm_up_is_the_one_worked_out_by_hand(kind: str) -> None:
    for step, expected in BY_HAND[kind].items():
        assert schedule(kind).lr(step) == pytest.approx(expected), step  # type: ignore[arg-type]


@pytest.mark.parametrize("kind", KINDS)
def test_past_its_end_a_schedule_stays_where_it_is(kind: str) -> None:
    curve = schedule(kind)
    assert curve.lr(1000) == curve.lr(100)


@pytest.mark.parametrize("kind", KINDS)
def test_a_run_that_is_all_warm_up_or_all_tail_has_a_finite_rate_at_every_step(kind: str) -> None:
    for changes in ({"warmup_steps": 100}, {"tail_steps": 100}, {"warmup_steps": 0, "tail_steps": 0}, {"warmup_steps": 60, "tail_steps": 60}):
        rates = [schedule(kind, **changes).lr(step) for step in range(101)]
        assert all(0.1 <= rate <= 1.0 for rate in rates), changes


def test_momentum_rises_in_a_line_over_the_warm_up_and_stays() -> None:
    curve = schedule("linear", momentum=0.9, warmup_momentum=0.5)
    assert [curve.momentum_at(step) for step in (0, 5, 10, 50)] == pytest.approx([0.5, 0.7, 0.9, 0.9])


def test_momentum_is_constant_without_a_warm_up_value() -> None:
    curve = schedule("linear", momentum=0.9)
    assert {curve.momentum_at(step) for step in range(100)} == {0.9}


def test_the_recipe_offers_exactly_the_schedules_that_exist() -> None:
    text = recipe_fields(Recipe)["scheduler"].metadata["help"]
    assert text.replace(" or ", ", ").split(", ") == list(KINDS)
    for kind in KINDS:
        Recipe(scheduler=kind)
    with pytest.raises(ValueError, match="unknown schedule"):
        schedule("nonsense").lr(50)
