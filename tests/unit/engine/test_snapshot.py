"""Tensors on their way to the host: what arrives is what was there, whatever the training does meanwhile."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from libreyolo.engine import snapshot
from libreyolo.engine.snapshot import Packing, Snapshots


def tensors() -> list[Tensor]:
    draw = torch.Generator().manual_seed(3)
    weight = torch.randn((4, 3, 2, 5), generator=draw)
    return [
        weight.to(memory_format=torch.channels_last),
        torch.tensor(7, dtype=torch.int64),
        weight.double(),
        torch.zeros(0),
        weight[:, 1:],  # not dense
        weight[:, :1].contiguous(memory_format=torch.channels_last),
        torch.randn(50, generator=draw).half(),
        weight,
        torch.nn.Parameter(torch.randn(9, generator=draw)),
    ]


@pytest.mark.parametrize("chunk_bytes", [1, 500, 2**20])
def test_what_is_packed_is_every_tensor_as_it_was(chunk_bytes: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(snapshot, "CHUNK_BYTES", chunk_bytes)
    live = tensors()
    expected = [t.detach().clone() for t in live]
    sizes: dict[int, int] = {}
    memory: dict[int, Tensor] = {}

    def take(number: int, size: int) -> Tensor:
        assert number not in memory  # or a chunk would be written over another
        sizes[number] = size
        memory[number] = torch.empty(size, dtype=torch.uint8)
        return memory[number]

    arrived = Packing([t.detach() for t in live]).begin(take)
    for tensor in live:
        tensor.data.zero_()
    views = arrived()
    largest = max(t.numel() * t.element_size() for t in live)
    assert max(sizes.values()) <= max(chunk_bytes, largest) and sum(sizes.values()) == sum(t.numel() * t.element_size() for t in live)
    for view, wanted in zip(views, expected, strict=True):
        assert view.dtype == wanted.dtype and view.shape == wanted.shape and torch.equal(view, wanted)
        assert view.untyped_storage().nbytes() == wanted.numel() * wanted.element_size()  # what a file would hold of it
    assert views[0].stride() == live[0].stride()  # as an optimiser wants its state back


def test_a_packing_is_for_its_tensors_whatever_they_hold_by_then() -> None:
    live = [t.detach() for t in tensors()]
    packing = Packing(live)
    for factor in (2, -1):
        for tensor in live:
            tensor.mul_(factor)
        found = packing.begin(lambda number, size: torch.empty(size, dtype=torch.uint8))()
        assert all(torch.equal(copy, tensor) for copy, tensor in zip(found, live, strict=True))
    assert packing.is_of(list(live))
    assert not packing.is_of(live[:-1])
    assert not packing.is_of([*live[:-1], live[-1].clone()])
    live[0].data = live[0].clone()  # the same tensor in another place
    assert not packing.is_of(live)


def test_copies_of_the_cpu_are_made_at_once_each_in_memory_of_its_own() -> None:
    live = tensors()
    expected = [t.detach().clone() for t in live]
    given = Snapshots().take(live)
    for tensor in live:
        tensor.data.zero_()
    found = given()
    assert all(torch.equal(copy, wanted) for copy, wanted in zip(found, expected, strict=True))
    assert len({copy.untyped_storage().data_ptr() for copy in found if copy.numel()}) == len(found) - 1


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA")
def test_copies_of_a_gpu_are_those_of_their_place_in_its_queue(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(snapshot, "CHUNK_BYTES", 500)
    snapshots = Snapshots()
    for factor in (1.0, 3.0):  # the second time in the memory of the first
        live = [*(t.detach().cuda() * factor for t in tensors()), torch.ones(3) * factor]
        expected = [t.cpu().clone() for t in live]
        given = snapshots.take(live)
        for tensor in live:
            tensor.zero_()
        found = given()
        assert all(copy.device.type == "cpu" and torch.equal(copy, wanted) for copy, wanted in zip(found, expected, strict=True))
        assert len({copy.untyped_storage().data_ptr() for copy in found if copy.numel()}) == len(found) - 1
