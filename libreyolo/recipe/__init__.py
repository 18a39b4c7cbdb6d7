"""The arguments of `train()`, typed, with their checks: one dataclass for every task and family."""

from libreyolo.recipe.base import Recipe, check_keys, recipe_fields
from libreyolo.recipe.boxes import BoxesRecipe
from libreyolo.recipe.classes import ClassesRecipe
from libreyolo.recipe.detection import DetectionRecipe
from libreyolo.recipe.point import PointRecipe

__all__ = ["BoxesRecipe", "ClassesRecipe", "DetectionRecipe", "PointRecipe", "Recipe", "check_keys", "recipe_fields"]
