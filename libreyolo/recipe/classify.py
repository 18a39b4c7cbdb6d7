"""Arguments that only classifiers have."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from libreyolo.errors import UserError
from libreyolo.recipe import checks
from libreyolo.recipe.base import key
from libreyolo.recipe.classes import ClassesRecipe

POLICIES = ("randaugment", "autoaugment", "augmix")


@dataclass
class ClassifyRecipe(ClassesRecipe):
    """Classification: crops, policies and mixing of pictures. The numbers are those that LibreYOLO's classifiers share."""

    BUILT_IN: ClassVar[str] = "shapes-classify"

    data: str | None = key(None, "folder with train/CLASS and val/CLASS, a data.yaml that names such folders, or a built-in name (shapes-classify)")
    imgsz: Any = key(224, "network input in pixels: a side, or [height, width]")
    workers: int = key(8, "loader processes for each rank")
    epochs: int = key(100, "epochs of the whole schedule")
    batch: int = key(64, "global batch: pictures per optimiser step over all GPUs")
    optimizer: str = key("adamw", "sgd, adam or adamw")
    lr0: float = key(0.001, "peak learning rate, used as given whatever the batch")
    weight_decay: float = key(0.0001, "weight decay of weights; norms and biases have none")
    warmup_epochs: float = key(1.0, "epochs of warm-up")
    no_aug_epochs: int = key(0, "last epochs without auto_augment, erasing, mixup and cutmix; also the tail of the schedules that have one")
    min_lr_ratio: float = key(0.01, "last learning rate over lr0")
    eval_interval: int = key(1, "validate every this many epochs, and after the last")

    scale: list[float] = key([0.5, 1.0], "range of the part of a picture's area that a training crop shows")
    flip_prob: float = key(0.5, "probability of a horizontal flip")
    flipud: float = key(0.0, "probability of a vertical flip")
    auto_augment: str | None = key(None, "policy of random colour and shape changes: randaugment, autoaugment, augmix or null")
    erasing: float = key(0.0, "probability of erasing a random rectangle")
    mixup: float = key(0.0, "probability of blending a picture, and its label, with another one")
    cutmix: float = key(0.0, "probability of pasting a rectangle of another picture, and its share of the label")
    label_smoothing: float = key(0.0, "part of the label that is spread evenly over all classes")
    crop_pct: float | None = key(None, "part of the resized picture's side that evaluation shows; null: the family's own")
    class_balanced: bool = key(False, "repeat pictures of rare classes (repeat-factor sampling)")
    cls_pw: float = key(0.0, "weight of a class in the loss: inverse frequency to this power, mean 1")

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("flip_prob", "flipud", "erasing", "mixup", "cutmix", "cls_pw"):
            checks.in_range(name, getattr(self, name), 0.0, 1.0)
        if self.mixup + self.cutmix > 1.0 + 1e-9:
            raise UserError(f"mixup={self.mixup} and cutmix={self.cutmix} exclude each other on a picture: their sum must be at most 1.")
        if not 0.0 <= self.label_smoothing < 1.0:
            raise UserError(f"label_smoothing={self.label_smoothing} must be at least 0 and below 1: at 1 nothing of the label is left.")
        self.scale = checks.pair("scale", self.scale)
        if not 0.0 < self.scale[0] <= self.scale[1] <= 1.0:
            raise UserError(f"scale={self.scale} must lie between 0 and 1, 0 excluded: it is the part of the picture's area that is shown.")
        if self.crop_pct is not None and not 0.0 < self.crop_pct <= 1.0:
            raise UserError(f"crop_pct={self.crop_pct} must be above 0 and at most 1: the part of the resized picture that is shown.")
        checks.one_of("auto_augment", self.auto_augment, (None, *POLICIES))

    def loss_options(self) -> dict[str, Any]:
        return {"label_smoothing": self.label_smoothing}

    def input_changes(self) -> dict[str, Any]:
        return {} if self.crop_pct is None else {"crop_pct": self.crop_pct}
