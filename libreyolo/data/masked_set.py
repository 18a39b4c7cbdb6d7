"""The pictures of a split with a class for every pixel. n pictures."""

from __future__ import annotations

from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from libreyolo.data.masks import MaskError, MaskRules, classes_of, count_values, read_raw, wrong_values
from libreyolo.data.path_table import PathTable
from libreyolo.data.picture_set import PictureSet
from libreyolo.data.polygons import paint, read_outlines
from libreyolo.errors import UserError


class Masks(Protocol):
    """Where the masks of a set come from. Picklable."""

    def read(self, index: int, hw: tuple[int, int]) -> NDArray[np.uint8]:
        """Return the mask of a picture of size hw, uint8 [h, w]; 255 is ignored."""


class MaskFiles:
    """Masks in files of their own, one for each picture."""

    def __init__(self, paths: PathTable, rules: MaskRules) -> None:
        self.paths, self.rules = paths, rules

    def read(self, index: int, hw: tuple[int, int]) -> NDArray[np.uint8]:
        path = self.paths[index]
        try:
            raw = read_raw(path)
            values, _ = count_values(raw)
        except MaskError as error:
            raise UserError(f"{path} was fine at the scan, now {error}; restore it and start again.") from error
        if raw.shape != hw or len(wrong_values(values, self.rules)):
            raise UserError(f"{path} has changed since the scan; start again.")
        return classes_of(raw, values, self.rules)


class PolygonFiles:
    """Masks painted from label files; a picture without one is background."""

    def __init__(self, paths: PathTable, background: int, keypoint_numbers: int = 0) -> None:
        self.paths, self.background, self.keypoint_numbers = paths, background, keypoint_numbers

    def read(self, index: int, hw: tuple[int, int]) -> NDArray[np.uint8]:
        path = self.paths[index]
        outlines = read_outlines(path, self.background, self.keypoint_numbers)
        if outlines.errors:
            raise UserError(f"{path} has changed since the scan; start again.")
        return paint(outlines, hw, self.background)


class MaskedSet(PictureSet):
    """A sequence of pictures with masks; nothing is decoded before it is asked for. Picklable.

    class_pixels: int64 [K + 1], pixels of each class over the set, then the ignored ones. class_pictures: int64 [K + 1], pictures that have any.
    """

    def __init__(
        self,
        paths: PathTable,
        *,
        sizes: NDArray[np.int32],
        stamps: NDArray[np.int64],
        masks: Masks,
        class_pixels: NDArray[np.int64],
        class_pictures: NDArray[np.int64],
    ) -> None:
        super().__init__(paths, sizes=sizes, stamps=stamps)
        self.masks, self.class_pixels, self.class_pictures = masks, class_pixels, class_pictures

    def mask(self, index: int) -> NDArray[np.uint8]:
        """Return uint8 [h, w] class ids of the picture at its original size; 255 is ignored. Raises UserError naming a file that has changed."""
        return self.masks.read(index, self.size(index))
