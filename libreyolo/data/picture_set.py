"""The pictures of a split, whatever is known of them. n pictures.

Everything is held in arrays, so that forked workers share the pages for good and spawned ones get them in one piece (a large Python list
is copied page by page into every worker as its reference counts are touched).
"""

from __future__ import annotations

from functools import partial
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from libreyolo.data.decode import Box, PictureError, decode_part, decode_picture, fit_size
from libreyolo.data.path_table import PathTable
from libreyolo.data.picture_cache import PictureCache
from libreyolo.errors import UserError


class PictureSet:
    """A sequence of pictures; nothing is decoded before it is asked for. Picklable.

    sizes: int32 [n, 2] (h, w) after EXIF rotation. stamps: int64 [n, 2], file size and mtime in ns at the scan.
    """

    def __init__(self, paths: PathTable, *, sizes: NDArray[np.int32], stamps: NDArray[np.int64]) -> None:
        self.paths = paths
        self.sizes = sizes
        self.stamps = stamps
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

    def image(self, index: int, max_hw: tuple[int, int] | None = None) -> NDArray[np.uint8]:
        """Return uint8 RGB [h, w, 3], upright and writable; shrunk, aspect kept, to fit `max_hw` where it is larger (see decode.py).

        Raises UserError naming the file when it can't be decoded any more or has changed since the scan.
        """
        target = fit_size(self.size(index), max_hw)
        decode = partial(self._decode, index, target)
        return decode() if self.cache is None else self.cache.get(index, target, decode)

    def part(self, index: int, box: Box) -> NDArray[np.uint8]:
        """Return a part of `image(index)`, uint8 RGB [bottom - top, right - left, 3], of its own memory. Raises UserError as `image` does."""
        if self.cache is not None:
            size = self.size(index)
            return self.cache.get(index, size, partial(self._decode, index, size), box)
        try:
            picture = decode_part(self.path(index), self.size(index), box)
        except PictureError as error:
            raise self._broken(index, error) from error
        if picture is None:
            raise self._changed(index)
        return picture

    def _decode(self, index: int, target_hw: tuple[int, int]) -> NDArray[np.uint8]:
        size = self.size(index)
        try:
            picture = decode_picture(self.path(index), None if target_hw == size else target_hw)
        except PictureError as error:
            raise self._broken(index, error) from error
        if picture.shape[:2] != target_hw:
            raise self._changed(index)
        return picture

    def _broken(self, index: int, error: PictureError) -> UserError:
        return UserError(f"{self.path(index)} was fine at the scan, now {error}; restore or remove it and start again.")

    def _changed(self, index: int) -> UserError:
        h, w = self.size(index)
        return UserError(f"{self.path(index)} was {w}x{h} at the scan and has changed since; start again.")

    def _checked(self, index: int) -> int:
        if not 0 <= index < len(self):  # a negative index would read another picture's rows
            raise IndexError(f"picture {index} of {len(self)}")
        return index
