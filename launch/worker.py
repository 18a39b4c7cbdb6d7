"""The inside of one worker process: become a rank, call the function, report.

A report is a file in the job's directory: `rank<N>.started` when the import of the script is over, `rank<N>.done` when the function
returned (rank 0's holds the result), `rank<N>.error` when it raised, `rank<N>.left` (its exit code) when a signal asked it to leave. A rank
that ends with none of these was killed or left by itself.
"""

from __future__ import annotations

import multiprocessing
import os
import pickle
import time
import traceback
from collections.abc import Mapping
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch

from launch.environment import SPAWNED
from launch.leaving import EXIT_CODES, hear_no_more
from launch.lifeline import settle_in

LOADING = "loading what was sent"
TRAINING = "calling the function"


@dataclass(frozen=True)
class Job:
    """What a worker is told at its start; small, because the parent waits until the child has read it.

    env: extra environment variables. cores: how many cores all ranks share. start_method: multiprocessing's in the parent.
    """

    directory: Path
    num_processes: int
    master_port: int
    parent_pid: int
    cores: int
    start_method: str
    env: Mapping[str, str]

    @property
    def payload(self) -> Path:
        return self.directory / "payload.pkl"

    def started(self, rank: int) -> Path:
        return self.directory / f"rank{rank}.started"

    def done(self, rank: int) -> Path:
        return self.directory / f"rank{rank}.done"

    def error(self, rank: int) -> Path:
        return self.directory / f"rank{rank}.error"

    def left(self, rank: int) -> Path:
        return self.directory / f"rank{rank}.left"


@dataclass(frozen=True)
class Report:
    """An exception of a rank.

    `pickled` is the exception itself, None where it doesn't survive the trip; `when` is on the machine's clock.
    """

    type_name: str
    message: str
    trace: str
    stage: str
    when: float
    pickled: bytes | None


def enter(_index: int, rank: int, job: Job, lifeline: Connection) -> None:
    """Run the job's function as `rank`; the target of torch.multiprocessing.spawn."""
    settle_in(lifeline, job.parent_pid)
    stage = LOADING
    try:
        job.started(rank).touch()
        become_rank(rank, job)
        function, args = pickle.loads(job.payload.read_bytes())
        stage = TRAINING
        result = function(*args)
        hear_no_more()
        _write(job.done(rank), pickle.dumps(result if rank == 0 else None))
    except BaseException as error:
        hear_no_more()
        if isinstance(error, SystemExit) and error.code in EXIT_CODES:
            _write(job.left(rank), str(error.code).encode())  # sooner than the exit code, which a crowded machine takes seconds to show
            raise
        when = time.monotonic()
        _write(job.error(rank), pickle.dumps(_report(error, stage, when)))
        raise SystemExit(1) from error


def become_rank(rank: int, job: Job) -> None:
    """Set torchrun's variables in this process, so that the function walks the path that it would under torchrun.

    Processes that the rank starts, its loader workers, are started as the parent would: multiprocessing leaves a spawned process with the method
    "spawn", by which each worker imports torch and the script anew while the rank waits for it, two seconds for every one of them.
    """
    multiprocessing.set_start_method(job.start_method, force=True)
    os.environ.update(job.env)
    os.environ.update(
        {
            "RANK": str(rank),
            "LOCAL_RANK": str(rank),
            "WORLD_SIZE": str(job.num_processes),
            "LOCAL_WORLD_SIZE": str(job.num_processes),
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(job.master_port),
            # The parent holds the store, as torchrun's agent does; no rank binds a port.
            "TORCHELASTIC_USE_AGENT_STORE": "True",
            # Some releases of torch read it beside the line above.
            "TORCHELASTIC_RESTART_COUNT": "0",
            SPAWNED: "1",
        }
    )
    if "OMP_NUM_THREADS" not in os.environ:
        num_threads = max(1, job.cores // job.num_processes)
        os.environ["OMP_NUM_THREADS"] = str(num_threads)  # for what the rank starts itself
        torch.set_num_threads(num_threads)  # torch read the variable when it was imported, before this line


def _report(error: BaseException, stage: str, when: float) -> Report:
    try:
        pickled: bytes | None = pickle.dumps(error)
        if type(pickle.loads(pickled or b"")) is not type(error):
            pickled = None
    except Exception:  # a constructor with arguments of its own, a tensor on a broken device: the text must do
        pickled = None
    trace = "".join(traceback.format_exception(type(error), error, _below_enter(error)))
    return Report(type(error).__name__, str(error), trace.rstrip(), stage, when, pickled)


def _below_enter(error: BaseException) -> Any:
    """Return the traceback without this file's own frame."""
    trace = error.__traceback__
    return trace.tb_next if trace is not None and trace.tb_next is not None else trace


def _write(path: Path, content: bytes) -> None:
    """Write so that the file exists only when it is whole: the parent looks at it while this process goes on."""
    part = path.with_suffix(path.suffix + ".part")
    part.write_bytes(content)
    part.replace(path)
