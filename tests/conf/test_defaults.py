"""Names and defaults against LibreYOLO 1.6.0's: its base arguments and its yolo9 recipe, written down as facts.

Where ours differ, the difference and its reason stand here too.
"""

from __future__ import annotations

import pytest

from libreyolo.models.yolo9.recipe import YOLO9Recipe
from libreyolo.recipe import DetectionRecipe, Recipe, recipe_fields

# Its base configuration, every argument that exists here.
BASE = {
    "data": None, "data_dir": None, "imgsz": 640, "epochs": 300, "batch": 16, "device": "auto", "sync_bn": False, "optimizer": "sgd",
    "lr0": 0.01, "momentum": 0.937, "weight_decay": 0.0005, "nesterov": True, "scheduler": "yoloxwarmcos", "warmup_epochs": 5.0,
    "warmup_lr_start": 0.0, "no_aug_epochs": 15, "min_lr_ratio": 0.05, "ema": True, "ema_decay": 0.9998, "amp": True, "freeze": None,
    "nbs": None, "name": "exp", "exist_ok": False, "save_period": 10, "eval_interval": 10, "plot_samples": 8,
    "val_loss": False, "workers": 4, "min_samples": 0, "average_best": 0, "precise_bn": 0,
    "patience": 50, "resume": False, "log_interval": 10, "seed": 0, "pretrained": False,
}  # fmt: skip
DETECTION = {
    "single_cls": False, "classes": None, "mosaic_prob": 1.0, "mixup_prob": 1.0, "hsv_prob": 1.0, "flip_prob": 0.5, "degrees": 10.0,
    "translate": 0.1, "mosaic_scale": [0.1, 2.0], "mixup_scale": [0.5, 1.5], "shear": 2.0, "perspective": 0.0, "flipud": 0.0,
    "max_det": 300, "eval_max_det": None, "cls_pw": 0.0, "class_balanced": False, "num_classes": None,
}  # fmt: skip
YOLO9 = {
    "sync_bn": True, "scheduler": "linear", "warmup_epochs": 3.0, "warmup_lr_start": 0.0001, "min_lr_ratio": 0.01, "mixup_prob": 0.0,
    "degrees": 0.0, "mosaic_scale": [0.5, 1.5], "shear": 0.0, "ema_decay": 0.9999, "workers": 8, "max_labels": 300, "aux_weight": 0.25,
    "warmup_momentum": 0.8, "letterbox_pad": None,
}  # fmt: skip
# Ours on purpose, beside the class count, which comes from the data (there 80 stands for "not told"): amp_dtype picks bfloat16 where there is
# one; plots are part of a run; run directories live below outputs/, where Hydra's are; pictures are kept decoded where they take little of the memory
# (docs/adr/0012-pictures-kept-by-default.md).
OURS = {"amp_dtype": "auto", "save_plots": True, "project": "outputs", "cache": "auto"}
# What has no meaning here: low-rank adapters, distillation, export, downloads that run code, a Python fall-back of the evaluator
# (and, for now, whatever belongs to a task that this recipe is not of).
ABSENT = ("lora", "distill_model", "dis", "export_check", "allow_download_scripts", "faster_coco_eval", "class_weights")


@pytest.mark.parametrize(
    ("recipe", "facts"), [(Recipe, BASE), (Recipe, OURS), (DetectionRecipe, DETECTION), (YOLO9Recipe, BASE | DETECTION | YOLO9 | OURS)]
)
def test_defaults_are_the_published_ones(recipe: type[Recipe], facts: dict[str, object]) -> None:
    made = recipe(family="yolo9", size="t")
    assert {name: getattr(made, name) for name in facts} == facts


def test_keys_without_a_meaning_here_do_not_exist() -> None:
    assert not set(ABSENT) & set(recipe_fields(YOLO9Recipe))


def test_there_are_no_aliases() -> None:
    """One name for one thing: `mosaic`, `fliplr` and their like are unknown keys that name the real one."""
    assert not {"mosaic", "fliplr", "mixup", "batch_size", "lr", "num_workers", "use_ema", "output_dir"} & set(recipe_fields(YOLO9Recipe))
