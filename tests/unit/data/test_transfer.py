"""How a batch crosses from a worker: what is small by value, what is large in shared memory."""

from __future__ import annotations

import pickle
from dataclasses import dataclass
from multiprocessing.reduction import ForkingPickler

import torch
from torch import Tensor

from libreyolo.interfaces.transfer import SMALL, Transferable


@dataclass
class Inner(Transferable):
    flags: Tensor


@dataclass
class Outer(Transferable):
    pixels: Tensor
    places: Tensor
    nothing: Tensor
    inner: Inner | None
    epoch: int


def outer(num_pixels: int) -> Outer:
    pixels = torch.arange(num_pixels, dtype=torch.uint8)
    return Outer(pixels, torch.arange(6).view(3, 2).T, torch.empty(0), Inner(torch.tensor([True, False])), 7)


def test_a_small_batch_crosses_without_a_file_and_is_the_same() -> None:
    sent = outer(SMALL)
    written = bytes(ForkingPickler.dumps(sent))
    assert b"rebuild_storage" not in written
    found = pickle.loads(written)  # our own bytes
    assert found.epoch == 7
    pairs = [(getattr(sent, name), getattr(found, name)) for name in ("pixels", "places", "nothing")]
    for expected, got in [*pairs, (sent.inner.flags, found.inner.flags)]:  # type: ignore[union-attr]
        assert got.dtype == expected.dtype
        assert torch.equal(got, expected)
        got.zero_()  # it may be written to


def test_what_is_large_goes_through_shared_memory() -> None:
    assert bytes(ForkingPickler.dumps(outer(SMALL + 1))).count(b"rebuild_storage") == 1
