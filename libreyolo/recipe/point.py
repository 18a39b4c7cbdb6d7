"""Arguments that only the point task has."""

from __future__ import annotations

from dataclasses import dataclass

from libreyolo.errors import UserError
from libreyolo.recipe import checks
from libreyolo.recipe.base import key
from libreyolo.recipe.boxes import BoxesRecipe


@dataclass
class PointRecipe(BoxesRecipe):
    """Points on a grid: what a validation tries and allows. Distances are in cells of the grid."""

    conf_thresholds: list[float] = key([0.25, 0.35, 0.5, 0.65, 0.8, 0.9], "confidences that a validation tries; it reports the one with the best F1")
    nms_radii: list[int] = key([1, 2], "radii in cells within which only the best point stays; a validation tries each")
    distance_tolerance: float = key(1.5, "largest distance in cells of a point from the object that it is counted for")

    def __post_init__(self) -> None:
        super().__post_init__()
        checks.at_least("distance_tolerance", self.distance_tolerance, 0.0)
        if not self.conf_thresholds or not all(0 <= c < 1 for c in self.conf_thresholds):
            raise UserError(
                f"conf_thresholds={list(self.conf_thresholds)} must be one or more confidences, each at least 0 and below 1, like [0.25, 0.5]."
            )
        if not self.nms_radii or min(self.nms_radii) < 0:
            raise UserError(f"nms_radii={list(self.nms_radii)} must be one or more whole numbers of cells, none below 0, like [1, 2].")
