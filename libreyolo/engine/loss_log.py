"""Means of the losses of an epoch, kept on the device and read without making the device wait."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from libreyolo.engine import collectives


@dataclass(frozen=True)
class Reading:
    """Means on their way to the host."""

    names: list[str]
    values: Tensor  # on the host once `copied` has happened
    copied: torch.cuda.Event | None

    def ready(self) -> bool:
        """Return whether the values can be read without waiting."""
        return self.copied is None or self.copied.query()

    def wait(self) -> dict[str, float]:
        """Return the mean of every term, waiting for the device if it must."""
        if self.copied is not None:
            self.copied.synchronize()
        return dict(zip(self.names, self.values.tolist(), strict=True))


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

    def read(self) -> Reading:
        """Start reading the means over all pictures and ranks so far. A collective: every rank must call it."""
        if self._sums is None:
            return Reading([], torch.zeros(0), None)
        means = collectives.sum_(self._sums.clone()) / max(self.pictures, 1)
        if means.device.type != "cuda":
            return Reading(self.names, means, None)
        host = torch.empty(means.shape, dtype=means.dtype, pin_memory=True)
        host.copy_(means, non_blocking=True)
        copied = torch.cuda.Event()
        copied.record()
        return Reading(self.names, host, copied)
