"""Copies of many tensors as they are now, on their way to the host while the device goes on."""

from __future__ import annotations

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
        views = pack([tensors[place] for place in on_gpu], self._memory)
        arrived = torch.cuda.Event()
        arrived.record(torch.cuda.current_stream(tensors[on_gpu[0]].device))

        def given() -> list[Tensor]:
            arrived.synchronize()
            packed = dict(zip(on_gpu, views(), strict=True))
            return [copies[place] if place in copies else packed[place] for place in range(num_tensors)]

        return given

    def _memory(self, number: int, size: int) -> Tensor:
        while len(self._pinned) <= number:
            self._pinned.append(torch.empty(0, dtype=torch.uint8))
        if self._pinned[number].numel() < size:
            self._pinned[number] = torch.empty(size, dtype=torch.uint8, pin_memory=True)
        return self._pinned[number][:size]


def pack(tensors: Sequence[Tensor], memory: Memory) -> Callable[[], list[Tensor]]:
    """Begin to copy tensors of one device into `memory`, chunk by chunk; return what gives the tensors that lie there, in their order."""
    begun: list[tuple[list[int], Tensor, list[tuple[torch.Size, tuple[int, ...]]]]] = []
    for number, places in enumerate(_chunks(tensors)):
        # A tensor whose elements fill its memory in any order (channels_last, say) is packed in that order: no kernel has to turn it around.
        chunk = [tensors[place] if _is_dense(tensors[place]) else tensors[place].contiguous() for place in places]
        rows = [tensor.as_strided((tensor.numel(),), (1,)) for tensor in chunk]
        flat = torch.cat(rows) if len(rows) > 1 else rows[0]
        host = memory(number, flat.numel() * flat.element_size()).view(flat.dtype)
        host.copy_(flat, non_blocking=True)
        begun.append((places, host, [(tensor.shape, tensor.stride()) for tensor in chunk]))

    def views() -> list[Tensor]:
        found: dict[int, Tensor] = {}
        for places, host, layouts in begun:
            in_bytes, begin = host.view(torch.uint8).numpy(), 0
            for place, (shape, stride) in zip(places, layouts, strict=True):
                end = begin + shape.numel() * host.element_size()
                # A storage of its own: with a view of the chunk, a file would hold the whole chunk for each tensor that is saved alone.
                piece = torch.from_numpy(in_bytes[begin:end]).view(host.dtype) if end > begin else torch.empty(0, dtype=host.dtype)
                found[place] = piece.as_strided(shape, stride)
                begin = end
        return [found[place] for place in range(len(found))]

    return views


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
