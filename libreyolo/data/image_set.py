"""The pictures of a split and their boxes. n pictures, M boxes in all, k boxes of one picture.

Everything is held in arrays, so that forked workers share the pages for good and spawned ones get them in one piece (a large Python list
is copied page by page into every worker as its reference counts are touched).
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from libreyolo.data.decode import PictureError, decode_picture, fit_size
from libreyolo.data.path_table import PathTable
from libreyolo.data.picture_cache import PictureCache
from libreyolo.errors import UserError


class ImageSet:
    """A sequence of pictures with boxes; nothing is decoded before it is asked for. Picklable.

    sizes: int32 [n, 2] (h, w) after EXIF rotation. boxes: float32 [M, 4] xyxy normalised to [0, 1]. labels: int64 [M] in 0..nc-1.
    offsets: int64 [n + 1]; picture i owns rows offsets[i]:offsets[i + 1]. stamps: int64 [n, 2], file size and mtime in ns at the scan.
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
        self.paths = paths
        self.sizes = sizes
        self.box_rows = box_rows
        self.label_rows = label_rows
        self.offsets = offsets
        self.stamps = stamps
        self.nc = nc
        self.cache: PictureCache | None = None

    def __len__(self) -> int:
        return len(self.paths)

    def path(self, index: int) -> Path:
        """Return the absolute file of a picture, as the user's links name it."""
        return self.paths[self._checked(index)]

    def size(self, index: int) -> tuple[int, int]:
        """Return (h, w) of the picture as `image(index)` gives it."""
        h, w = self.sizes[self._checked(index)].tolist()
        return h, w

    def boxes(self, index: int) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
        """Return float32 [k, 4] xyxy normalised to [0, 1] and int64 [k] class ids; k is 0 for background. Copies."""
        rows = slice(self.offsets[self._checked(index)], self.offsets[index + 1])
        return self.box_rows[rows].copy(), self.label_rows[rows].copy()

    def truth(self, index: int) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
        """Return float32 [k, 4] xyxy in pixels of the original picture and int64 [k] class ids."""
        boxes, labels = self.boxes(index)
        h, w = self.size(index)
        return boxes * np.array([w, h, w, h], np.float32), labels

    def image(self, index: int, max_hw: tuple[int, int] | None = None) -> NDArray[np.uint8]:
        """Return uint8 RGB [h, w, 3], upright and writable; shrunk, aspect kept, to fit `max_hw` where it is larger (see decode.py).

        Raises UserError naming the file when it can't be decoded any more or has changed since the scan.
        """
        target = fit_size(self.size(index), max_hw)
        decode = partial(self._decode, index, target)
        return decode() if self.cache is None else self.cache.get(index, target, decode)

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

    def _decode(self, index: int, target_hw: tuple[int, int]) -> NDArray[np.uint8]:
        size = self.size(index)
        try:
            picture = decode_picture(self.path(index), None if target_hw == size else target_hw)
        except PictureError as error:
            raise UserError(f"{self.path(index)} was fine at the scan, now {error}; restore or remove it and start again.") from error
        if picture.shape[:2] != target_hw:
            raise UserError(f"{self.path(index)} was {size[1]}x{size[0]} at the scan and has changed since; start again.")
        return picture

    def _checked(self, index: int) -> int:
        if not 0 <= index < len(self):  # a negative index would read another picture's rows
            raise IndexError(f"picture {index} of {len(self)}")
        return index
