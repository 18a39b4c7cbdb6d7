"""The pairs of a split. n pairs."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from libreyolo.data.decode import Box
from libreyolo.data.picture_cache import RamPictures
from libreyolo.data.picture_set import PictureSet


class PairSet:
    """Two sequences of pictures, of the same sizes one by one; nothing is decoded before it is asked for. Picklable."""

    def __init__(self, inputs: PictureSet, targets: PictureSet) -> None:
        self.inputs, self.targets = inputs, targets

    def __len__(self) -> int:
        return len(self.inputs)

    def path(self, index: int) -> Path:
        """Return the absolute file of an input."""
        return self.inputs.path(index)

    def size(self, index: int) -> tuple[int, int]:
        """Return (h, w) of both pictures of a pair."""
        return self.inputs.size(index)

    def pair(self, index: int) -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
        """Return input and target, each uint8 RGB [h, w, 3], upright. Raises UserError naming a file that has changed since the scan."""
        return self.inputs.image(index), self.targets.image(index)

    def parts(self, index: int, box: Box) -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
        """Return the same part of input and target, as `pair` gives them."""
        return self.inputs.part(index, box), self.targets.part(index, box)

    def close(self) -> None:
        """Give shared memory back."""
        for pictures in (self.inputs, self.targets):
            if isinstance(pictures.cache, RamPictures):
                pictures.cache.close()
