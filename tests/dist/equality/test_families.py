"""N ranks train the same model as one: every family there is, found by itself."""

from __future__ import annotations

from typing import Any

import pytest

import launch
from libreyolo import schema
from tests import kernels
from tests.dist.equality import ranks
from tests.dist.equality.checks import NO_OBJECT, buffer_difference, difference, run
from tests.dist.equality.norms import Norm
from tests.dist.equality.synthetic import FACTORIES

CHECKS = ranks.family_checks()
TIGHT, LOOSE = 1e-8, 1e-3
# AdamW divides by the roots of squared gradients: where those are tiny, rounding grows. fomo has biases whose gradient is nothing but rounding, for a
# BatchNorm behind a linear layer takes their mean away again.
ADAPTIVE = 1e-5


@pytest.mark.parametrize("family", list(schema.families()))
def test_every_family_s_task_has_pictures_to_be_tested_with(family: str) -> None:
    assert schema.family(family).task in FACTORIES, "add a function to FACTORIES in tests/dist/equality/synthetic.py"


@pytest.mark.slow
@pytest.mark.parametrize("key", list(CHECKS), ids=" | ".join)
def test_two_ranks_train_what_one_trains(key: tuple[str, str, str], two_ranks: dict[Any, Any]) -> None:
    alone, both = run(CHECKS[key]), two_ranks[key]
    tolerance = LOOSE if not CHECKS[key].double else ADAPTIVE if "AdamW" in key[2] else TIGHT
    assert buffer_difference(alone.before, both.before) == 0
    assert alone.steps == both.steps
    assert difference(alone, both, may_stand_still=CHECKS[key].objects == NO_OBJECT) < tolerance
    assert buffer_difference(alone.norms, both.norms) < tolerance
    assert buffer_difference(alone.average, both.average) < tolerance
    assert both.losses == pytest.approx(alone.losses, rel=1e-5 if CHECKS[key].double else 1e-3, abs=1e-6)
    if CHECKS[key].objects != NO_OBJECT:
        assert all(value > 0 for value in alone.losses.values())


@pytest.mark.slow
@pytest.mark.parametrize("number", [0, 1], ids=["BatchNorm synchronised", "BatchNorm standing still"])
def test_a_step_that_one_rank_alone_finds_infinite_is_skipped_by_both_as_by_one(number: int, two_ranks: dict[Any, Any]) -> None:
    alone, both = run(ranks.POISONED[number]), two_ranks["poisoned"][number]
    assert alone.steps == both.steps == 2
    assert difference(alone, both) < TIGHT
    assert buffer_difference(alone.norms, both.norms) < TIGHT
    assert buffer_difference(alone.average, both.average) < TIGHT
    assert both.losses == pytest.approx(alone.losses, rel=1e-5)


@pytest.mark.slow
def test_four_ranks_train_what_one_trains() -> None:
    outcome, norm_gaps = launch.spawn_ddp_train(ranks.four_ranks, (), num_processes=4)
    alone = run(ranks.FOUR)
    assert difference(alone, outcome) < TIGHT
    assert buffer_difference(alone.norms, outcome.norms) < TIGHT
    assert max(norm_gaps.values()) < 1e-10


@pytest.mark.slow
def test_fresh_weights_are_equal_on_all_ranks(two_ranks: dict[Any, Any]) -> None:
    assert two_ranks["initial"] == dict.fromkeys(schema.families(), 0.0)


@pytest.mark.slow
def test_statistics_without_synchronisation_are_averaged_before_they_are_used(two_ranks: dict[Any, Any]) -> None:
    assert two_ranks["without sync"] == (0.0, 0.0)
    ((first, after_first), (second, after_second)) = two_ranks["averaged"]
    for name in ("1.running_mean", "1.running_var"):
        assert (after_first[name] - (first[name] + second[name]) / 2).abs().max() < 1e-6
        assert (after_first[name] == after_second[name]).all()
    assert abs(float(first["1.running_mean"][0] - second["1.running_mean"][0])) == pytest.approx(1.0)  # a tenth of 10


@pytest.mark.slow
@pytest.mark.parametrize("name", list(ranks.MUTATIONS))
def test_the_check_fails_under_a_mutation(name: str, two_ranks: dict[Any, Any]) -> None:
    alone, mutant = run(ranks.MUTATED), two_ranks["mutations"][name]
    assert difference(alone, mutant) > 0.01


@pytest.mark.slow
def test_without_mutation_the_same_check_passes(two_ranks: dict[Any, Any]) -> None:
    key = ("yolo9", "without the auxiliary branch", "one gradient, objects on one rank only")
    assert difference(run(ranks.MUTATED), two_ranks[key]) < TIGHT


@pytest.mark.slow
@pytest.mark.parametrize("case", ranks.NORMS, ids=str)
def test_synchronised_batchnorm_is_batchnorm_of_the_whole_batch(case: Norm, two_ranks: dict[Any, Any]) -> None:
    gaps = two_ranks["norms"][case]
    assert {"forward", "input gradient"} <= gaps.keys()
    if case.training or case.track:
        assert max(gaps.values()) < (1e-10 if case.dtype.itemsize == 8 else 1e-3), gaps


@pytest.mark.slow
@pytest.mark.skipif(not kernels.INTERPRETED, reason="it runs in Triton's interpreter")
def test_two_norms_whose_kernels_meet_once_are_those_of_the_whole_batch(two_ranks: dict[Any, Any]) -> None:
    gaps = two_ranks["pair"]
    assert {"forward", "input gradient", "conv1.bn.weight gradient", "conv2.bn.running_var"} <= gaps.keys()
    assert max(gaps.values()) < 2e-4, gaps
