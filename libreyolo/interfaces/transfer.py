"""What crosses from the host to the device: dataclasses of tensors, some of which stay behind."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor
from typing_extensions import Self

# Bytes up to which a tensor crosses from a worker by value: in shared memory each one costs the training process a connection and an open file.
SMALL = 1 << 17


@dataclass
class Transferable:
    """A dataclass whose fields are tensors, others of its kind, or plain values (None among them). Pickled, small tensors on the CPU go by value."""

    # Tensors that are read by the host; on the device they would cost a synchronisation to read.
    HOST_ONLY = frozenset[str]()

    def to(self, device: torch.device, *, non_blocking: bool = True) -> Self:
        """Return a copy with every tensor but the host-only ones on `device`."""
        return self._each(lambda value: value.to(device, non_blocking=non_blocking))

    def pin_memory(self) -> Self:
        """Return a copy whose tensors for the device are in pinned memory, from which copies to a GPU do not block."""
        return self._each(lambda value: value.pin_memory())

    def tensors(self) -> Iterator[Tensor]:
        """Yield every tensor, also of what is nested."""
        for value in vars(self).values():
            if isinstance(value, Transferable):
                yield from value.tensors()
            elif isinstance(value, Tensor):
                yield value

    def each_tensor(self, change: Callable[[Tensor], Tensor]) -> Self:
        """Return a copy with every tensor changed, also those of what is nested."""
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        nested = {name: value.each_tensor(change) for name, value in values.items() if isinstance(value, Transferable)}
        return replace(self, **nested, **{name: change(value) for name, value in values.items() if isinstance(value, Tensor)})

    def __getstate__(self) -> dict[str, Any]:
        return {name: value.numpy() if _is_small(value) else value for name, value in vars(self).items()}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update({name: torch.from_numpy(value) if isinstance(value, np.ndarray) else value for name, value in state.items()})

    def _each(self, change: Callable[[Any], Any]) -> Self:
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        crossing = {name: value for name, value in values.items() if isinstance(value, Tensor | Transferable) and name not in self.HOST_ONLY}
        return replace(self, **{name: change(value) for name, value in crossing.items()})


def _is_small(value: Any) -> bool:
    return isinstance(value, Tensor) and value.device.type == "cpu" and value.numel() * value.element_size() <= SMALL
