"""Copies of many tensors as they are now, on their way to the host while the device goes on."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator, Sequence

import torch
from torch import Tensor

CHUNK_BYTES = 64 * 2**20  # what is packed at once: as much of the device's memory is needed for a moment

Memory = Callable[[int, int], Tensor]  # number of a chunk and its bytes -> so many bytes of the host


class Snapshots:
    """Takes copies of tensors. Those of a GPU travel through pinned memory, which is kept for the next time.

    Copied one by one, a network's thousand tensors would make the host wait a thousand times while the device does nothing; packed, they are a few
    copies at the device's own speed, for which nobody waits.
    """

    def __init__(self) -> None:
        self._pinned: list[Tensor] = []
        self._packing: Packing | None = None

    @torch.no_grad()
    def take(self, tensors: Sequence[Tensor]) -> Callable[[], list[Tensor]]:
        """Copy the tensors as they are at this place of the device's queue; return what gives the copies, in their order.

        That may be called in another thread and waits for the device. The copies are on the CPU, each with a storage of its own, and dense ones have
        the strides of their originals. Those of a GPU's tensors lie in memory that the next `take` writes to: be done with them by then.
        """
        num_tensors = len(tensors)
        on_gpu = [place for place, tensor in enumerate(tensors) if tensor.device.type == "cuda"]
        copies = {place: tensor.detach().to("cpu", copy=True) for place, tensor in enumerate(tensors) if tensor.device.type != "cuda"}
        if not on_gpu:
            return lambda: list(copies.values())
        theirs = [tensors[place] for place in on_gpu]
        if self._packing is None or not self._packing.is_of(theirs):
            self._packing = Packing(theirs)
        packed = self._packing.begin(self._memory)
        arrived = torch.cuda.Event()
        arrived.record(torch.cuda.current_stream(theirs[0].device))

        def given() -> list[Tensor]:
            arrived.synchronize()
            found = copies | dict(zip(on_gpu, packed(), strict=True))
            return [found[place] for place in range(num_tensors)]

        return given

    def _memory(self, number: int, size: int) -> Tensor:
        while len(self._pinned) <= number:
            self._pinned.append(torch.empty(0, dtype=torch.uint8))
        if self._pinned[number].numel() < size:
            self._pinned[number] = torch.empty(size, dtype=torch.uint8, pin_memory=True)
        return self._pinned[number][:size]


class Packing:
    """How tensors of one device lie together in a few chunks: found once, and used whenever they are copied."""

    def __init__(self, tensors: Sequence[Tensor]) -> None:
        self._tensors = list(tensors)
        self._addresses = [tensor.data_ptr() for tensor in tensors]
        self._chunks = [_Chunk(places, [tensors[place] for place in places]) for places in _chunks(tensors)]

    def is_of(self, tensors: Sequence[Tensor]) -> bool:
        """Return whether these are the same tensors, where they were; what they hold may be another."""
        return (
            len(tensors) == len(self._tensors)
            and all(map(operator.is_, tensors, self._tensors))
            and [tensor.data_ptr() for tensor in tensors] == self._addresses
        )

    def begin(self, memory: Memory) -> Callable[[], list[Tensor]]:
        """Begin to copy them, as they are now, into `memory`, chunk by chunk; return what gives the tensors that lie there, in their order."""
        begun = [(chunk, chunk.copy(memory, number)) for number, chunk in enumerate(self._chunks)]

        def arrived() -> list[Tensor]:
            found: dict[int, Tensor] = {}
            for chunk, host in begun:
                found |= zip(chunk.places, chunk.split(host), strict=True)
            return [found[place] for place in range(len(found))]

        return arrived


class _Chunk:
    """Some tensors of one type, which have places in a longer list."""

    def __init__(self, places: list[int], tensors: Sequence[Tensor]) -> None:
        self.places = places
        # A tensor whose elements fill its memory in any order (channels_last, say) is packed in that order: no kernel has to turn it around.
        self._rows = [tensor.as_strided((tensor.numel(),), (1,)) if _is_dense(tensor) else tensor for tensor in tensors]
        self._layouts = [(tensor.shape, tensor.stride() if _is_dense(tensor) else None) for tensor in tensors]

    def copy(self, memory: Memory, number: int) -> Tensor:
        """Begin to copy them into memory of the host, and return that, in their type."""
        rows = [row if row.dim() == 1 else row.reshape(-1) for row in self._rows]  # of one that is not dense: its elements in their order
        flat = torch.cat(rows) if len(rows) > 1 else rows[0]
        host = memory(number, flat.numel() * flat.element_size()).view(flat.dtype)
        host.copy_(flat, non_blocking=True)
        return host

    def split(self, host: Tensor) -> list[Tensor]:
        """Return the tensors that lie in the memory, each with a storage of its own.

        With views of the chunk, a file would hold the whole chunk for a tensor that is saved alone.
        """
        in_bytes, begin = host.view(torch.uint8).numpy(), 0
        found = []
        for shape, stride in self._layouts:
            end = begin + shape.numel() * host.element_size()
            piece = torch.from_numpy(in_bytes[begin:end]).view(host.dtype) if end > begin else torch.empty(0, dtype=host.dtype)
            found.append(piece.view(shape) if stride is None else piece.as_strided(shape, stride))
            begin = end
        return found


def _chunks(tensors: Sequence[Tensor]) -> Iterator[list[int]]:
    """Yield places of tensors of one type that have CHUNK_BYTES at most together, or of a single one that is larger."""
    for dtype in dict.fromkeys(tensor.dtype for tensor in tensors):
        places: list[int] = []
        size = 0
        for place in (place for place, tensor in enumerate(tensors) if tensor.dtype == dtype):
            bytes_here = tensors[place].numel() * tensors[place].element_size()
            if places and size + bytes_here > CHUNK_BYTES:
                yield places
                places, size = [], 0
            places.append(place)
            size += bytes_here
        yield places


def _is_dense(tensor: Tensor) -> bool:
    return tensor.is_contiguous() or (tensor.dim() == 4 and tensor.is_contiguous(memory_format=torch.channels_last))
