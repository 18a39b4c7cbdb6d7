"""From a file's classes to others: what is taken, what is made anew, and what is said of it."""

from __future__ import annotations

import logging
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from libreyolo import build, schema, weights
from libreyolo.engine import checkpoint
from libreyolo.engine.checkpoint import WeightsMeta
from libreyolo.errors import UserError
from libreyolo.models.yolo9.network import CLASS_LAYERS
from tests.unit.weights.conftest import state_of

YOLO9 = schema.family("yolo9")
CLASS_TENSORS = {f"{layer}.{part}" for layer in CLASS_LAYERS for part in ("weight", "bias")}


@pytest.fixture(scope="module")
def eighty(tmp_path_factory: pytest.TempPathFactory) -> weights.Weights:
    """An 80-class file as published ones are, with tensors that no initialiser makes."""
    state = {k: torch.full_like(v, 0.25) if v.is_floating_point() else v for k, v in state_of(80).items()}
    path = tmp_path_factory.mktemp("published") / "LibreYOLO9t.pt"
    checkpoint.write(checkpoint.weights_dict(state, WeightsMeta("yolo9", "t", "detect", {i: f"n{i}" for i in range(80)}, 640, {})), path)
    return weights.load(path)


def started(file: weights.Weights, nc: int, **arguments: Any) -> nn.Module:
    recipe = schema.resolve(YOLO9, "t", arguments)
    return build.training_network(YOLO9, recipe, nc, build.Start(file.state, file.options, str(file.path)))


@pytest.mark.parametrize(
    ("nc", "aux_weight", "taken", "wanted"), [(3, 0.0, 1332, 1338), (3, 0.25, 1332, 1770), (80, 0.0, 1338, 1338), (80, 0.25, 1338, 1770)]
)
def test_one_line_says_how_many_tensors_were_taken(
    nc: int, aux_weight: float, taken: int, wanted: int, eighty: weights.Weights, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO):
        started(eighty, nc, aux_weight=aux_weight)
    assert [r.message for r in caplog.records] == [f"{taken} of {wanted} tensors taken from {eighty.path}."]


def test_all_but_the_class_layers_are_taken_and_those_start_from_their_prior(eighty: weights.Weights) -> None:
    net = started(eighty, 3, aux_weight=0.0)
    own: dict[str, Tensor] = net.state_dict()
    taken = {k for k in own if own[k].shape == eighty.state[k].shape and torch.equal(own[k], eighty.state[k])}
    assert set(own) - taken == CLASS_TENSORS & set(own)
    for level, stride in enumerate((8, 16, 32)):
        bias = own[f"head.cv3.{level}.2.bias"]
        assert torch.allclose(bias, torch.full((3,), math.log(5 / 3 / (640 / stride) ** 2)))
        assert own[f"head.cv3.{level}.2.weight"].std() > 0


def test_the_class_towers_keep_the_width_of_the_file(eighty: weights.Weights) -> None:
    assert started(eighty, 3).get_parameter("head.cv3.0.0.conv.weight").shape[0] == 80
    # The training branch that the file lacks is built as wide.
    assert started(eighty, 3, aux_weight=0.25).get_parameter("aux_head.cv3.0.0.conv.weight").shape[0] == 80


def test_a_fine_tuned_file_is_read_with_its_wide_towers_and_fine_tuned_again(eighty: weights.Weights, tmp_path: Path) -> None:
    first = started(eighty, 3, aux_weight=0.0)
    meta = WeightsMeta("yolo9", "t", "detect", {0: "ant", 1: "bee", 2: "cat"}, 64, {})
    checkpoint.write(checkpoint.weights_dict(first.state_dict(), meta), tmp_path / "mine.pt")
    mine = weights.load(tmp_path / "mine.pt")
    again, other = started(mine, 3, aux_weight=0.0).state_dict(), started(mine, 5, aux_weight=0.0)
    assert all(torch.equal(again[k], v) for k, v in first.state_dict().items())
    assert other.get_parameter("head.cv3.0.2.weight").shape[:2] == (5, 80)


def test_fresh_class_layers_are_those_of_the_seed(eighty: weights.Weights) -> None:
    """Every rank must make the same ones."""
    name = "head.cv3.1.2.weight"
    one, same, other = (started(eighty, 3, seed=seed).get_parameter(name) for seed in (1, 1, 2))
    assert torch.equal(one, same)
    assert not torch.equal(one, other)


def test_a_start_of_which_nothing_fits_is_refused() -> None:
    foreign = build.Start({"nothing.of.ours": torch.zeros(1)}, {}, "other.pt")
    with pytest.raises(UserError, match=r"No tensor of other\.pt fits yolo9t"):
        build.training_network(YOLO9, schema.resolve(YOLO9, "t", {}), 3, foreign)


def test_a_missing_tensor_is_named_when_all_are_needed(state: dict[str, Tensor], tmp_path: Path) -> None:
    net = YOLO9.network.build("t", 3)
    with pytest.raises(UserError, match=r"lacks the tensor head\.cv2\.0\.2\.bias"):
        weights.load_whole(net, {k: v for k, v in state.items() if k != "head.cv2.0.2.bias"}, tmp_path)
    with pytest.raises(UserError, match=r"head\.cv2\.0\.2\.bias has shape \[7\], this network needs \[64\]"):
        weights.load_whole(net, {**state, "head.cv2.0.2.bias": torch.zeros(7)}, tmp_path)


def test_a_validation_takes_from_a_checkpoint_how_its_training_judged_it() -> None:
    """The input size apart, which a file says of itself: that of a training may be of crops."""
    config = {"data": "a.yaml", "imgsz": 96, "max_det": 10, "single_cls": True, "classes": None, "lr0": 0.1, "epochs": 3}
    assert weights.evaluation_arguments({"config": config}) == {"data": "a.yaml", "max_det": 10, "single_cls": True}
    assert weights.evaluation_arguments({}) == {}
    assert weights.evaluation_arguments({"config": "yolov9.yaml"}) == {}
