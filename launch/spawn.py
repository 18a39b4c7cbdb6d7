"""One function in N processes of this machine: start them, wait, give back what rank 0 returned."""

from __future__ import annotations

import contextlib
import logging
import multiprocessing
import os
import pickle
from collections.abc import Callable, Mapping
from datetime import timedelta
from multiprocessing import Pipe
from pathlib import Path
from typing import Any

import torch.multiprocessing
from torch.distributed import TCPStore

from launch import worker
from launch.errors import LaunchError
from launch.guard import check_main_guard, check_startable, guard_note
from launch.interrupts import Interrupts, sigint_blocked
from launch.output import RankOutput
from launch.owned_folder import owned_folder
from launch.payload import dumps
from launch.supervise import Supervisor

log = logging.getLogger(__name__)


def check_can_spawn(function: Callable[..., Any], args: tuple[Any, ...]) -> None:
    """Raise what `spawn_ddp_train` would raise before it starts a process; for callers with dear work to do before that."""
    check_main_guard()
    check_startable()
    dumps(function, args)


def spawn_ddp_train(
    function: Callable[..., Any],
    args: tuple[Any, ...],
    *,
    num_processes: int,
    guard: bool = True,
    log_tail_dir: str | Path | None = None,
    env: Mapping[str, str] | None = None,
    grace_seconds: float = 5.0,
    leave_seconds: float = 24.0,
) -> Any:
    """Call `function(*args)` in `num_processes` new processes and return what rank 0's call returned (it must be picklable).

    Each process has torchrun's variables set (RANK, LOCAL_RANK, WORLD_SIZE, LOCAL_WORLD_SIZE, MASTER_ADDR, MASTER_PORT), and `env` besides;
    the caller's environment, signal handlers and CUDA state are left as they were. Nobody chooses a port: this process holds the rendezvous
    store on one that the system gave it. Rank 0 writes to this process's outputs, the others to files in a temporary directory (made in
    `log_tail_dir`, by default the system's) that is gone afterwards in every case.

    Raises, before any process starts: SpawnGuardError (`guard`; a script without a main guard, or one that can't be imported) and
    PayloadError (names what can't be pickled). Raises, after every process has ended: the first failing rank's exception itself if it is a
    user's mistake, else RankFailedError from it; KeyboardInterrupt on Ctrl-C. On SIGTERM, SIGUSR1 and SIGUSR2, whichever process got it, the ranks
    have `leave_seconds` to save and to leave with exit code 128 + its number, with which SystemExit is raised here. Otherwise processes are told
    to leave at once and killed `grace_seconds` later, loader workers included; when this process is killed, they end by themselves.
    """
    if num_processes < 1:
        raise LaunchError(f"num_processes={num_processes} must be 1 or more.")
    if guard:
        check_main_guard()
    check_startable()
    payload = dumps(function, args)
    note = guard_note(os.getpid())
    note.unlink(missing_ok=True)
    with contextlib.ExitStack() as stack:
        interrupts = stack.enter_context(Interrupts(num_processes))
        stack.callback(note.unlink, missing_ok=True)
        directory = stack.enter_context(owned_folder("launch-", log_tail_dir))
        store = _hold_store(num_processes)
        start_method = multiprocessing.get_start_method()
        job = worker.Job(directory, num_processes, store.port, os.getpid(), _num_cores(), start_method, dict(env or {}))
        job.payload.write_bytes(payload)
        output = RankOutput(directory)
        stack.callback(output.close)
        supervisor = Supervisor(job, output, interrupts, note, grace_seconds, leave_seconds)
        stack.callback(supervisor.end)
        log.info("Starting %d processes", num_processes)
        for rank in range(num_processes):
            _start(rank, job, output, supervisor)
        supervisor.wait()
        return pickle.loads(job.done(0).read_bytes())


def _start(rank: int, job: worker.Job, output: RankOutput, supervisor: Supervisor) -> None:
    """Start one rank and hand it to the supervisor."""
    supervisor.check_interrupts()
    lifeline, held = Pipe(duplex=False)
    supervisor.lifelines.append(held)
    _start_resource_tracker()
    with lifeline, output.given_to(rank), sigint_blocked():
        # One call per rank, because each has outputs of its own; torch passes the index 0 each time.
        context = torch.multiprocessing.spawn(worker.enter, args=(rank, job, lifeline), nprocs=1, join=False)
        supervisor.processes.extend(context.processes)


def _hold_store(num_processes: int) -> TCPStore:
    """Serve the rendezvous store on a port chosen by the system. The port is bound from the beginning: there is no moment to lose it in."""

    def serve(use_libuv: bool) -> TCPStore:
        return TCPStore("127.0.0.1", 0, num_processes, is_master=True, timeout=timedelta(minutes=5), wait_for_workers=False, use_libuv=use_libuv)

    try:
        return serve(use_libuv=True)
    except RuntimeError as error:
        if "libuv" not in str(error):
            raise
        return serve(use_libuv=False)  # builds without it (Windows)


def _start_resource_tracker() -> None:
    """Start multiprocessing's own helper process now, while the outputs are this process's: it lives on after the job."""
    if os.name == "posix":
        from multiprocessing import resource_tracker

        resource_tracker.ensure_running()


def _num_cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
