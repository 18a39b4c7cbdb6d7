"""Batches that a GPU prepares beside the step before theirs, on a stream of their own."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields
from functools import cache
from typing import Any, Generic, TypeVar

import torch
from torch import Tensor
from torch.autograd.profiler import record_function

from libreyolo.interfaces.batch import Batch
from libreyolo.interfaces.phases import PREPARE

B = TypeVar("B", bound=Batch)


@dataclass(frozen=True)
class Prepared(Generic[B]):
    """A batch whose preparation is queued. `ready` comes in the side stream after it."""

    batch: B
    ready: torch.cuda.Event

    def taken(self, device: torch.device) -> B:
        """Return the batch for work on the current stream, which waits for it; the host does not."""
        current = torch.cuda.current_stream(device)
        current.wait_event(self.ready)
        for field in fields(self.batch):
            value = getattr(self.batch, field.name)
            if isinstance(value, Tensor) and value.is_cuda:
                value.record_stream(current)  # its memory belongs to the side stream, which must not reuse it before the step is done
        return self.batch


@dataclass(frozen=True)
class Early(Generic[B]):
    """The first batch of an epoch that has not been asked for: epoch, step, and what came of it."""

    place: tuple[int, int]
    found: Prepared[B] | Exception

    def given(self) -> Prepared[B]:
        """Return the batch; raises what stood in its way, now that it is wanted."""
        if isinstance(self.found, Exception):
            raise self.found
        return self.found


def prepare_beside(prepare: Callable[[Any, torch.device], B], host: Any, device: torch.device) -> Prepared[B]:
    """Queue the copy and preparation of a host batch on the device's side stream."""
    side = _side_stream(device)
    with torch.cuda.device(device), torch.cuda.stream(side):
        with record_function(PREPARE):
            batch = prepare(host, device)
        ready = torch.cuda.Event()
        ready.record(side)
    return Prepared(batch, ready)


@cache
def _side_stream(device: torch.device) -> torch.cuda.Stream:
    """Return the stream on which all loaders of a device prepare: memory that a stream has used is used again by this stream alone.

    With one for every epoch, each would keep a batch's memory for itself.
    """
    return torch.cuda.Stream(device)
