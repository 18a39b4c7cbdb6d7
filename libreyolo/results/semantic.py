"""A class for every pixel of a picture."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from libreyolo.record.plots.masks import labelled_overlay
from libreyolo.results.base import Result


@dataclass(frozen=True)
class SemanticResult(Result):
    """The class map of one picture. mask: uint8 [H, W], class ids at the picture's own size."""

    mask: np.ndarray

    @property
    def shares(self) -> dict[str, float]:
        """Share of the pixels by class name, classes that do not occur left out, the largest first."""
        counts = np.bincount(self.mask.reshape(-1), minlength=len(self.names)) / max(self.mask.size, 1)
        return {self.names[int(k)]: float(counts[k]) for k in np.argsort(-counts, kind="stable") if counts[k]}

    def summary(self) -> str:
        """Return the share of each class that occurs: "84.4 % background, 15.6 % nucleus"."""
        return ", ".join(f"{100 * share:.1f} % {name}" for name, share in self.shares.items())

    def plot(self) -> np.ndarray:
        """Return the picture with its classes painted over, and their names in a line below, uint8 [H + line, W, 3] RGB."""
        return labelled_overlay(self.picture, self.mask, self.names)
