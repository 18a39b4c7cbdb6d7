"""The arguments of `train()`, typed, with their checks: one dataclass for every task and family."""

from libreyolo.recipe.base import Recipe, check_keys, recipe_fields
from libreyolo.recipe.boxes import BoxesRecipe
from libreyolo.recipe.classes import ClassesRecipe
from libreyolo.recipe.classify import ClassifyRecipe
from libreyolo.recipe.detection import DetectionRecipe
from libreyolo.recipe.point import PointRecipe
from libreyolo.recipe.restore import RestoreRecipe
from libreyolo.recipe.semantic import SemanticRecipe

__all__ = [
    "BoxesRecipe",
    "ClassesRecipe",
    "ClassifyRecipe",
    "DetectionRecipe",
    "PointRecipe",
    "Recipe",
    "RestoreRecipe",
    "SemanticRecipe",
    "check_keys",
    "recipe_fields",
]
