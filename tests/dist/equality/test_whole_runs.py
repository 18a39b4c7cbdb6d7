"""Whole trainings on one and two ranks: validation, resume on another number of ranks, and repetition to the bit."""

from __future__ import annotations

import csv
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from libreyolo import LibreYOLO
from libreyolo.engine import checkpoint
from tests.dist.equality import runs, validation

pytestmark = pytest.mark.slow


def state(run: dict[str, Any], name: str = "last.pt") -> dict[str, Any]:
    return checkpoint.read(run["dir"] / "weights" / name)


def assert_equal_bits(one: Any, other: Any, path: str = "") -> None:
    """Compare everything in two checkpoints but the clock and what belongs to the command."""
    if isinstance(one, torch.Tensor):
        assert torch.equal(one, other), path
    elif isinstance(one, dict):
        assert one.keys() == other.keys(), path
        for key in (k for k in one if k not in ("seconds", "config", "time") and not str(k).startswith(("speed/", "system/"))):
            assert_equal_bits(one[key], other[key], f"{path}/{key}")
    elif isinstance(one, list):
        assert len(one) == len(other), path
        for i, pair in enumerate(zip(one, other, strict=True)):
            assert_equal_bits(*pair, f"{path}/{i}")
    else:
        assert one == other or (one != one and other != other), path


def seen(run: dict[str, Any]) -> list[Any]:
    return [(s.lr, s.momentum, s.pictures) for s in run["steps"]]


def rows(run: dict[str, Any]) -> list[dict[str, str]]:
    with (run["dir"] / "results.csv").open(newline="") as stream:
        return list(csv.DictReader(stream))


def without_clock(table: list[dict[str, str]]) -> list[dict[str, str]]:
    return [{k: v for k, v in row.items() if k != "time" and not k.startswith(("speed/", "system/"))} for row in table]


def moved(run: dict[str, Any], other: dict[str, Any]) -> float:
    """Return the distance of two runs' averages relative to how far one went since its first epoch."""
    ends = [torch.cat([v.double().reshape(-1) for v in state(r)["ema"].values() if v.is_floating_point()]) for r in (run, other)]
    start = torch.cat([v.double().reshape(-1) for v in state(run, "epoch_1.pt")["ema"].values() if v.is_floating_point()])
    return float((ends[0] - ends[1]).norm() / (ends[0] - start).norm())


def test_the_steps_of_one_and_two_ranks_are_the_same_pictures_at_the_same_rates(trained: dict[str, Any]) -> None:
    one, two = seen(trained["straight on 1"]), seen(trained["straight on 2"])
    assert len(one) == 6
    assert [{k: v for k, v in s[2].items() if v[1]} for s in one] == [{k: v for k, v in s[2].items() if v[1]} for s in two]
    assert [s[:2] for s in one] == [s[:2] for s in two]
    assert len({s[0] for s in one}) == 6  # the schedule moves every step


def test_one_and_two_ranks_end_at_the_same_weights(trained: dict[str, Any]) -> None:
    assert moved(trained["straight on 1"], trained["straight on 2"]) < 1e-3


def test_the_metrics_of_one_and_two_ranks_agree(trained: dict[str, Any]) -> None:
    one, two = rows(trained["straight on 1"]), rows(trained["straight on 2"])
    for name in ("metrics/mAP50-95", "metrics/mAP50", "metrics/AR100"):
        assert [float(r[name]) for r in one] == pytest.approx([float(r[name]) for r in two], abs=1e-4)
    assert max(float(r["metrics/AR100"]) for r in one) > 0  # something is compared
    assert [r["speed/images_seen"] for r in two] == ["7.0"] * 3


def test_a_stand_alone_validation_of_last_pt_gives_the_row_of_the_csv(trained: dict[str, Any], dataset: str) -> None:
    for name in ("straight on 1", "straight on 2"):
        last = rows(trained[name])[-1]
        found = LibreYOLO(trained[name]["dir"] / "weights" / "last.pt").val(dataset, batch=4, workers=0, device="cpu", single_cls=True)
        metrics = {k: v for k, v in found.items() if k.startswith("metrics/")}
        assert len(metrics) > 10
        assert {k: float(last[k]) for k in metrics} == pytest.approx(metrics, abs=1e-4)


def test_the_same_predictions_give_the_same_bits_however_they_are_shared(trained: dict[str, Any], dataset: str, one_val_picture: str) -> None:
    shared, with_an_empty_rank = trained["metrics"]
    alone = validation.metrics(dataset, batch=3)
    assert 0.05 < alone["metrics/mAP50-95"] < 0.95
    assert alone["speed/images_seen"] == 7
    assert shared == alone
    assert with_an_empty_rank == validation.metrics(one_val_picture)
    assert with_an_empty_rank["speed/images_seen"] == 1


def test_the_same_seed_and_ranks_give_the_same_bits_twice(trained: dict[str, Any]) -> None:
    for ranks in (1, 2):
        assert_equal_bits(state(trained[f"straight on {ranks}"], "epoch_1.pt"), state(trained[f"stopped on {ranks}"], "epoch_1.pt"))


def test_two_ranks_stopped_and_resumed_are_two_ranks_unbroken_to_the_bit(trained: dict[str, Any]) -> None:
    straight, resumed = trained["straight on 2"], trained["resumed on 2"]
    assert seen(trained["stopped on 2"]) + seen(resumed) == seen(straight)
    assert [s.draws for s in resumed["steps"]] == [s.draws for s in straight["steps"][2:]]
    assert_equal_bits(state(straight), state(resumed))
    assert without_clock(rows(straight)) == without_clock(rows(resumed))


@pytest.mark.parametrize(("stopped_on", "continued_on"), [(1, 2), (2, 1)])
def test_a_run_goes_on_with_another_number_of_ranks(stopped_on: int, continued_on: int, trained: dict[str, Any]) -> None:
    straight, stopped, continued = trained[f"straight on {stopped_on}"], trained[f"stopped on {stopped_on}"], trained[f"continued on {continued_on}"]
    steps = seen(stopped) + seen(continued)
    assert [s[:2] for s in steps] == [s[:2] for s in seen(straight)]
    assert [s[2] for s in steps] == [s[2] for s in seen(straight)]
    assert state(continued)["config"]["batch"] == 4
    assert state(continued)["progress"]["global_step"] == 6
    assert [r["epoch"] for r in rows(continued)] == ["1", "2", "3"]
    assert moved(straight, continued) < 1e-3


def test_the_resume_starts_with_what_was_saved(trained: dict[str, Any]) -> None:
    for ranks in (1, 2):
        assert state(trained[f"stopped on {ranks}"], "epoch_1.pt")["ema_updates"] == 2


def test_no_two_ranks_or_steps_draw_the_same_numbers(trained: dict[str, Any]) -> None:
    draws = [d for s in trained["straight on 2"]["steps"] for d in s.draws]
    assert len(draws) == 12
    for column in zip(*draws, strict=True):
        assert len(set(column)) == 12


def test_files_hold_plain_batchnorm(trained: dict[str, Any]) -> None:
    one, two = state(trained["straight on 1"])["model"], state(trained["straight on 2"])["model"]
    assert list(one) == list(two)
    found = LibreYOLO(trained["straight on 2"]["dir"] / "weights" / "best.pt")
    kinds = {type(m) for m in found.net.modules() if "BatchNorm" in type(m).__name__}
    assert kinds == {torch.nn.BatchNorm2d}
    assert len(found.predict(np.zeros((64, 64, 3), np.uint8), device="cpu")) == 1


def test_training_leaves_the_caller_s_generators_alone(dataset: str, tmp_path: Path) -> None:
    model = LibreYOLO("yolo9t")  # its weights are drawn from the caller's generator, as every module's are
    random.seed(1), np.random.seed(2), torch.manual_seed(3)
    before = random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state()
    model.train(data=dataset, project=str(tmp_path), **{**runs.KEYS, "epochs": 1, "max_steps": 1, "val": False})
    after = random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state()
    assert before[:2] == after[:2]
    assert torch.equal(before[2], after[2])
