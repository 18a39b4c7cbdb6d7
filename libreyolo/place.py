"""Where a training happens: its directory, settled on rank 0, and found again when torchrun starts the ranks a second time."""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from pathlib import Path

from launch import restart, rundir, told_of_signals
from libreyolo import run, run_files
from libreyolo.assembly.parts import Seat
from libreyolo.engine.interruption import Interruption
from libreyolo.errors import UserError


@dataclass(frozen=True)
class Place:
    """Where a training happens.

    cwd: what relative paths count from. run_dir: the directory that the Hydra door settled, None to settle one below project/name. restarted:
    `run_dir` is that of an earlier life of this torchrun job. group: name of the sweep that the run belongs to.
    """

    cwd: Path
    run_dir: Path | None = None
    restarted: bool = False
    group: str = ""


def train_at(job: run.Job, seat: Seat, place: Place) -> run.Outcome:
    """Train on this rank in the directory that rank 0 settles; one that is new and stays without a run is removed again.

    Raises Interrupted, with everything saved, after SIGTERM, SIGUSR1 or SIGUSR2 to any rank.
    """
    made: list[Path] = []

    def settle() -> Path:
        directory = _settle(job, place)
        if directory != place.run_dir and job.resumed is None:
            made.append(directory)
        return directory

    interruption = Interruption()
    try:
        with told_of_signals(interruption.ask):
            return run.train(replace(job, group=place.group), seat, settle, interruption)
    except UserError:
        for directory in made:
            run_files.remove_unstarted(directory)
        raise


def _settle(job: run.Job, place: Place) -> Path:
    """Return the run directory: the resumed run's own, the one Hydra made, or a new one below project/name."""
    recipe = job.recipe
    with run_files.made_below(recipe.project):
        directory = rundir.settle(
            recipe.project,
            recipe.name,
            exist_ok=recipe.exist_ok or place.restarted,
            resume_dir=job.resumed.run_dir if job.resumed else None,
            explicit=place.run_dir,
        )
    if job.resumed is None and place.run_dir is None:
        restart.remember(os.environ, recipe.project, directory)
    return directory


def earlier_life(job: run.Job, place: Place) -> Path | None:
    """Return the directory that this run had before torchrun started its ranks again, None in a first life; for rank 0."""
    if job.resumed is not None:
        return None
    if place.run_dir is not None:
        return place.run_dir if place.restarted else None
    return restart.restart_directory(os.environ, job.recipe.project)
