"""What loader processes need of the machine, checked before it runs out: then a batch is lost without a word, or a process killed by SIGBUS."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch.multiprocessing
from torch import Tensor

from libreyolo.data.memory import IN_MEMORY, shared_memory_folder
from libreyolo.data.shelves import PIECES
from libreyolo.errors import UserError, counted

BATCHES_UNDER_WAY = 2  # of each worker, torch's prefetch_factor
# Each tensor of a batch on its way is an open file; a batch has fewer than these, and a worker has a few pipes besides.
FILES_OF_A_BATCH = 24
FILES_OF_A_WORKER = 8 + PIECES
FILES_BESIDE = 32  # checkpoints, tables, what else a training opens for a moment


def check_open_files(workers: int) -> None:
    """Raise UserError where this process may not open as many files as its loader processes will need."""
    room = _files_left()
    if room is None or torch.multiprocessing.get_sharing_strategy() != "file_descriptor":
        return
    limit, left = room
    needed = workers * (BATCHES_UNDER_WAY * FILES_OF_A_BATCH + FILES_OF_A_WORKER) + FILES_BESIDE
    if left < needed:
        raise UserError(
            f"workers={workers} may need {needed} open files, but a process may have {limit} here (ulimit -n) and {limit - left} are open: say "
            f"ulimit -n {_next_power(limit - left + needed)} in the shell that starts the training, or lower workers."
        )


def shared_memory_advice(batch: Any, workers: int, ranks: int) -> str | None:
    """Return what to log where the batches under way of all ranks on this host may not fit into the shared memory that is free, else None."""
    folder = shared_memory_folder()
    if workers == 0 or folder != IN_MEMORY:
        return None
    state = os.statvfs(folder)
    free, size = state.f_bavail * state.f_frsize, num_bytes(batch)
    needed = size * BATCHES_UNDER_WAY * workers * max(ranks, 1)
    if needed <= free:
        return None
    return (
        f"{counted(ranks, 'rank')} with {workers} loader processes may keep {needed / 2**20:.0f} MiB of batches in {folder}, which has "
        f"{free / 2**20:.0f} MiB free: a process that finds it full is killed. Lower workers or batch, or give the container more (--shm-size=8g)."
    )


@contextmanager
def lost_workers_told() -> Iterator[None]:
    """Turn torch's word that a loader process is gone into a UserError. torch says it wherever the training happens to be, not only in the loader."""
    try:
        yield
    except RuntimeError as error:
        text = str(error)
        if "DataLoader worker" in text and ("exited unexpectedly" in text or "killed by signal" in text):
            lost = UserError(_lost_worker(text))
            lost.on_every_rank = False
            raise lost from error
        raise


def _lost_worker(message: str) -> str:
    advice = "lower workers or batch, or use workers=0"
    folder = shared_memory_folder()
    if folder == IN_MEMORY:
        room = os.statvfs(folder)
        advice += (
            f"; batches pass through {folder}, which has {room.f_bavail * room.f_frsize / 2**20:.0f} MiB free (a container gets more with "
            "--shm-size=8g)"
        )
    return f"A loader process ended ({message.split('. ')[0].splitlines()[0].rstrip('.')}), most often for want of memory: {advice}."


def num_bytes(value: Any) -> int:
    """Return the bytes of all tensors in a batch (a dataclass, list, tuple or dict of them, at any depth)."""
    if isinstance(value, Tensor):
        return value.numel() * value.element_size()
    if isinstance(value, (list, tuple)):
        return sum(num_bytes(part) for part in value)
    parts = value if isinstance(value, dict) else vars(value) if hasattr(value, "__dict__") else {}
    return sum(num_bytes(part) for part in parts.values())


def _files_left() -> tuple[int, int] | None:
    """Return how many files this process may open and how many of these it has left; None where the system does not say."""
    try:
        import resource

        limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        num_open = len(os.listdir("/proc/self/fd"))  # noqa: PTH208  # counting, nothing else
    except (ImportError, OSError):
        return None
    return None if limit == resource.RLIM_INFINITY else (limit, limit - num_open)


def _next_power(number: int) -> int:
    return 1 << max(number - 1, 1).bit_length()
