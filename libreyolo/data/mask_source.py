"""Where the masks of a set come from: files of their own, or label files that are painted.

Masks are taken where the data.yaml says `masks_dir`, and where any picture has one in the folder `masks`. Else the label files are painted, and a
class `background` comes after those of the data.yaml.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

from libreyolo.data.counterparts import label_paths
from libreyolo.data.dataset_yaml import DatasetYaml
from libreyolo.data.mask_scan import Look, look_at_mask, look_at_polygons
from libreyolo.data.masked_set import MaskFiles, Masks, PolygonFiles
from libreyolo.data.masks import MAX_CLASSES, MaskRules, find_masks, read_rules
from libreyolo.data.path_table import PathTable
from libreyolo.errors import UserError

BACKGROUND = "background"
_KEYS = ("masks_dir", "label_mapping", "ignore_index")


class MaskSource(Protocol):
    """names: of all classes, by id. facts: all that a mask's content depends on beside its file, as JSON knows it."""

    names: dict[int, str]
    facts: list[Any]

    def targets(self, pictures: Sequence[str]) -> tuple[list[str], list[str]]:
        """Return the file behind each picture's mask ("" where it lacks), and of pictures without one where it was looked for."""

    def look(self, target: str, hw: tuple[int, int]) -> Look:
        """Return what the mask of a picture of size hw is like."""

    def masks(self, targets: Sequence[str]) -> Masks:
        """Return what reads these masks in a training."""


class FromFiles:
    """A mask file for each picture."""

    def __init__(self, description: DatasetYaml, rules: MaskRules) -> None:
        self.rules = rules
        self.names = dict(description.names)
        self.facts: list[Any] = [list(self.names.items()), *(description.content.get(key) for key in _KEYS)]

    def targets(self, pictures: Sequence[str]) -> tuple[list[str], list[str]]:
        found, folders = find_masks(pictures, self.rules)
        lacking = [folders.lacking(picture) for picture, mask in zip(pictures, found, strict=True) if mask is None]
        return [mask or "" for mask in found], lacking

    def look(self, target: str, hw: tuple[int, int]) -> Look:
        return look_at_mask(target, hw, self.rules)

    def masks(self, targets: Sequence[str]) -> Masks:
        return MaskFiles(PathTable(targets), self.rules)


class FromPolygons:
    """Label files that are painted; a picture without one is background."""

    def __init__(self, description: DatasetYaml) -> None:
        self.background = len(description.names)
        if self.background >= MAX_CLASSES:
            raise UserError(
                f"{description.path}: {self.background} classes and the background, which polygons leave, are more than a mask can tell apart: at "
                f"most {MAX_CLASSES}, for 255 is ignored."
            )
        self.keypoint_numbers = description.keypoint_numbers
        free = next(name for name in (BACKGROUND, "unlabelled", "neither") if name not in description.names.values())
        self.names = {**description.names, self.background: free}
        self.facts: list[Any] = [list(self.names.items()), "polygons", self.keypoint_numbers]

    def targets(self, pictures: Sequence[str]) -> tuple[list[str], list[str]]:
        return label_paths(pictures), []

    def look(self, target: str, hw: tuple[int, int]) -> Look:
        return look_at_polygons(target, hw, self.background, self.keypoint_numbers)

    def masks(self, targets: Sequence[str]) -> Masks:
        return PolygonFiles(PathTable(targets), self.background, self.keypoint_numbers)


def source_of(description: DatasetYaml, pictures: Sequence[str]) -> MaskSource:
    """Return where the masks of these pictures (of all splits that are looked at) come from. Raises UserError where there is no such place."""
    rules = read_rules(description.path, description.content, description.names)
    if rules.is_named:
        return FromFiles(description, rules)
    found, folders = find_masks(pictures, rules)
    if any(mask is not None for mask in found):
        return FromFiles(description, rules)
    if description.annotations:
        raise UserError(f"{description.path}: annotations: gives boxes, but masks are wanted: put them into a folder and name it by masks_dir.")
    if pictures and not any(Path(label).exists() for label in label_paths(pictures)):
        looked = f"{folders.lacking(pictures[0])}; nor {label_paths(pictures[:1])[0]}"
        raise UserError(
            f"{description.path}: no picture has a mask or a label file ({looked}): put masks of class ids there, or name their folder by masks_dir."
        )
    return FromPolygons(description)
