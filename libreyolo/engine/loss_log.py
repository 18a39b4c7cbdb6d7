"""Means of the losses of an epoch, kept on the device and read without making the device wait."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from libreyolo.engine import collectives
from libreyolo.engine.host_copy import HostCopy


@dataclass(frozen=True)
class Reading:
    """Means on their way to the host."""

    names: list[str]
    values: HostCopy

    def ready(self) -> bool:
        """Return whether the values can be read without waiting."""
        return self.values.ready()

    def wait(self) -> dict[str, float]:
        """Return the mean of every term, waiting for the device if it must."""
        return dict(zip(self.names, self.values.wait(), strict=True))


class LossLog:
    """Adds up each term's value, weighted by the pictures of its window.

    A term's value on one rank is that rank's part of the global one, so the sum over ranks is what one process would have seen.

    earlier: the `state` of a log that an interrupted run left in the middle of an epoch.
    """

    def __init__(self, device: torch.device, earlier: dict[str, Any] | None = None) -> None:
        self.device = device
        self.names: list[str] = []
        self.shown_only: frozenset[str] = frozenset()  # those of the names that are no part of the loss
        self.pictures, self.windows = 0, 0
        self._sums: Tensor | None = None
        if earlier is not None and earlier["names"]:
            self.names, self.pictures, self.windows = list(earlier["names"]), int(earlier["pictures"]), int(earlier["windows"])
            self._sums = earlier["sums"].to(device, copy=True)
            self.shown_only = frozenset(earlier["shown_only"])
        self.pictures_before, self.windows_before = self.pictures, self.windows  # what this process did not train

    def add(self, parts: dict[str, Tensor], pictures: int, shown_only: frozenset[str] = frozenset()) -> None:
        """Take one window's values, of which some may be no part of the loss; no host synchronisation."""
        self.names, self.shown_only = list(parts), shown_only
        values = torch.stack([v.float() for v in parts.values()]) * pictures
        self._sums = values if self._sums is None else self._sums + values
        self.pictures += pictures
        self.windows += 1

    def read(self) -> Reading:
        """Start reading the means over all pictures and ranks so far. A collective: every rank must call it."""
        if self._sums is None:
            return Reading([], HostCopy(torch.zeros(0)))
        return Reading(self.names, HostCopy(collectives.sum_(self._sums.clone()) / max(self.pictures, 1)))

    def state(self) -> dict[str, Any]:
        """Return this rank's sums, as tensors on the CPU and plain numbers."""
        sums = torch.zeros(0) if self._sums is None else self._sums.detach().to("cpu", copy=True)
        return {"names": list(self.names), "sums": sums, "pictures": self.pictures, "windows": self.windows, "shown_only": sorted(self.shown_only)}
