"""Batches in shared memory that is used again: nothing is written over before it was copied, and no process waits for a free piece."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from libreyolo.data import shelves
from libreyolo.data.loader import Loader
from libreyolo.data.sampler import EvaluationSampler, Item
from libreyolo.data.samples import top_left
from libreyolo.data.shelves import PIECES, Shelf, Shelves, fresh
from libreyolo.interfaces.transfer import SMALL, Transferable

SIDE = 250  # of a picture of one channel, 62,500 bytes: three are more than what goes by value


@dataclass
class Pair(Transferable):
    """A batch of pictures and what only the host looks at, both large."""

    pictures: Tensor
    seen_by_host: Tensor

    HOST_ONLY = frozenset({"seen_by_host"})


class Numbered:
    """Pictures that show their number, some smaller than others."""

    def __getitem__(self, item: Item) -> np.ndarray:
        return np.full((SIDE - item.index % 7, SIDE), item.index, np.uint8)

    def describe(self, index: int) -> str:
        return str(index)

    def shown(self, item: Item) -> list[int]:
        return [item.index]


def paired(pictures: list[np.ndarray]) -> Pair:
    return Pair(top_left(pictures, fill=255), top_left(pictures))


def unprepared(host: Any, device: torch.device) -> Any:
    return host


@pytest.fixture
def loader(monkeypatch: pytest.MonkeyPatch) -> Iterator[Loader[Any]]:
    """A loader that copies its batches as one for a GPU does."""
    monkeypatch.setattr(Tensor, "pin_memory", Tensor.clone)
    made = Loader(Numbered(), EvaluationSampler(40, batch=4), collate=paired, prepare=unprepared, workers=2)
    made._pins = True
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(torch.utils.data.DataLoader, "__init__", _without_pinning(torch.utils.data.DataLoader.__init__))
        yield made
    made.close()


def _without_pinning(original: Any) -> Any:
    def init(self: Any, *arguments: Any, **named: Any) -> None:
        original(self, *arguments, **{**named, "pin_memory": False})  # it would ask for a GPU

    return init


def test_no_batch_is_written_over_by_a_later_one_though_few_pieces_of_memory_serve_all(loader: Loader[Any]) -> None:
    batches = [batch for epoch in range(3) for batch in loader._host_batches(epoch, 0, 3)]
    assert len(batches) == 30
    for place, batch in enumerate(batches):
        numbers = [4 * (place % 10) + k for k in range(4)]
        height = max(SIDE - n % 7 for n in numbers)
        for pictures, fill in ((batch.pictures, 255), (batch.seen_by_host, 0)):
            expected = torch.full((4, height, SIDE), fill, dtype=torch.uint8)
            for row, number in enumerate(numbers):
                expected[row, : SIDE - number % 7] = number
            assert torch.equal(pictures, expected) and not pictures.is_shared()


def test_what_was_copied_is_free_again_and_what_a_loader_maps_goes_with_it(loader: Loader[Any]) -> None:
    for epoch in range(3):
        for count, _ in enumerate(loader._host_batches(epoch, 0, 3)):
            if (epoch, count) == (2, 8):
                kept = loader._shelves
                assert kept is not None and shelves._rooms[kept.number] is kept
                assert all(1 <= len(mapped) <= PIECES for mapped in kept.mapped)  # 56 large arrays came
    assert not kept.taken.any() and not any(kept.mapped)
    loader.close()
    assert kept.number not in shelves._rooms


def test_the_smallest_free_piece_that_has_room_is_taken_and_where_none_is_free_fresh_memory() -> None:
    room = Shelves(2)
    shelf = Shelf(room, 1)
    large, small = shelf.take(8 * SMALL), shelf.take(2 * SMALL)
    assert (large.nbytes(), small.nbytes()) == (10 * SMALL, int(2.5 * SMALL))
    handed = shelf.hand_over(Pair(torch.zeros(1), torch.zeros(1)))
    assert handed.pieces == (0, 1) and room.taken.tolist() == [[0] * PIECES, [1, 1, *[0] * (PIECES - 2)]]
    room.free(1, (0, 1), [])
    assert shelf.take(2 * SMALL).data_ptr() == small.data_ptr() and shelf.take(3 * SMALL).data_ptr() == large.data_ptr()
    for _ in range(PIECES - 2):
        shelf.take(SMALL)
    assert shelf.take(SMALL).nbytes() == SMALL and len(shelf.lent) == PIECES  # that one is nobody's piece
    room.free(1, tuple(range(PIECES)), [])
    assert shelf.take(20 * SMALL).nbytes() == 25 * SMALL
    assert shelf.pieces[0] is not None and shelf.pieces[0].nbytes() == 25 * SMALL  # the largest made room
    room.close()


def test_a_process_that_follows_another_finds_its_shelf_free() -> None:
    room = Shelves(1)
    Shelf(room, 0).take(SMALL)
    assert room.taken.any()
    Shelf(room, 0)
    assert not room.taken.any()
    room.close()


def test_a_batch_of_a_loader_that_was_closed_meanwhile_still_arrives(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Tensor, "pin_memory", Tensor.clone)
    room = Shelves(1)
    memory = torch.empty(0, dtype=torch.uint8).set_(fresh(4)).fill_(7)
    batch = shelves.OnShelf(Pair(memory, memory), room.number, 0, (0,))
    room.close()
    arrived = batch.pin_memory()
    memory.zero_()
    assert arrived.pictures.tolist() == arrived.seen_by_host.tolist() == [7] * 4
