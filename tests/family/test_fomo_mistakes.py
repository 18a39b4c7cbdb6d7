"""fomo's recipe, and what is said of mistakes in it and in the data before anything is trained."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path

import pytest

from libreyolo import LibreYOLO
from libreyolo.errors import UserError
from libreyolo.models.fomo.recipe import FOMORecipe
from libreyolo.recipe import recipe_fields
from tests.run.conftest import draw_set

OWN = {"imgsz": 64, "batch": 4, "epochs": 1, "workers": 0, "device": "cpu", "save_plots": False, "save_period": 0}


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A set of two classes, and a cache of its own."""
    folder = tmp_path_factory.mktemp("mistakes")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("LIBREYOLO_CACHE", str(folder / "cache"))
        yield draw_set(folder / "set", num_train=2, num_val=1)


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ({"eval_max_det": 10}, "Unknown key 'eval_max_det'"),
        ({"cls_pw": 0.5}, "Unknown key 'cls_pw'"),
        ({"fg_weight": 0.0}, "fg_weight=0 would leave nothing to find"),
        ({"conf_thresholds": []}, "conf_thresholds=[] must be one or more confidences"),
        ({"conf_thresholds": [0.5, 1.0]}, "conf_thresholds=[0.5, 1.0] must be"),
        ({"nms_radii": [-1]}, "nms_radii=[-1] must be one or more whole numbers of cells"),
        ({"nms_radii": [0.5]}, "has the wrong type"),
        ({"distance_tolerance": -1.0}, "distance_tolerance=-1.0 is too small"),
        ({"imgsz": 100}, "every side must be a multiple of its stride 8. Use imgsz=96 or imgsz=104"),
        ({"classes": [7]}, "classes=[7] must hold ids of 0..1"),
        ({"pretrained": True}, "no weights of fomo are published"),
    ],
)
def test_a_mistake_is_one_sentence(arguments: dict[str, object], sentence: str, small: Path, tmp_path: Path) -> None:
    with pytest.raises(UserError) as told:
        LibreYOLO("fomos").train(small, **OWN | {"project": str(tmp_path)} | arguments)
    assert sentence in str(told.value)
    assert "\n" not in str(told.value)


def test_a_class_id_that_the_set_does_not_have_names_file_and_line(small: Path, tmp_path: Path) -> None:
    data = draw_set(tmp_path / "set", num_train=2, num_val=1)
    (tmp_path / "set" / "labels" / "train" / "1.txt").write_text("0 0.5 0.5 0.2 0.2\n2 0.5 0.5 0.2 0.2\n")
    with pytest.raises(UserError, match=r"1\.txt:2.*0\.\.1"):
        LibreYOLO("fomos").train(data, **OWN, project=str(tmp_path))


def test_the_recipe_is_the_published_one() -> None:
    facts = {
        "epochs": 40, "batch": 32, "sync_bn": True, "optimizer": "adam", "lr0": 0.0003, "weight_decay": 0.0, "scheduler": "cos", "warmup_epochs": 0.0,
        "no_aug_epochs": 0, "mosaic_prob": 0.0, "mixup_prob": 0.0, "hsv_prob": 0.0, "flip_prob": 0.0, "degrees": 0.0, "translate": 0.0, "shear": 0.0,
        "ema": False, "amp": False, "eval_interval": 1, "fg_weight": 100.0, "conf_thresholds": [0.25, 0.35, 0.5, 0.65, 0.8, 0.9],
        "nms_radii": [1, 2], "distance_tolerance": 1.5, "min_lr_ratio": 0.05, "max_det": 300,
    }  # fmt: skip
    made = FOMORecipe(family="fomo", size="s")
    assert {name: getattr(made, name) for name in facts} == facts
    assert not {"eval_max_det", "cls_pw", "letterbox_pad", "iou"} & set(recipe_fields(FOMORecipe))


def test_objects_that_share_a_cell_are_told(small: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    data = draw_set(tmp_path / "set", num_train=2, num_val=1)
    (tmp_path / "set" / "labels" / "train" / "0.txt").write_text("0 0.5 0.5 0.2 0.2\n1 0.51 0.51 0.1 0.1\n0 0.9 0.9 0.1 0.1\n")
    with caplog.at_level(logging.WARNING):
        LibreYOLO("fomos").train(data, **OWN, project=str(tmp_path))
    assert "1 of 5 training objects share a cell with another one" in caplog.text
