"""unet's facts: its recipe, its network for other class counts, where it is judged."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from libreyolo import LibreYOLO, schema
from libreyolo.engine import checkpoint
from libreyolo.engine.checkpoint import WeightsMeta
from libreyolo.errors import UserError
from libreyolo.models.unet import FAMILY
from libreyolo.models.unet.network import CLASS_LAYERS, build, infer
from libreyolo.recipe import SemanticRecipe, recipe_fields
from libreyolo.weights import parse_published, transfer

# LibreYOLO 1.6.0's recipe; sync_bn, which it has on, is off here on purpose (docs: only for the families that say so).
FACTS = {
    "imgsz": [512, 1024], "epochs": 160, "batch": 4, "sync_bn": False, "optimizer": "sgd", "lr0": 0.01, "momentum": 0.9, "weight_decay": 0.0005,
    "nesterov": False, "scheduler": "poly", "warmup_epochs": 2.0, "warmup_lr_start": 0.0, "min_lr_ratio": 0.0, "ema": True, "ema_decay": 0.999,
    "amp": False, "eval_interval": 1, "poly_power": 0.9, "aux_weight": 0.4, "rescale": [0.5, 2.0], "cat_max_ratio": 0.75, "flip_prob": 0.5,
    "hsv_prob": 1.0, "patience": 50,
}  # fmt: skip


def recipe(**arguments: object) -> SemanticRecipe:
    found = schema.resolve(schema.family("unet"), "s", {"data": "x.yaml", **arguments})
    assert isinstance(found, SemanticRecipe)
    return found


def test_the_recipe_is_the_published_one() -> None:
    own = asdict(recipe())
    assert {name: own[name] for name in FACTS} == FACTS


def test_keys_of_boxes_do_not_exist() -> None:
    assert not {"mosaic_prob", "mixup_prob", "max_det", "single_cls", "degrees", "max_labels"} & set(recipe_fields(type(recipe())))


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"rescale": [2.0, 0.5]}, "rescale=.* must have its lower number first"),
        ({"rescale": [0.0, 1.0]}, "must be greater than 0"),
        ({"cat_max_ratio": 1.5}, "cat_max_ratio=1.5 is out of range"),
        ({"eval_imgsz": [1, 2, 3]}, "eval_imgsz=.* must be a positive whole number"),
        ({"hsv_gain": [0.1]}, "hsv_gain=.* must be three numbers"),
        ({"aux_weight": -1.0}, "aux_weight=-1.0 is too small"),
        ({"mosaic_prob": 1.0}, "Unknown key 'mosaic_prob'"),
    ],
)
def test_contradictions_are_told(arguments: dict[str, object], words: str) -> None:
    with pytest.raises(UserError, match=words):
        recipe(**arguments)


@pytest.mark.parametrize(
    ("arguments", "judged"),
    [({}, [1024, 2048]), ({"imgsz": 256}, 256), ({"imgsz": [256, 512]}, [256, 512]), ({"imgsz": 256, "eval_imgsz": 384}, 384)],
)
def test_the_published_crop_is_judged_on_the_published_canvas_and_any_other_at_its_own_size(arguments: dict[str, object], judged: object) -> None:
    found = recipe(**arguments).for_training()
    assert found.judged_imgsz == judged
    assert found.for_training() == found


def test_an_evaluation_off_the_stride_is_told_by_its_own_name() -> None:
    with pytest.raises(UserError, match=r"eval_imgsz=100 does not fit the network: .* Use eval_imgsz=96 or eval_imgsz=112"):
        LibreYOLO("unets").train("x.yaml", imgsz=64, eval_imgsz=100)


def test_another_class_count_changes_the_class_layers_and_nothing_else() -> None:
    net, state = build("s", 3, width=4), build("s", 19, width=4).state_dict()
    own = net.state_dict()
    changed = {name for name in own if own[name].shape != state[name].shape}
    assert changed == {f"{layer}.{part}" for layer in CLASS_LAYERS for part in ("weight", "bias")}
    assert transfer(net, state) == (144, 148)


def test_names_and_shapes_tell_the_network() -> None:
    with torch.device("meta"):
        state = build("s", 5).state_dict()
    assert infer(state) == {"size": "s", "nc": 5}
    assert FAMILY.accepts(state)
    assert not FAMILY.accepts({k: v for k, v in state.items() if "decoder.2" not in k})
    assert not FAMILY.accepts({**state, "extra": state["decode_head.conv_seg.bias"]})
    with pytest.raises(UserError, match="4 channels, which is no size of it"):
        infer(build("s", 5, width=4).state_dict())
    found = parse_published("libreunetS-sem.pt")
    assert found is not None
    assert (found[0].name, found[1], found[2]) == ("unet", "s", "LibreUNets-sem.pt")


def test_a_file_for_a_rectangle_says_both_sides_and_is_judged_and_predicted_there() -> None:
    meta = WeightsMeta("unet", "s", "semantic", {0: "a"}, [1024, 2048], {})
    content = checkpoint.weights_dict({}, meta)
    assert (content["imgsz"], content["imgsz_h"], content["imgsz_w"]) == (2048, 1024, 2048)
    found = checkpoint.read_meta(content | {"model": {"x": torch.zeros(1)}}, Path("f.pt"))
    assert found is not None
    assert found.imgsz == [1024, 2048]
    assert recipe(imgsz=found.imgsz).judged_imgsz == [1024, 2048]


def test_both_heads_are_trained_and_the_auxiliary_one_is_left_out_of_evaluation() -> None:
    net = build("s", 3, width=4)
    main, aux = net(torch.rand(2, 3, 32, 48))
    assert (main.shape, aux.shape) == ((2, 3, 32, 48), (2, 3, 16, 24))
    assert net.eval()(torch.rand(1, 3, 32, 48)).shape == (1, 3, 32, 48)


def test_no_map_of_a_batch_of_large_pictures_is_more_than_torch_enlarges_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    made = []
    original = F.interpolate

    def noted(x: torch.Tensor, **named: Any) -> torch.Tensor:
        y = original(x, **named)
        made.append(y.numel())
        return y

    monkeypatch.setattr(F, "interpolate", noted)
    with torch.device("meta"):
        net, images = build("s", 19).eval(), torch.empty(24, 3, 1024, 2048)
    with torch.no_grad():
        logits = net(images)
    assert logits.shape == (24, 19, 1024, 2048)
    assert len(made) == 5 and max(made) < 2**31 - 1 < sum(made[-2:]) == 24 * 64 * 1024 * 2048  # the finest level in two parts
