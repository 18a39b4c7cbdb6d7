"""Windows of micro-batches on one and two ranks, and the terms that are not plain means."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

import launch
from tests.dist.equality import ranks, toys
from tests.dist.equality.checks import GRADIENT, MIXED, Check, difference, run


@pytest.mark.slow
def test_windows_of_one_normaliser_equal_true_batches_the_short_last_one_too(two_ranks: dict[Any, Any]) -> None:
    windows = run(ranks.WINDOWS)
    batches = run(replace(ranks.WINDOWS, keys={**ranks.WINDOWS.keys, "batch": 8, "nbs": None}))
    assert windows.steps == batches.steps == 2  # eight pictures and two
    assert difference(batches, windows) < 1e-8
    assert difference(batches, two_ranks["windows"]) < 1e-8
    assert windows.losses == pytest.approx(batches.losses, rel=1e-5)


@pytest.mark.slow
def test_windows_of_two_normalisers_weight_each_micro_batch_by_its_pictures() -> None:
    def gradient(part: tuple[int, int], nbs: int | None = None) -> dict[str, torch.Tensor]:
        keys = {**GRADIENT, "aux_weight": 0.25, "batch": 2, "nbs": nbs}
        outcome = run(Check("yolo9", objects=MIXED[:5], part=part, keys=keys, frozen_norms=True))
        return {n: outcome.before[n] - outcome.after[n] for n in outcome.after}

    singles = [gradient((0, 2)), gradient((2, 4)), gradient((4, 5))]
    window = gradient((0, 5), nbs=6)
    size = max(float(g.abs().max()) for g in window.values())
    for name, found in window.items():
        expected = 0.4 * singles[0][name] + 0.4 * singles[1][name] + 0.2 * singles[2][name]
        assert float((found - expected).abs().max()) < 1e-10 * size, name


@pytest.mark.slow
def test_gradients_are_synchronised_once_for_each_optimiser_step(two_ranks: dict[Any, Any]) -> None:
    assert two_ranks["all-reduces"] == two_ranks["windows"].steps == 2


@pytest.mark.slow
@pytest.mark.parametrize("kind", list(toys.KINDS))
def test_every_kind_of_term_gives_on_two_ranks_what_one_process_computes(kind: str, two_ranks: dict[Any, Any]) -> None:
    gradient, shown = two_ranks["toys"][kind]
    expected, value = toys.by_hand(toys.KINDS[kind][1], toys.data())
    assert toys.largest_gap(gradient, expected) < 1e-12
    assert sum(shown.values()) == pytest.approx(value, rel=1e-12)


@pytest.mark.slow
def test_weights_cast_together_give_two_ranks_the_numbers_of_autocast_s_own_casts(two_ranks: dict[Any, Any]) -> None:
    together, apart = two_ranks["casts together"]
    fresh = toys.model().float().state_dict()
    assert all(torch.equal(together[name], apart[name]) and not torch.equal(together[name], fresh[name]) for name in fresh)


@pytest.mark.slow
def test_gradients_that_come_in_odd_ways_beside_those_of_casts_are_averaged_too(two_ranks: dict[Any, Any]) -> None:
    assert all(gap < 1e-5 and count == 10 for gap, count in two_ranks["odd ways"])


@pytest.mark.slow
@pytest.mark.gpu
@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs")
def test_on_two_gpus_late_ranks_average_the_same_gradients() -> None:
    steps = launch.spawn_ddp_train(ranks.odd_ways_on_two_gpus, (), num_processes=2)
    assert len(steps) == 40 and all(gap < 1e-5 and count == 10 for gap, count in steps)


@pytest.mark.slow
def test_gradients_of_vectors_are_averages_like_those_that_ddp_has_and_begin_as_those_of_rank_0(two_ranks: dict[Any, Any]) -> None:
    for rank in two_ranks["vector of rank 1"]:
        assert all(not values.any() for values in rank["begun"].values())  # on rank 1 they were made of ones
        # The loss of rank 1 counts twice: (1 + 2) / 2; rank 0 has no gradient of the vector: (0 + 2) / 2.
        expected = {"weight": 1.5, "other": 1.5, "vector": 1.0}
        assert {name: values.unique().tolist() for name, values in rank["gradients"].items()} == {name: [v] for name, v in expected.items()}
        assert rank["left to DDP"] == 1


@pytest.mark.slow
def test_a_group_that_is_empty_on_all_ranks_counts_nothing(two_ranks: dict[Any, Any]) -> None:
    gradient, _ = two_ranks["no positive"]
    expected, _ = toys.by_hand(toys.decoupled_loss, toys.no_positive(toys.data()))
    assert toys.largest_gap(gradient, expected) < 1e-12


@pytest.mark.slow
def test_an_infinite_loss_on_one_rank_moves_nothing_on_any(two_ranks: dict[Any, Any]) -> None:
    assert two_ranks["inf on one rank"] == [(False, 0.0), (False, 0.0)]
