"""Its arguments: those of detection, one number of its own, and one that differs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from libreyolo.recipe import DetectionRecipe
from libreyolo.recipe.base import key


@dataclass
class StandInRecipe(DetectionRecipe):
    """Small steps of AdamW."""

    optimizer: str = key("adamw", "sgd, adam or adamw")
    side_gain: float = key(0.5, "weight of the sides' term")

    def loss_options(self) -> dict[str, Any]:
        return {"side_gain": self.side_gain}
