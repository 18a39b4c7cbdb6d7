"""A few numbers of the device on their way to the host, for which nobody waits before they are needed."""

from __future__ import annotations

import torch
from torch import Tensor


class HostCopy:
    """The values of a small tensor as they are at this place in the device's queue of work. On the CPU they are there at once."""

    def __init__(self, values: Tensor) -> None:
        self._copied: torch.cuda.Event | None = None
        self._values = values
        if values.device.type == "cuda":
            self._values = torch.empty(values.shape, dtype=values.dtype, pin_memory=True)
            self._values.copy_(values, non_blocking=True)
            self._copied = torch.cuda.Event()
            self._copied.record(torch.cuda.current_stream(values.device))

    def ready(self) -> bool:
        """Return whether the values can be read without waiting."""
        return self._copied is None or self._copied.query()

    def wait(self) -> list[float]:
        """Return the values, waiting for the device if they are not here yet."""
        if self._copied is not None:
            self._copied.synchronize()
        found: list[float] = self._values.tolist()
        return found
