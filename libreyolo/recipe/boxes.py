"""Arguments of the tasks that learn from boxes: which boxes count, and how a picture is changed together with them."""

from __future__ import annotations

from dataclasses import dataclass

from libreyolo.errors import UserError
from libreyolo.recipe import checks
from libreyolo.recipe.base import key
from libreyolo.recipe.classes import ClassesRecipe

MOST_BOXES = 1_000_000  # of a picture


@dataclass
class BoxesRecipe(ClassesRecipe):
    """Class selection and box augmentation."""

    single_cls: bool = key(False, "merge all labels into class 0")
    class_balanced: bool = key(False, "repeat pictures of rare classes (repeat-factor sampling)")
    classes: list[int] | None = key(None, "keep only these class ids, without renumbering; null: all")
    mosaic_prob: float = key(1.0, "probability of a four-picture mosaic")
    mixup_prob: float = key(1.0, "probability of mixing a second picture into a mosaic")
    hsv_prob: float = key(1.0, "probability of colour jitter")
    hsv_gain: list[float] = key([0.015, 0.7, 0.4], "largest relative change of hue, saturation and value")
    flip_prob: float = key(0.5, "probability of a horizontal flip")
    flipud: float = key(0.0, "probability of a vertical flip")
    degrees: float = key(10.0, "rotation of a mosaic, up to this many degrees either way")
    translate: float = key(0.1, "shift of a mosaic, up to this fraction of a side")
    mosaic_scale: list[float] = key([0.1, 2.0], "range of the scale of a mosaic")
    mixup_scale: list[float] = key([0.5, 1.5], "range of the scale of mixup's partner")
    shear: float = key(2.0, "shear of a mosaic, up to this many degrees either way")
    perspective: float = key(0.0, "projective strength of a mosaic, 0 to 0.001")
    max_labels: int = key(300, "most boxes kept for one training picture")
    max_det: int = key(300, "most predictions kept for one picture")

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("mosaic_prob", "mixup_prob", "hsv_prob", "flip_prob", "flipud"):
            checks.in_range(name, getattr(self, name), 0.0, 1.0)
        checks.in_range("degrees", self.degrees, 0.0, 180.0)
        checks.in_range("translate", self.translate, 0.0, 1.0)
        checks.in_range("shear", self.shear, 0.0, 89.0)
        checks.in_range("perspective", self.perspective, 0.0, 0.001)
        for name in ("max_labels", "max_det"):
            checks.in_range(name, getattr(self, name), 1, MOST_BOXES)
        self.mosaic_scale = checks.pair("mosaic_scale", self.mosaic_scale)
        self.mixup_scale = checks.pair("mixup_scale", self.mixup_scale)
        if self.mosaic_scale[0] <= 0 or self.mixup_scale[0] <= 0:
            raise UserError(f"mosaic_scale={self.mosaic_scale} and mixup_scale={self.mixup_scale} must be greater than 0.")
        checks.hsv_gain(self.hsv_gain)
        if self.classes is not None and (not self.classes or min(self.classes) < 0):
            raise UserError(f"classes={list(self.classes)} must name at least one class id, none below 0; null keeps all.")
