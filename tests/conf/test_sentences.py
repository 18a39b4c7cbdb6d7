"""A mistake in the configuration is one sentence that names the nearest valid key."""

from __future__ import annotations

import pytest
import torch

from libreyolo import schema
from libreyolo.errors import UserError
from tests.conf.conftest import Compose, told


def in_python(**arguments: object) -> str:
    with pytest.raises(UserError) as caught:
        schema.resolve(schema.family("yolo9"), "t", arguments)
    return str(caught.value)


@pytest.mark.parametrize(("typed", "meant"), [("epochz", "epochs"), ("mosiac_prob", "mosaic_prob"), ("batch_size", "batch"), ("lr", "lr0")])
def test_an_unknown_key_names_the_nearest_one_through_both_doors(composed: Compose, typed: str, meant: str) -> None:
    sentence = f"Unknown key '{typed}'. Did you mean '{meant}'? All keys: python train.py --help."
    if meant != "lr0":  # "lr" is too short to be near anything for sure
        assert told(composed, f"{typed}=3") == sentence
    assert told(composed, f"{typed}=3") == in_python(**{typed: 3})


@pytest.mark.parametrize(
    ("key", "typed", "value", "takes"),
    [
        ("epochs", "epochs=many", "many", "a whole number"),
        ("epochs", "epochs=2.5", 2.5, "a whole number"),
        ("lr0", "lr0=fast", "fast", "a number"),
        ("ema", "ema=maybe", "maybe", "true or false"),
        ("nbs", "nbs=x", "x", "a whole number or null"),
        ("mosaic_scale", "mosaic_scale=[a,b]", ["a", "b"], "a list of numbers"),
    ],
)
def test_a_wrong_type_says_what_the_key_takes_through_both_doors(composed: Compose, key: str, typed: str, value: object, takes: str) -> None:
    sentence = told(composed, typed)
    assert sentence.startswith(f"{key}=")
    assert f"has the wrong type: {key} takes {takes}" in sentence
    assert in_python(**{key: value}) == sentence


def test_a_key_of_other_families_is_told_with_its_owners_through_both_doors(composed: Compose) -> None:
    sentence = "Unknown key 'rot90'. It is a key of nafnet, not of yolo9. All keys: python train.py --help."
    assert told(composed, "rot90=0.5") == in_python(rot90=0.5) == sentence
    assert "It is a key of resnet, not of yolo9. Did you mean 'mixup_prob'?" in told(composed, "mixup=0.5")


def test_a_key_of_the_family_is_named_when_it_is_mistyped(composed: Compose) -> None:
    assert "Did you mean 'aux_weight'?" in told(composed, "aux_wieght=0")


@pytest.mark.parametrize(
    ("typed", "words"),
    [
        ("model=yolo9z", "model=yolo9z is not known. Did you mean 'yolo9"),
        ("experiment=dema", "experiment=dema is not known. Did you mean 'demo'?"),
        ("devices=tow", "devices=tow is not known. Did you mean 'two'?"),
        ("device=0,1", "'device=[0,1]'"),
    ],
)
def test_an_unknown_choice_names_the_nearest_one(composed: Compose, typed: str, words: str) -> None:
    assert words in told(composed, typed)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"batch": 0}, "batch=0 is not a batch: use a positive number of pictures"),
        ({"memory_fraction": 1.0}, "memory_fraction=1.0 is out of range"),
        ({"compile": "fast"}, "compile=fast is not known: choose one of false, true, default, reduce-overhead"),
        ({"deterministic": True, "cudnn_benchmark": True}, "the fastest of this run: give one of them"),
        ({"compile": True, "cuda_graph": True}, "both replace how the network runs: give one of them"),
        ({"batch": -7}, "batch=-7 is not a batch"),
        ({"epochs": 0}, "epochs=0 is too small: it must be 1 or more"),
        ({"lr0": float("nan")}, "lr0=nan"),
        ({"lr0": float("inf")}, "lr0=inf"),
        ({"imgsz": "large"}, "imgsz=large must be a positive whole number of pixels"),
        ({"imgsz": [640, 640, 3]}, "imgsz=[640, 640, 3] must be"),
        ({"scheduler": "linaer"}, "Did you mean 'linear'?"),
        ({"optimizer": "adamW"}, "Did you mean 'adamw'?"),
        ({"cache": "rma"}, "choose one of false, auto, ram, disk"),
        ({"stop_after_epoch": 9, "epochs": 3}, "stop_after_epoch=9 lies behind the last epoch: epochs=3"),
        ({"weights": "a.pt", "pretrained": True}, "give one of them"),
        ({"betas": [0.9]}, "betas=[0.9] must be two numbers"),
        ({"mosaic_scale": [1.5, 0.5]}, "use [0.5, 1.5]"),
        ({"mosaic_prob": 1.5}, "mosaic_prob=1.5 is out of range: it must lie between 0 and 1"),
        ({"classes": []}, "classes=[] must name at least one class id"),
        ({"hsv_gain": [1.0]}, "hsv_gain=[1.0] must be three numbers"),
        ({"letterbox_pad": "centre"}, "Did you mean 'center'?"),
        ({"name": "a b"}, "cannot be a directory name"),
        ({"freeze": True}, "freeze=True"),
        ({"freeze": 1.5}, "freeze=1.5"),
        ({"freeze": {"a": 1}}, "freeze="),
        ({"freeze": -1}, "freeze=-1"),
        ({"resume": 3}, "resume=3"),
        ({"loggers": ["csw"]}, "Did you mean 'csv'?"),
        ({"seed": -1}, "seed=-1 is out of range"),
        ({"seed": 2**63}, "seed=9223372036854775808 is out of range"),
        ({"ddp_timeout": float("nan")}, "ddp_timeout=nan is out of range"),
        ({"ddp_timeout": 1e20}, "ddp_timeout=1e+20 is out of range"),
        ({"ema_tau": 0.0}, "ema_tau=0.0 is too small"),
        ({"warmup_momentum": 1.5}, "warmup_momentum=1.5 is out of range"),
        ({"eval_max_det": 0}, "eval_max_det=0 is out of range"),
        ({"max_det": 10**14}, "max_det=100000000000000 is out of range"),
        ({"imgsz": 6400000000}, "imgsz=6400000000 is too large"),
        ({"ema": 3}, "ema=3 has the wrong type: ema takes true or false"),
        ({"data": " "}, "data is empty: give it a value, or leave it out"),
        ({"weights": ""}, "weights is empty"),
        ({"size": "s"}, "size=s is not that of the model, yolo9t"),
        ({"mosaic_scale": {}}, "mosaic_scale={} has the wrong type: mosaic_scale takes a list of numbers"),
        ({"classes": "${nothing}"}, "classes=${nothing} has the wrong type"),
        ({"classes": "${oc.env:PATH}"}, "has the wrong type: classes takes a list of whole numbers or null"),
        ({"device": object}, "has the wrong type; device takes: auto, cpu, mps, 0, cuda:0, or a list of GPUs"),
        ({"loggers": "csv"}, "loggers=csv has the wrong type: loggers takes a list of texts"),
    ],
)
def test_a_value_that_cannot_be_used_is_told_before_anything_starts(arguments: dict[str, object], words: str) -> None:
    sentence = in_python(**arguments)
    assert words in sentence
    assert "\n" not in sentence


@pytest.mark.parametrize(
    ("side", "choices"), [(13, "Use imgsz=32."), (650, "Use imgsz=640 or imgsz=672."), ([640, 100], "Use imgsz=96 or imgsz=128.")]
)
def test_an_input_off_the_stride_is_refused_with_its_neighbours(side: object, choices: str) -> None:
    from libreyolo.recipe.checks import on_stride

    with pytest.raises(UserError, match=r"must be a multiple of its stride 32") as caught:
        on_stride(side, 32)  # type: ignore[arg-type]
    assert str(caught.value).endswith(choices)


def test_what_equals_a_choice_is_that_choice_and_devices_of_torch_are_text() -> None:
    found = schema.resolve(
        schema.family("yolo9"), "t", {"compile": 1, "cache": 0, "resume": None, "device": torch.device("cuda", 1), "ema": 0, "freeze": range(2)}
    )
    assert (found.compile, found.cache, found.resume, found.device, found.ema, found.freeze) == (True, False, False, "cuda:1", False, [0, 1])
    assert type(found.compile) is type(found.cache) is bool
