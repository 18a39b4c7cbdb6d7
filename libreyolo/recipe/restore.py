"""Arguments that only the restoration of pictures has."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from libreyolo.errors import UserError
from libreyolo.recipe import checks
from libreyolo.recipe.base import Recipe, key


@dataclass
class RestoreRecipe(Recipe):
    """Restoration: crops of pairs, turned and mirrored together. There are no classes."""

    BUILT_IN: ClassVar[str] = "shapes-restore"

    imgsz: Any = key(256, "side of the training crops in pixels, or [height, width]; validation and prediction keep a picture's own size")
    flip_prob: float = key(0.5, "probability of a horizontal flip")
    flipud: float = key(0.5, "probability of a vertical flip")
    rot90: float = key(0.5, "probability of a quarter turn")
    degradation: str | None = key(None, "what the weights file says the network takes out: denoise, deblur, ...")
    degradation_set: str | None = key(None, "name of the data set that the weights file says it learnt from")

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("flip_prob", "flipud", "rot90"):
            checks.in_range(name, getattr(self, name), 0.0, 1.0)
        height, width = checks.image_hw(self.imgsz)
        if self.rot90 > 0 and height != width:
            raise UserError(f"rot90={self.rot90} turns crops by a quarter, so imgsz={self.imgsz} must be square: use imgsz={height}, or rot90=0.")

    def file_extras(self) -> dict[str, Any]:
        return {"degradation": self.degradation, "dataset": self.degradation_set}
