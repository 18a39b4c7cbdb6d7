"""Every collective of the library outside `launch`. With one process each of them is the identity and costs nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import partial
from typing import Any, TypeVar
from weakref import WeakKeyDictionary

import torch
import torch.distributed as dist
from torch import Tensor, nn

from libreyolo.nn.fused.exchange import Exchange
from libreyolo.nn.fused.scratch import ALONE, Ranks

T = TypeVar("T")

_alone: ContextVar[bool] = ContextVar("alone", default=False)


@contextmanager
def alone() -> Iterator[None]:
    """Let this process be the only one inside the block, whatever group it is in: for what one rank does by itself while the others wait for it."""
    token = _alone.set(True)
    try:
        yield
    finally:
        _alone.reset(token)


def rank() -> int:
    """Return this process's global rank, 0 when alone."""
    return dist.get_rank() if _active() else 0


def world_size() -> int:
    """Return the number of ranks, 1 when alone."""
    return dist.get_world_size() if _active() else 1


def backend() -> str:
    """Return the name of the process group's backend, "" when alone."""
    return str(dist.get_backend()) if _active() else ""


def sum_(tensor: Tensor) -> Tensor:
    """Sum `tensor` over ranks in place and return it."""
    if world_size() > 1:
        dist.all_reduce(tensor)
    return tensor


def average_(tensor: Tensor) -> None:
    """Make `tensor` its mean over ranks, in place."""
    if world_size() > 1:
        dist.all_reduce(tensor)
        tensor.div_(world_size())


def begin_average(tensor: Tensor) -> Callable[[], None]:
    """Begin to make `tensor` its mean over ranks, in place; call what is returned before it is used (a device then waits, not its host)."""
    if world_size() == 1:
        return _nothing
    tensor.div_(world_size())
    wait = dist.all_reduce(tensor, async_op=True).wait

    def finish() -> None:
        wait()

    return finish


def _nothing() -> None: ...


def broadcast_(tensor: Tensor, source: int = 0) -> None:
    """Make `tensor` that of rank `source`, in place."""
    if world_size() > 1:
        dist.broadcast(tensor, src=source)


_ranks_of: WeakKeyDictionary[Any, Ranks] = WeakKeyDictionary()


def ranks() -> Ranks:
    """Return this process and its group, for layers whose statistics cover all ranks: each asks in every forward, so the answer is kept."""
    if not _active():
        return ALONE
    group = dist.group.WORLD
    found = _ranks_of.get(group)
    if found is None:
        # Gloo sums tensors of a GPU, and gathers none.
        gather = _gather_by_sum if backend() == "gloo" else _gather
        found = _ranks_of[group] = Ranks(rank(), world_size(), partial(gather, rank()), dist.all_reduce)
    return found


def exchange(device: torch.device, *, able: bool = True) -> Exchange | None:
    """Return memory in which kernels of this device meet those of all other ranks; None where they can't: alone, on several hosts, not on CUDA.

    able: whether this rank can, as far as its caller knows. Every rank must call it, and all get some or none does.
    """
    if world_size() == 1 or device.type != "cuda":
        return None
    mine = Exchange.create(world_size()) if able and rank() == 0 else None
    where = broadcast_object((mine.path, mine.token) if mine else None)
    if where is None:
        return None
    if able and rank() > 0:
        mine = Exchange.join(*where, world_size())
    joined = all(all_objects(mine is not None))
    if rank() == 0 and mine:
        mine.leave_no_name()
    registered = joined and mine is not None and mine.register(device)
    return mine if all(all_objects(registered)) else None


def _gather(own: int, table: Tensor) -> None:
    """Bring every rank's row of `table` [ranks, ...] to all ranks, in place; row `own` is what this rank wrote."""
    dist.all_gather_into_tensor(table, table[own])


def _gather_by_sum(own: int, table: Tensor) -> None:
    kept = table[own].clone()
    table.zero_()
    table[own] = kept
    dist.all_reduce(table)


class _Sum(torch.autograd.Function):
    """All-reduce whose backward is an all-reduce: every rank's loss depends on every rank's input."""

    @staticmethod
    def forward(ctx: Any, tensor: Tensor) -> Tensor:
        summed = tensor.clone()
        dist.all_reduce(summed)
        return summed

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        summed = gradient.contiguous().clone()
        dist.all_reduce(summed)
        return summed


def differentiable_sum(tensor: Tensor) -> Tensor:
    """Return the sum over ranks, differentiable."""
    if world_size() == 1:
        return tensor
    found: Tensor = _Sum.apply(tensor)
    return found


def max_integers(values: dict[str, int], device: torch.device) -> dict[str, int]:
    """Return the largest value of every name over ranks; all ranks must pass the same names, and on a GPU each waits for its device."""
    if world_size() == 1 or not values:
        return values
    names = sorted(values)
    tensor = torch.tensor([values[n] for n in names], dtype=torch.int64, device=device)
    dist.all_reduce(tensor, op=dist.ReduceOp.MAX)
    return dict(zip(names, tensor.tolist(), strict=True))


def broadcast_integer(value: int, device: torch.device, source: int = 0) -> int:
    """Return rank `source`'s integer on every rank, as a single long tensor on `device`."""
    if world_size() == 1:
        return value
    tensor = torch.tensor([value], dtype=torch.int64, device=device)
    dist.broadcast(tensor, src=source)
    return int(tensor)


def broadcast_object(value: T, source: int = 0) -> T:
    """Return rank `source`'s value on every rank."""
    if world_size() == 1:
        return value
    box: list[Any] = [value]
    dist.broadcast_object_list(box, src=source)
    return box[0]


def gather_objects(value: Any) -> list[Any] | None:
    """Return every rank's value in rank order on rank 0, None elsewhere."""
    if world_size() == 1:
        return [value]
    box: list[Any] | None = [None] * world_size() if rank() == 0 else None
    dist.gather_object(value, box, dst=0)
    return box


def all_objects(value: Any) -> list[Any]:
    """Return every rank's value in rank order, on every rank."""
    if world_size() == 1:
        return [value]
    box: list[Any] = [None] * world_size()
    dist.all_gather_object(box, value)
    return box


# What `tell_all` and `was_told` raise when the process that holds the store is gone.
STORE_IS_GONE: tuple[type[Exception], ...] = (dist.DistNetworkError, dist.DistStoreError) if dist.is_available() else ()


def tell_all(key: str) -> None:
    """Leave a word for the other ranks in the group's store. Not a collective."""
    if world_size() > 1:
        _store().set(key, "1")


def was_told(key: str) -> bool:
    """Return whether some rank of this group left that word. Not a collective; costs a message to the store's process."""
    return world_size() > 1 and bool(_store().check([key]))


def _store() -> Any:
    return dist.distributed_c10d._get_default_store()


def barrier() -> None:
    """Wait until every rank is here."""
    if world_size() > 1:
        dist.barrier()


def floating_buffers(modules: Iterable[nn.Module]) -> list[Tensor]:
    """Return what may differ between ranks of a network whose BatchNorm is not synchronised."""
    return [b for module in modules for b in module.buffers() if b.is_floating_point() and b.numel()]


@torch.no_grad()
def average_buffers(modules: Iterable[nn.Module]) -> None:
    """Average the floating buffers of the modules over ranks, so that every rank validates and saves the same network."""
    if world_size() == 1:
        return
    buffers = floating_buffers(modules)
    if not buffers:
        return
    # float64 is kept; half precision is added up in float32.
    flat = torch.cat([b.reshape(-1).to(torch.promote_types(b.dtype, torch.float32)) for b in buffers])
    dist.all_reduce(flat)
    flat /= world_size()
    for buffer, mean in zip(buffers, flat.split([b.numel() for b in buffers]), strict=True):
        buffer.copy_(mean.reshape(buffer.shape))


def _active() -> bool:
    return not _alone.get() and dist.is_available() and dist.is_initialized()
