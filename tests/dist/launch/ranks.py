"""What the ranks of the tests do. Importable by workers; imports no pytest, which would cost each of them a second."""

from __future__ import annotations

import atexit
import multiprocessing
import os
import signal
import sys
import threading
import time
from pathlib import Path

import torch
from torch import distributed as dist
from torch.utils.data import DataLoader

from launch.environment import detect
from launch.group import process_group
from launch.leaving import told_of_signals


class UserError(ValueError):
    """Like libreyolo's: recognised by its name."""


class Pictures(torch.utils.data.Dataset):
    def __len__(self) -> int:
        return 1_000_000

    def __getitem__(self, index: int) -> int:
        return os.getpid()


def rank() -> int:
    return int(os.environ["RANK"])


def facts(start: float) -> dict:
    """Return what rank 0 sees, and the sum of start + rank over all ranks."""
    env = detect(os.environ)
    for _ in range(2):  # a script may train twice
        with process_group(env, device="cpu") as backend:
            total = torch.tensor([start + env.rank])
            dist.all_reduce(total)
    print(f"rank {env.rank} says hello")
    return {
        "sum": total.item(),
        "backend": backend,
        "env": env,
        "initialized": dist.is_initialized(),
        "threads": torch.get_num_threads(),
        "start_method": multiprocessing.get_start_method(),
        "omp": os.environ["OMP_NUM_THREADS"],
        "extra": os.environ.get("EXTRA"),
    }


def raise_on_rank_1(error_type: str) -> None:
    """Rank 1 raises while rank 0 waits for it in a collective."""
    with process_group(detect(os.environ), device="cpu"):
        if rank() == 1:
            print("rank 1 read its last picture", flush=True)
            raise {"UserError": UserError, "KeyError": KeyError}[error_type]("data/7.jpg is broken")
        dist.all_reduce(torch.zeros(1))


def leave_on_rank_1(how: str, pids: str) -> None:
    """Rank 1 leaves without a word, its loader worker running, while rank 0 waits for it in a collective."""
    with process_group(detect(os.environ), device="cpu"):
        note_pids(Path(pids))
        if rank() == 1:
            print("about to leave", flush=True)
            if how == "sigkill":
                os.kill(os.getpid(), signal.SIGKILL)
            os._exit(3)
        dist.all_reduce(torch.zeros(1))


def train_for_ever(directory: str) -> None:
    """Train until somebody ends it; touch `cleaned-<rank>` when leaving."""
    where = Path(directory)
    try:
        with process_group(detect(os.environ), device="cpu"):
            note_pids(where)
            while True:
                dist.all_reduce(torch.zeros(1))
                time.sleep(0.01)  # a step of a training; nobody waits for it
    finally:
        (where / f"cleaned-{rank()}").touch()


def hear_nothing(directory: str) -> None:
    """Wait for ever, whatever signal asks to leave."""
    with told_of_signals(lambda number: (Path(directory) / f"heard-{rank()}").touch()):
        (Path(directory) / f"waiting-{rank()}").touch()
        threading.Event().wait()


def note_pids(directory: Path) -> None:
    """Start a loader worker and write this rank's and its number to `pids-<rank>`; return when every rank has."""
    global loader  # it lives as long as the rank
    loader = iter(DataLoader(Pictures(), batch_size=None, num_workers=1, multiprocessing_context="fork"))
    part = directory / f"part-{rank()}"
    part.write_text(f"{os.getpid()} {next(loader)}")
    part.rename(directory / f"pids-{rank()}")
    dist.barrier()


def say_where(number: int) -> tuple[int, int, bool]:
    print("said by the rank")
    print("complained by the rank", file=sys.stderr)
    return number, int(os.environ["MASTER_PORT"]), os.isatty(1)


def return_but_stay(number: int) -> int:
    """Return while a thread keeps the process from ending."""
    threading.Thread(target=threading.Event().wait).start()
    return number


def be_told_while_ending(how: str) -> str:
    """Return, fail, or leave because of a signal, which comes (once more) when the process is on its way out."""
    atexit.register(os.kill, os.getpid(), signal.SIGUSR2)
    if how == "leave":
        raise SystemExit(128 + signal.SIGUSR2)
    if how == "fail":
        raise ValueError("its own mistake")
    return how


def spawn_from_here(queue) -> None:
    """Start one rank from a process that is itself spawned, and whose import is over."""
    from launch.spawn import spawn_ddp_train

    queue.put(spawn_ddp_train(say_where, (7,), num_processes=1)[0])
