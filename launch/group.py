"""The process group of one training: joined with the right backend, left in every case."""

from __future__ import annotations

import contextlib
import inspect
import itertools
import logging
import os
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import torch
from torch import distributed as dist

from launch.environment import RankEnvironment
from launch.errors import LaunchError
from launch.lifeline import told_of_the_agents_end

log = logging.getLogger(__name__)

TIMEOUT = timedelta(hours=3)

_groups_joined = itertools.count()  # by this process; the same on every rank, since all walk one path


def choose_backend(device: str | torch.device, override: str | None = None) -> str:
    """Return "nccl" for a CUDA device where torch has NCCL, else "gloo"; `override` wins if this build has it and it fits the device."""
    on_cuda = torch.device(device).type == "cuda"
    if override is None:
        return "nccl" if on_cuda and dist.is_nccl_available() else "gloo"
    backend = override.lower()
    if backend not in ("nccl", "gloo"):
        raise LaunchError(f"backend={override!r} is unknown: use nccl or gloo, or leave it out.")
    if backend == "nccl" and not (on_cuda and dist.is_nccl_available()):
        reason = "this build of torch has no NCCL" if on_cuda else f"device={device} is not a CUDA device"
        raise LaunchError(f"backend='nccl' can't be used, because {reason}: use backend=gloo, or leave it out.")
    if backend == "gloo" and not dist.is_gloo_available():
        raise LaunchError("backend='gloo' can't be used, because this build of torch has no Gloo: leave backend out.")
    return backend


@contextlib.contextmanager
def process_group(
    env: RankEnvironment | None, *, device: str | torch.device, backend: str | None = None, timeout: timedelta = TIMEOUT
) -> Iterator[str | None]:
    """Be a member of the process group inside the block, and yield its backend; without `env` there is no group and None is yielded.

    The rank's CUDA device is made the current one first, so no rank opens a context on another's GPU. At a normal end the ranks wait for
    each other; after an exception nobody waits and the group is aborted, because another rank may be gone. Then whoever started the
    processes ends the rest (the parent, or torchrun's agent). A dead peer is noticed by NCCL's watchdog, whose default
    (TORCH_NCCL_ASYNC_ERROR_HANDLING) ends the process, and by Gloo at once. A dead agent of torchrun is told with SIGTERM.
    """
    if env is None:
        yield None
        return
    place = torch.device(device)
    chosen = choose_backend(place, backend)
    if place.type == "cuda":
        torch.cuda.set_device(place)
    if dist.is_initialized():
        raise LaunchError("a process group exists already in this process: end the earlier one before training again.")
    dist.init_process_group(**_arguments(env, chosen, place, timeout))
    if env.rank == 0:
        log.info("%d processes (%s), backend %s, rank 0 on %s, time-out %s", env.world_size, env.source, chosen, place, timeout)
    try:
        with told_of_the_agents_end() if env.source == "torchrun" and "TORCHELASTIC_RUN_ID" in os.environ else contextlib.nullcontext():
            yield chosen
        dist.barrier(device_ids=[place.index] if chosen == "nccl" and place.index is not None else None)
    except BaseException:
        _abort(chosen)
        raise
    dist.destroy_process_group()


def _arguments(env: RankEnvironment, backend: str, device: torch.device, timeout: timedelta) -> dict[str, Any]:
    arguments: dict[str, Any] = {"backend": backend, "timeout": timeout, "world_size": env.world_size, "rank": env.rank}
    arguments["store"] = _join_store(env, timeout)
    if backend == "nccl" and "device_id" in inspect.signature(dist.init_process_group).parameters:
        arguments["device_id"] = device  # binds the communicator to the GPU now: a wrong one fails here, not in the first step
    return arguments


def _join_store(env: RankEnvironment, timeout: timedelta) -> dist.Store:
    """Join the store where ranks find each other, under a prefix of this life of the job and this group of the process.

    The store outlives both: after a restart by torchrun's agent, or in a script that trains twice, it still holds the addresses that the
    ranks had before, and torch would connect to those.
    """
    address = f"[{env.master_addr}]" if ":" in env.master_addr else env.master_addr
    # srun sets none of the variables that env:// reads.
    url = f"tcp://{address}:{env.master_port}" if env.source == "slurm" else "env://"
    store, _, _ = next(dist.rendezvous(url, env.rank, env.world_size, timeout=timeout))
    store.set_timeout(timeout)
    life = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
    return dist.PrefixStore(f"life{life}/group{next(_groups_joined)}", store)


def _abort(backend: str) -> None:
    """Leave the group without a word to the others. An error in this must not hide the one that led here."""
    try:
        abort = getattr(dist.distributed_c10d, "_abort_process_group", None)
        if backend == "nccl" and abort is not None:
            abort()
        elif dist.is_initialized():  # the function may have left by itself
            dist.destroy_process_group()
    except Exception as error:
        log.debug("while leaving the process group after an error: %s", error)
