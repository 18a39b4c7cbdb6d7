"""A CUDA device of a few numbers: torch's allocator over segments, its counters, and another process's share."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch


@dataclass(eq=False)
class Segment:
    """What the allocator got from the device in one piece. taken: the bytes of each tensor in it."""

    size: int
    taken: dict[int, int] = field(default_factory=dict)

    @property
    def gap(self) -> int:
        return self.size - sum(self.taken.values())


class FakeDevice:
    """A device of `size` bytes. others: what other processes hold of them.

    As torch's allocator does: a tensor lies in the gap of a segment, else in a new segment of its size; a segment without tensors is kept until
    `empty_cache`, or until there is no memory for another.
    """

    def __init__(self, size: int) -> None:
        self.size, self.others = size, 0
        self.segments: list[Segment] = []
        self.most_reserved = self.most_allocated = self.tensors = 0

    @property
    def reserved(self) -> int:
        return sum(segment.size for segment in self.segments)

    @property
    def allocated(self) -> int:
        return sum(segment.size - segment.gap for segment in self.segments)

    @property
    def free(self) -> int:
        return self.size - self.others - self.reserved

    def take(self, size: int) -> int:
        """Make a tensor; return its number. Raises torch.OutOfMemoryError."""
        home = next((segment for segment in self.segments if segment.gap >= size), None)
        if home is None:
            if self.free < size:
                self.empty_cache()
            if self.free < size:
                raise torch.OutOfMemoryError("CUDA out of memory")
            home = Segment(size)
            self.segments.append(home)
        self.tensors += 1
        home.taken[self.tensors] = size
        self.most_reserved, self.most_allocated = max(self.most_reserved, self.reserved), max(self.most_allocated, self.allocated)
        return self.tensors

    def give(self, tensor: int) -> None:
        """Free a tensor; its segment stays."""
        for segment in self.segments:
            segment.taken.pop(tensor, None)

    @contextmanager
    def taken(self, size: int) -> Iterator[None]:
        """Hold a tensor inside the block."""
        tensor = self.take(size)
        try:
            yield
        finally:
            self.give(tensor)

    def empty_cache(self) -> None:
        self.segments = [segment for segment in self.segments if segment.taken]

    def reset_peaks(self) -> None:
        self.most_reserved, self.most_allocated = self.reserved, self.allocated

    def installed(self, patch: pytest.MonkeyPatch) -> FakeDevice:
        """Let torch.cuda speak of this device, whichever is named; return it."""

        def stand_in(name: str, answer: Any) -> None:
            patch.setattr(torch.cuda, name, lambda *_: answer())

        stand_in("mem_get_info", lambda: (self.free, self.size))
        stand_in("memory_reserved", lambda: self.reserved)
        stand_in("memory_allocated", lambda: self.allocated)
        stand_in("max_memory_reserved", lambda: self.most_reserved)
        stand_in("max_memory_allocated", lambda: self.most_allocated)
        stand_in("reset_peak_memory_stats", self.reset_peaks)
        stand_in("empty_cache", self.empty_cache)
        stand_in("synchronize", lambda: None)
        stand_in("device", nullcontext)
        return self
