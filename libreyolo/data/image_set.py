"""The pictures of a split and their boxes. n pictures, M boxes in all, k boxes of one picture."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from libreyolo.data.path_table import PathTable
from libreyolo.data.picture_set import PictureSet


class ImageSet(PictureSet):
    """A sequence of pictures with boxes; nothing is decoded before it is asked for. Picklable.

    boxes: float32 [M, 4] xyxy normalised to [0, 1]. labels: int64 [M] in 0..nc-1.
    offsets: int64 [n + 1]; picture i owns rows offsets[i]:offsets[i + 1].
    """

    def __init__(
        self,
        paths: PathTable,
        *,
        sizes: NDArray[np.int32],
        box_rows: NDArray[np.float32],
        label_rows: NDArray[np.int64],
        offsets: NDArray[np.int64],
        stamps: NDArray[np.int64],
        nc: int,
    ) -> None:
        super().__init__(paths, sizes=sizes, stamps=stamps)
        self.box_rows = box_rows
        self.label_rows = label_rows
        self.offsets = offsets
        self.nc = nc

    def boxes(self, index: int) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
        """Return float32 [k, 4] xyxy normalised to [0, 1] and int64 [k] class ids; k is 0 for background. Copies."""
        rows = slice(self.offsets[self._checked(index)], self.offsets[index + 1])
        return self.box_rows[rows].copy(), self.label_rows[rows].copy()

    def truth(self, index: int) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
        """Return float32 [k, 4] xyxy in pixels of the original picture and int64 [k] class ids."""
        boxes, labels = self.boxes(index)
        h, w = self.size(index)
        return boxes * np.array([w, h, w, h], np.float32), labels

    def labels_histogram(self) -> NDArray[np.int64]:
        """Return int64 [nc], the number of boxes of each class."""
        return np.bincount(self.label_rows, minlength=self.nc).astype(np.int64)

    def only_classes(self, classes: Sequence[int]) -> ImageSet:
        """Return the same pictures with the boxes of these class ids, not renumbered; a picture that loses all becomes background."""
        keep = np.isin(self.label_rows, np.asarray(classes, np.int64))
        kept_before = np.concatenate([[0], np.cumsum(keep)]).astype(np.int64)
        return self._with_rows(self.box_rows[keep], self.label_rows[keep], kept_before[self.offsets], self.nc)

    def as_single_class(self) -> ImageSet:
        """Return the same pictures and boxes with every class id 0."""
        return self._with_rows(self.box_rows, np.zeros_like(self.label_rows), self.offsets, nc=1)

    def _with_rows(self, box_rows: NDArray[np.float32], label_rows: NDArray[np.int64], offsets: NDArray[np.int64], nc: int) -> ImageSet:
        return ImageSet(self.paths, sizes=self.sizes, box_rows=box_rows, label_rows=label_rows, offsets=offsets, stamps=self.stamps, nc=nc)
