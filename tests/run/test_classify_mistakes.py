"""A classifier's mistakes, told in one sentence before anything is trained or left behind."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from libreyolo import LibreYOLO, schema
from libreyolo.assembly.classify import ClassifyAssembly
from libreyolo.assembly.parts import Seat
from libreyolo.data.class_shapes import make_class_shapes
from libreyolo.errors import UserError
from libreyolo.models.resnet import FAMILY
from libreyolo.recipe import ClassifyRecipe, recipe_fields


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_class_shapes(tmp_path_factory.mktemp("few") / "set", num_train=6, num_val=6, size=32).parent


MISTAKES: dict[str, tuple[dict[str, Any], str]] = {
    "mixing too often": ({"mixup": 0.7, "cutmix": 0.5}, "mixup=0.7 and cutmix=0.5 exclude each other on a picture: their sum must be at most 1"),
    "an unknown policy": ({"auto_augment": "randaug"}, "auto_augment=randaug is not known: choose one of null, randaugment, autoaugment, augmix"),
    "a crop of nothing": ({"scale": [0.0, 1.0]}, "scale=[0.0, 1.0] must lie between 0 and 1, 0 excluded"),
    "a crop larger than the picture": ({"crop_pct": 1.5}, "crop_pct=1.5 must be above 0 and at most 1"),
    "a label of smoothing alone": ({"label_smoothing": 1.0}, "label_smoothing=1.0 must be at least 0 and below 1"),
    "a key of a detector": ({"mosaic_prob": 0.5}, "Unknown key 'mosaic_prob'"),
    "a misspelt key": ({"erase": 0.5}, "Unknown key 'erase'. Did you mean 'erasing'?"),
    "another class count": ({"num_classes": 4}, "num_classes=4, but DATA/data.yaml has 6 classes"),
    "one number a channel": ({"batch": 1, "imgsz": 32}, "leave BatchNorm one number a channel: use batch=2 or more, or imgsz above 32"),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_is_told_in_one_sentence_and_leaves_nothing(data: Path, tmp_path: Path, mistake: str) -> None:
    keys, sentence = MISTAKES[mistake]
    with pytest.raises(UserError) as told:
        LibreYOLO("resnet18").train(data, project=str(tmp_path / "out"), device="cpu", workers=0, **keys)
    assert sentence.replace("DATA", str(data)) in str(told.value)
    assert not list(tmp_path.glob("out/*/weights"))


def test_a_set_of_boxes_is_refused_with_where_its_pictures_lie(tmp_path: Path) -> None:
    from libreyolo.data.shapes import make_shapes

    with pytest.raises(UserError, match=r"its pictures \(.*00000.jpg\) lie in no class folder"):
        LibreYOLO("resnet18").train(make_shapes(tmp_path / "boxes", num_train=1, num_val=1, size=32), project=str(tmp_path))


def test_a_missing_set_names_the_embedded_one() -> None:
    with pytest.raises(UserError, match="or try the embedded set: data=shapes-classify"):
        LibreYOLO("resnet18").train()


def test_one_picture_on_each_rank_is_enough_where_the_last_map_has_more_than_one_place(data: Path) -> None:
    recipe = schema.resolve(FAMILY, "18", {"data": str(data), "imgsz": 64, "batch": 2, "workers": 0})
    assembly = ClassifyAssembly(FAMILY, recipe, FAMILY.input, data)
    batch = next(iter(assembly.train_loader(Seat(1, 2, 2, torch.device("cpu")), 2).epoch(0)))
    loss = assembly.task().terms(FAMILY.network.build("18", 6).train(), batch, {})["ce"]
    assert len(batch.index) == 1 and torch.isfinite(loss.total)


def test_class_weights_are_inverse_frequencies_with_mean_1(tmp_path: Path) -> None:
    root = make_class_shapes(tmp_path / "set", num_train=8, num_val=2, size=32).parent  # two classes with 2 pictures, four with 1
    recipe = schema.resolve(FAMILY, "18", {"data": str(root), "cls_pw": 1.0})
    weights = ClassifyAssembly(FAMILY, recipe, FAMILY.input, root).task().criterion.class_weights
    assert weights is not None
    by_name = dict(zip(["circle", "cross", "ring", "square", "star", "triangle"], weights.tolist(), strict=True))
    assert float(weights.mean()) == pytest.approx(1.0)
    assert by_name["circle"] == by_name["square"] == pytest.approx(by_name["cross"] / 2)


def test_defaults_are_those_of_the_published_trainer() -> None:
    facts = {
        "imgsz": 224, "epochs": 100, "batch": 64, "optimizer": "adamw", "lr0": 0.001, "weight_decay": 0.0001, "warmup_epochs": 1.0,
        "no_aug_epochs": 0, "min_lr_ratio": 0.01, "eval_interval": 1, "workers": 8, "scale": [0.5, 1.0], "flip_prob": 0.5, "flipud": 0.0,
        "auto_augment": None, "erasing": 0.0, "mixup": 0.0, "cutmix": 0.0, "crop_pct": None, "cls_pw": 0.0, "class_balanced": False,
        "sync_bn": False, "scheduler": "yoloxwarmcos", "ema_decay": 0.9998, "warmup_lr_start": 0.0, "label_smoothing": 0.0,
    }  # fmt: skip
    made = FAMILY.recipe(family="resnet", size="18")
    assert {name: getattr(made, name) for name in facts} == facts


def test_no_key_of_boxes_is_among_a_classifier_s() -> None:
    boxes = {"single_cls", "classes", "mosaic_prob", "mixup_prob", "hsv_prob", "degrees", "max_labels", "max_det", "eval_max_det"}
    assert not boxes & set(recipe_fields(ClassifyRecipe))
