"""Large arrays on their way from a loader process to the training's, in shared memory that is used again.

Fresh shared memory is dear: the system finds every page of it, clears it and maps it, in two processes. A batch made of 200 decoded pictures costs a
third of a second so, and a hundredth or two in memory that was used before. A loader process therefore keeps a shelf of such pieces. It marks one as
taken while a batch lies in it; the training's process frees it when it has copied the batch into pinned memory. Whoever finds no free piece takes
fresh memory, so nobody ever waits for one.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import count
from typing import Any
from weakref import WeakValueDictionary

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import get_worker_info

from libreyolo.interfaces.transfer import SMALL, Transferable

PIECES = 6  # of a loader process: two batches on their way, of up to three large arrays
SPARE = 1.25  # of a piece, that a batch of a few pictures more still finds room in it

_numbers = count()
_shelf: Shelf | None = None  # of this loader process
_rooms: WeakValueDictionary[int, Shelves] = WeakValueDictionary()  # of this training process


class Shelves:
    """Which pieces of a loader's processes hold a batch. Made in the training's process; picklable, for its loader processes.

    A mark is set by the loader process alone where it is not set, and taken away by the training's alone where it is.
    """

    def __init__(self, workers: int) -> None:
        self.number = next(_numbers)
        self.taken = torch.zeros((workers, PIECES), dtype=torch.uint8).share_memory_()
        self.mapped: list[dict[int, torch.UntypedStorage]] = [{} for _ in range(workers)]
        _rooms[self.number] = self

    def __getstate__(self) -> dict[str, Any]:
        return {"number": self.number, "taken": self.taken, "mapped": []}

    def free(self, worker: int, pieces: tuple[int, ...], tensors: Iterable[Tensor]) -> None:
        """Let the loader process use the pieces again in which these tensors lie: everything in them was copied.

        What this process maps of the newest pieces stays mapped, or every batch would map its pages anew.
        """
        mapped = self.mapped[worker]
        for memory in (tensor.untyped_storage() for tensor in tensors):
            mapped.pop(memory.data_ptr(), None)
            mapped[memory.data_ptr()] = memory
        while len(mapped) > PIECES:
            mapped.pop(next(iter(mapped)))
        self.taken.numpy()[worker, list(pieces)] = 0

    def forget(self) -> None:
        """Let go of the memory, of which the loader processes have ended or stand still."""
        for mapped in self.mapped:
            mapped.clear()

    def close(self) -> None:
        """Let go of the memory for good."""
        self.forget()
        _rooms.pop(self.number, None)


@dataclass(frozen=True)
class OnShelf:
    """A batch that lies in pieces of a loader process."""

    host: Transferable
    shelves: int
    worker: int
    pieces: tuple[int, ...]

    def pin_memory(self) -> Transferable:
        """Return the batch, with nothing left in the pieces, and free them. For the training's process."""
        shared = [tensor for tensor in self.host.tensors() if tensor.is_shared()]
        pinned = self.host.pin_memory().each_tensor(lambda tensor: tensor.clone() if tensor.is_shared() else tensor)
        room = _rooms.get(self.shelves)
        if room is not None:  # else the loader was closed meanwhile
            room.free(self.worker, self.pieces, shared)
        return pinned


class Shelf:
    """The pieces of one loader process."""

    def __init__(self, shelves: Shelves, worker: int) -> None:
        self.shelves, self.worker = shelves.number, worker
        self.taken = shelves.taken[worker].numpy()
        self.taken[:] = 0  # marks of a process before this one, whose last batches nobody wanted
        self.pieces: list[torch.UntypedStorage | None] = [None] * PIECES
        self.lent: list[int] = []  # for the batch that is being made

    def take(self, size: int) -> torch.UntypedStorage:
        """Return at least `size` bytes of any content: the smallest free piece that has them, else a new one."""
        free = [place for place in range(PIECES) if not self.taken[place]]
        fitting = [place for place in free if self._size(place) >= size]
        if not fitting and not free:
            return fresh(size)
        if fitting:
            place = min(fitting, key=self._size)
        else:  # an empty place, else the largest piece makes room: it is the next to be too small
            place = min(free, key=lambda place: (self.pieces[place] is not None, -self._size(place)))
            self.pieces[place] = None
            self.pieces[place] = fresh(int(SPARE * size))
        self.taken[place] = 1
        self.lent.append(place)
        piece = self.pieces[place]
        assert piece is not None
        return piece

    def hand_over(self, host: Any) -> Any:
        """Return the batch that was made since the last one, with the pieces that it lies in."""
        lent, self.lent = tuple(self.lent), []
        return OnShelf(host, self.shelves, self.worker, lent) if lent else host

    def _size(self, place: int) -> int:
        piece = self.pieces[place]
        return 0 if piece is None else piece.nbytes()


def open_shelf(shelves: Shelves | None, worker: int) -> None:
    """Give this loader process its shelf."""
    global _shelf  # a loader process has one loader
    _shelf = None if shelves is None else Shelf(shelves, worker)


def handed_over(host: Any) -> Any:
    """Return what a loader process hands over for a batch that it has made."""
    return host if _shelf is None else _shelf.hand_over(host)


def room_for(shape: tuple[int, ...]) -> Tensor:
    """Return uint8 [shape] of any content; in a loader process, where it is not small, in memory that it shares with the training's process."""
    size = math.prod(shape)
    if size > SMALL and get_worker_info() is not None:
        try:
            memory = fresh(size) if _shelf is None else _shelf.take(size)
        except RuntimeError:  # the system has none: whoever hands the batch over finds that out again, and says so
            pass
        else:
            return torch.empty(0, dtype=torch.uint8).set_(memory)[:size].view(shape)
    return torch.from_numpy(np.empty(shape, np.uint8))


def fresh(size: int) -> torch.UntypedStorage:
    """Return `size` bytes of shared memory. Raises RuntimeError where the system has no room for them."""
    memory: torch.UntypedStorage = torch.empty(0, dtype=torch.uint8).untyped_storage()._new_shared(size)
    return memory
