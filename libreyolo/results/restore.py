"""A restored picture."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from libreyolo.results.base import Result

GAP = 4  # white pixels between before and after


@dataclass(frozen=True)
class RestoreResult(Result):
    """A picture and what it was restored to. restored: uint8 [H, W, 3] RGB, of the picture's size. There are no classes: `names` is empty."""

    restored: np.ndarray

    def summary(self) -> str:
        """Return the size and how much was changed: "640x480, changed by 4.2 of 255 on average"."""
        height, width = self.restored.shape[:2]
        change = np.abs(self.restored.astype(np.int16) - self.picture.astype(np.int16)).mean()
        return f"{width}x{height}, changed by {change:.1f} of 255 on average"

    def plot(self) -> np.ndarray:
        """Return before and after side by side, uint8 [H, 2 W + 4, 3] RGB."""
        line = np.full((self.picture.shape[0], GAP, 3), 255, np.uint8)
        return np.concatenate([self.picture, line, self.restored], axis=1)

    def product(self) -> np.ndarray:
        """Return the restored picture by itself: what is saved is what was asked for."""
        return self.restored
