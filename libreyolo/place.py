"""Where a training happens: its ranks; its directory, settled on rank 0, and found again when torchrun starts the ranks a second time."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, replace
from datetime import timedelta
from pathlib import Path

import torch

import launch
from launch import restart, rundir
from libreyolo import autobatch, run, run_files
from libreyolo.assembly.parts import Seat
from libreyolo.engine import collectives, determinism
from libreyolo.engine.current_device import current
from libreyolo.engine.interruption import Interruption
from libreyolo.errors import UserError


@dataclass(frozen=True)
class Place:
    """Where a training happens.

    cwd: what relative paths count from. run_dir: the directory that the Hydra door settled, None to settle one below project/name. restarted:
    `run_dir` is that of an earlier life of this torchrun job. group: name of the sweep that the run belongs to. kept: the directory that the process
    which started this one keeps for the two of them (launch/run_lock.py).
    """

    cwd: Path
    run_dir: Path | None = None
    restarted: bool = False
    group: str = ""
    kept: Path | None = None


def keep_known(job: run.Job, place: Place, stack: ExitStack) -> Path | None:
    """Keep other jobs out of the run directory until `stack` ends, where it is there before the training begins, and return it; else None.

    It is that of a resumed run, Hydra's, or the one that exist_ok names. Raises RunDirectoryError where another job trains in it.
    """
    recipe = job.recipe
    known = job.resumed.run_dir if job.resumed else place.run_dir or (Path(recipe.project) / recipe.name if recipe.exist_ok else None)
    if known is None or not known.is_dir():
        return None
    stack.enter_context(launch.alone_in(known, joining=place.kept is not None))
    return known


def train_alone(job: run.Job, place: Place, device: torch.device) -> run.Outcome:
    """Train in this process, the only rank."""
    job = autobatch.settled(job, device, 1)
    launch.check_divisible(job.recipe.batch, 1)
    with current(device), determinism.kernels(deterministic=job.recipe.deterministic, cudnn_benchmark=job.recipe.cudnn_benchmark):
        return train_at(job, Seat(0, 1, 1, device), place)


def train_as_rank(
    job: run.Job, place: Place, environment: launch.RankEnvironment, going_on: Callable[[Path, bool], run.Job], stack: ExitStack
) -> run.Outcome:
    """Train in this process, one of several ranks that somebody else started.

    going_on: makes the job anew from a checkpoint; told whether torchrun has started the ranks again. stack: rank 0 keeps the run directory in it.
    """
    recipe = job.recipe
    name, note = launch.check_device(environment, recipe.device, cuda_count=torch.cuda.device_count())
    device, job = torch.device(name), replace(job, note="\n".join(filter(None, (job.note, note))))
    measured = autobatch.on_rank_0(job, device, rank=environment.rank, world_size=environment.world_size)
    if recipe.batch != autobatch.MEASURE:
        launch.check_divisible(recipe.batch, environment.world_size)
    timeout = timedelta(minutes=recipe.ddp_timeout)
    with (
        launch.process_group(environment, backend=recipe.backend, timeout=timeout, device=name),
        determinism.kernels(deterministic=recipe.deterministic, cudnn_benchmark=recipe.cudnn_benchmark),
    ):
        seat = Seat(environment.rank, environment.world_size, environment.local_world_size, device)
        job = autobatch.agreed(job, measured, device)
        earlier = collectives.broadcast_object(_earlier_life(job, place) if seat.rank == 0 else None)
        if earlier is not None:
            place = replace(place, run_dir=earlier, restarted=True)
        run.on_rank_0(lambda: keep_known(job, place, stack), seat)
        path = job.resumed.path if job.resumed else earlier and earlier / "weights" / "last.pt"
        # Read when nobody else can write it any more; a process that keeps the directory had it read after that.
        if path and path.exists() and place.kept is None:
            job = replace(going_on(path, earlier is not None), note=job.note)
        return train_at(job, seat, place)


def train_at(job: run.Job, seat: Seat, place: Place) -> run.Outcome:
    """Train on this rank in the directory that rank 0 settles, and alone there; one that is new and stays without a run is removed again.

    Raises Interrupted, with everything saved, after SIGTERM, SIGUSR1 or SIGUSR2 to any rank.
    """
    made: list[Path] = []

    def settle() -> Path:
        directory = _settle(job, place)
        stack.enter_context(launch.alone_in(directory))
        if job.resumed is None and place.run_dir is None:
            with run_files.made_below(job.recipe.project):
                restart.remember(os.environ, job.recipe.project, directory)
        if directory != place.run_dir and job.resumed is None:
            made.append(directory)
        return directory

    interruption = Interruption()
    with ExitStack() as stack:
        try:
            with launch.told_of_signals(interruption.ask):
                return run.train(replace(job, group=place.group), seat, settle, interruption)
        except UserError:
            for directory in made:
                run_files.remove_unstarted(directory)
            raise


def _settle(job: run.Job, place: Place) -> Path:
    """Return the run directory: the resumed run's own, the one Hydra made, or a new one below project/name."""
    recipe = job.recipe
    with run_files.made_below(recipe.project):
        return rundir.settle(
            recipe.project,
            recipe.name,
            exist_ok=recipe.exist_ok or place.restarted,
            resume_dir=job.resumed.run_dir if job.resumed else None,
            explicit=place.run_dir,
        )


def _earlier_life(job: run.Job, place: Place) -> Path | None:
    """Return the directory that this run had before torchrun started its ranks again, None in a first life; for rank 0."""
    if job.resumed is not None:
        return None
    if place.run_dir is not None:
        return place.run_dir if place.restarted else None
    return restart.restart_directory(os.environ, job.recipe.project)
