"""Arguments that only semantic segmentation has."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from libreyolo.errors import UserError
from libreyolo.recipe import checks
from libreyolo.recipe.base import key
from libreyolo.recipe.classes import ClassesRecipe


@dataclass
class SemanticRecipe(ClassesRecipe):
    """Semantic segmentation: where it is judged, and the augmentation of a picture with its mask."""

    BUILT_IN: ClassVar[str] = "shapes-semantic"

    eval_imgsz: Any = key(None, "input of validation and prediction in pixels: a side, or [height, width]; null: as imgsz")
    rescale: list[float] = key([0.5, 2.0], "range of the zoom of a picture before its crop, relative to how it is judged")
    cat_max_ratio: float = key(0.75, "largest share of one class in a crop; another crop is drawn, at most ten; 1: any crop")
    flip_prob: float = key(0.5, "probability of a horizontal flip")
    flipud: float = key(0.0, "probability of a vertical flip")
    hsv_prob: float = key(1.0, "probability of colour jitter")
    # The published jitter adds up to 5 of 180 to the hue, and up to 30 of 255 to saturation and value.
    hsv_gain: list[float] = key([0.028, 0.118, 0.118], "largest relative change of hue, saturation and value")

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.eval_imgsz is not None:
            self.eval_imgsz = checks.image_size(self.eval_imgsz, "eval_imgsz")
        for name in ("cat_max_ratio", "flip_prob", "flipud", "hsv_prob"):
            checks.in_range(name, getattr(self, name), 0.0, 1.0)
        self.rescale = checks.pair("rescale", self.rescale)
        if self.rescale[0] <= 0:
            raise UserError(f"rescale={self.rescale} must be greater than 0.")
        checks.hsv_gain(self.hsv_gain)

    @property
    def judged_imgsz(self) -> int | list[int]:
        found: int | list[int] = self.imgsz if self.eval_imgsz is None else self.eval_imgsz
        return found
