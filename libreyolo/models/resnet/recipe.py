"""ResNet's training recipe (numbers as LibreYOLO's published trainer): that of all its classifiers."""

from __future__ import annotations

from dataclasses import dataclass

from libreyolo.recipe import ClassifyRecipe


@dataclass
class ResNetRecipe(ClassifyRecipe):
    """AdamW with a warmed cosine; crops and flips, everything stronger off."""
