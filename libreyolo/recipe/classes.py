"""Arguments of the tasks whose data has classes."""

from __future__ import annotations

from dataclasses import dataclass

from libreyolo.recipe import checks
from libreyolo.recipe.base import Recipe, key


@dataclass
class ClassesRecipe(Recipe):
    """What every task with classes has; restoration has none."""

    num_classes: int | None = key(None, "class count; taken from the data when null, an error when it contradicts the data")

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.num_classes is not None:
            checks.at_least("num_classes", self.num_classes, 1)
