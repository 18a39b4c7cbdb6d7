"""Arguments that only detectors have."""

from __future__ import annotations

from dataclasses import dataclass

from libreyolo.recipe import checks
from libreyolo.recipe.base import key
from libreyolo.recipe.boxes import MOST_BOXES, BoxesRecipe


@dataclass
class DetectionRecipe(BoxesRecipe):
    """Detection: the weight of classes, the evaluator's limit."""

    cls_pw: float = key(0.0, "weight of a class in the class loss: inverse frequency to this power, mean 1")
    eval_max_det: int | None = key(None, "most predictions the evaluator looks at; null: max_det")

    def __post_init__(self) -> None:
        super().__post_init__()
        checks.in_range("cls_pw", self.cls_pw, 0.0, 1.0)
        if self.eval_max_det is not None:
            checks.in_range("eval_max_det", self.eval_max_det, 1, MOST_BOXES)
