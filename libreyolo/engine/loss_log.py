"""Means of the losses of an epoch, kept on the device and read only when somebody asks."""

from __future__ import annotations

import torch
from torch import Tensor

from libreyolo.engine import collectives


class LossLog:
    """Adds up each term's value, weighted by the pictures of its window.

    A term's value on one rank is that rank's part of the global one, so the sum over ranks is what one process would have seen.
    """

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.names: list[str] = []
        self.pictures, self.windows = 0, 0
        self._sums: Tensor | None = None

    def add(self, parts: dict[str, Tensor], pictures: int) -> None:
        """Take one window's values; no host synchronisation."""
        self.names = list(parts)
        values = torch.stack([v.float() for v in parts.values()]) * pictures
        self._sums = values if self._sums is None else self._sums + values
        self.pictures += pictures
        self.windows += 1

    def means(self) -> dict[str, float]:
        """Return the mean of every term over all pictures and ranks so far. A collective: every rank must call it."""
        if self._sums is None:
            return {}
        sums = collectives.sum_(self._sums.clone()).tolist()
        return {name: value / max(self.pictures, 1) for name, value in zip(self.names, sums, strict=True)}
