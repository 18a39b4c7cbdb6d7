"""Many paths in two arrays. n paths.

A list of a million Python strings costs a forked worker a private copy of every page as soon as it counts references; arrays are shared.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray


class PathTable:
    """An immutable sequence of paths; file names that are no UTF-8 survive."""

    def __init__(self, paths: Sequence[str]) -> None:
        encoded = [os.fsencode(path) for path in paths]
        self._bytes: NDArray[np.uint8] = np.frombuffer(b"".join(encoded), np.uint8)
        self._ends: NDArray[np.int64] = np.cumsum([0, *(len(path) for path in encoded)], dtype=np.int64)

    def __len__(self) -> int:
        return len(self._ends) - 1

    def content(self) -> bytes:
        """Return bytes that are equal for tables of the same paths, and for no others."""
        return self._ends.tobytes() + self._bytes.tobytes()

    def __getitem__(self, index: int) -> Path:
        return Path(os.fsdecode(self._bytes[self._ends[index] : self._ends[index + 1]].tobytes()))
