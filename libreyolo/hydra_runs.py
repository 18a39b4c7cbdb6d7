"""Hydra's side of run directories and sweeps: where a job's files go, what is refused before Hydra writes, what a sweep says at its end."""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.utils import JobReturn, JobStatus
from hydra.experimental.callback import Callback
from omegaconf import DictConfig, OmegaConf, open_dict, read_write
from omegaconf.errors import OmegaConfBaseException

import launch
from launch import restart, rundir
from libreyolo import resume, run_files
from libreyolo.errors import UserError
from libreyolo.place import Place
from libreyolo.record.report.sweep_page import write_sweep_report
from libreyolo.record.shell import quoted

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class FailedJob:
    """A job of a sweep that ended by an exception."""

    number: int
    overrides: list[str]
    error: BaseException
    directory: Path


@dataclass
class _Process:
    """What this process has settled so far; Hydra asks for a directory many times, and one run has one."""

    run_dir: Path | None = None
    restarted: bool = False
    sweep_dir: Path | None = None
    compared_in: Path | None = None  # the sweep's directory, where a page is to compare its jobs
    num_jobs: int = 0
    failed: list[FailedJob] = field(default_factory=list)
    kept: ExitStack = field(default_factory=ExitStack)  # the run directory, from before Hydra writes into it until the process is done with it


_process = _Process()


def register() -> None:
    """Register the resolvers of `hydra.run.dir` and `hydra.sweep.dir`, and forget what an earlier run of this process settled."""
    global _process
    let_go()
    _process = _Process()
    OmegaConf.register_new_resolver("run_dir", _run_dir, replace=True)
    OmegaConf.register_new_resolver("sweep_dir", _sweep_dir, replace=True)


def place_of(run_dir: Path, cwd: Path, sweep_dir: Path | None = None) -> Place:
    """Return where a job of this process trains; `sweep_dir` where it is a job of a sweep, whose day and time then name its group."""
    group = "/".join(sweep_dir.absolute().parts[-2:]) if sweep_dir is not None else ""
    return Place(cwd, run_dir, restarted=_process.restarted and run_dir == _process.run_dir, group=group)


def let_go() -> None:
    """Let other jobs train in the run directory of this process."""
    _process.kept.close()


def settled() -> list[Path]:
    """Return the directories that this process has settled, of its run or its sweep."""
    return [directory for directory in (_process.run_dir, _process.sweep_dir) if directory is not None]


def summary() -> str | None:
    """Return what to say after a sweep in which jobs failed: one line for each. None where none did, or where jobs ran in other processes."""
    failed = _process.failed
    if not failed:
        return None
    lines = [f"{len(failed)} of {_process.num_jobs} jobs failed:"]
    for job in failed:
        first_line = (str(job.error).splitlines() or [""])[0]
        said = first_line if launch.is_one_sentence(job.error) else f"{type(job.error).__name__}: {first_line}"
        lines.append(f"  job {job.number} ({' '.join(job.overrides)}): {said}  [{job.directory / 'train.log'}]")
    return "\n".join(lines)


def write_report() -> Path | None:
    """Write the page that compares a sweep's jobs and return its path; None where there is no sweep, or no wish for it, or it cannot be written."""
    if _process.compared_in is None:
        return None
    try:
        return write_sweep_report(_process.compared_in)
    except Exception as error:
        log.warning("The sweep's report.html could not be written (%s: %s).", type(error).__name__, error)
        _process.compared_in = None  # said once
        return None


class HydraRuns(Callback):
    """Called by Hydra around runs and jobs (conf/config.yaml). Hydra turns a callback's exceptions into warnings, so a refusal is a SystemExit."""

    def on_run_start(self, config: DictConfig, **kwargs: Any) -> None:
        """Refuse a chosen directory that holds a run, and any in which another job trains, before Hydra writes its own files into it.

        Under srun nobody ends the other ranks, which wait for this one: it refuses when they have met, and until then Hydra writes nothing.
        """
        environment = launch.detect(os.environ)
        if environment is not None and environment.rank != 0:
            return
        try:
            directory = Path(str(config.hydra.run.dir)).absolute()
            is_new = _is_new_choice(config, directory)
            _process.kept.enter_context(launch.alone_in(directory))
            if is_new:
                restart.remember(os.environ, Path(str(config.project)).absolute(), directory)
        except OmegaConfBaseException:
            return  # the directory cannot be settled: Hydra meets that too, and the door says it
        except (UserError, launch.LaunchError) as error:
            if environment is None or environment.source != "slurm" or not isinstance(error, launch.RunDirectoryError):
                sys.exit(str(error))
            with read_write(config), open_dict(config):
                config.hydra.output_subdir = None

    def on_multirun_start(self, config: DictConfig, **kwargs: Any) -> None:
        """Settle one sweep directory for all jobs, in whatever process they run, and say what a sweep over devices means."""
        try:
            directory = rundir.make(Path(str(config.hydra.sweep.dir)).absolute())
        except OmegaConfBaseException:
            return  # as above
        except launch.LaunchError as error:
            sys.exit(str(error))
        holding = sorted(d for d in directory.glob("*") if rundir.is_run(d)) if directory.is_dir() else []
        if holding and not config.exist_ok:
            sys.exit(
                f"{directory} already holds the runs of a sweep, which would be overwritten: choose another hydra.sweep.dir or say exist_ok=true."
            )
        # A job's configuration is composed afresh from these; the resolver would make another directory in another process.
        with read_write(config), open_dict(config):
            config.hydra.overrides.hydra.append(f"hydra.sweep.dir={quoted(str(directory))}")
        _process.compared_in = directory if config.report else None
        note = _sweep_over_devices(list(config.hydra.overrides.task))
        if note:
            log.warning("%s", note)

    def on_job_end(self, config: DictConfig, job_return: JobReturn, **kwargs: Any) -> None:
        """Remember how the job ended, for the summary of a sweep, and take it into the sweep's page: a long sweep is looked at before its end."""
        _process.num_jobs += 1
        if job_return.status == JobStatus.FAILED and OmegaConf.select(config, "hydra.job.num") is not None:
            directory = Path(str(config.hydra.runtime.output_dir))
            error = job_return._return_value
            _process.failed.append(FailedJob(int(config.hydra.job.num), list(job_return.overrides or []), error, directory))
        write_report()


def _run_dir(wish: Any, project: str) -> str:
    if _process.run_dir is None:
        _process.run_dir = _settle_run_directory(wish, Path(project).absolute())
    return str(_process.run_dir)


def _settle_run_directory(wish: Any, project: Path) -> Path:
    """Return the directory for Hydra's files: the resumed run's own, that of the run which torchrun restarts, or a new one."""
    found = resume.find_checkpoint(wish, project, Path.cwd())
    if found is not None:
        return resume.run_dir_of(found).absolute()
    earlier = restart.restart_directory(os.environ, project)
    if earlier is not None:
        _process.restarted = True
        return earlier.absolute()
    with run_files.made_below(project):
        directory = rundir.new_time_directory(project, datetime.now())
        restart.remember(os.environ, project, directory)
    return directory


def _sweep_dir(project: str) -> str:
    if _process.sweep_dir is None:
        with run_files.made_below(project):
            _process.sweep_dir = rundir.new_time_directory(Path(project).absolute(), datetime.now())
    return str(_process.sweep_dir)


def _is_new_choice(config: DictConfig, directory: Path) -> bool:
    """Check a directory that the user chose (hydra.run.dir=...), and make it; return whether a run begins in it. One that the resolver settled is
    no choice."""
    if directory == _process.run_dir:
        return False
    project = Path(str(config.project)).absolute()
    found = resume.find_checkpoint(config.resume, project, Path.cwd())
    if found is not None:
        old = resume.run_dir_of(found).absolute()
        if old != directory:
            raise UserError(f"resume goes on in {old}, but hydra.run.dir={directory} names another directory: leave hydra.run.dir out.")
        return False
    earlier = restart.restart_directory(os.environ, project)
    _process.run_dir, _process.restarted = directory, earlier is not None and earlier.absolute() == directory
    if not _process.restarted:
        rundir.refuse_run(directory, exist_ok=bool(config.exist_ok))
        rundir.make(directory)
    return not _process.restarted


def _sweep_over_devices(overrides: Sequence[str]) -> str | None:
    """Return what `-m device=0,1` means, None where `device` is not swept."""
    for override in OverridesParser.create().parse_overrides(list(overrides)):
        if override.key_or_group == "device" and override.is_discrete_sweep():
            values = list(override.sweep_string_iterator())
            jobs = ", ".join(f"job {number}: device {value}" for number, value in enumerate(values))
            return (
                f"-m device={','.join(values)} is a sweep: {len(values)} jobs with one device each ({jobs}). "
                f"For one job on all of them write 'device=[{','.join(values)}]'."
            )
    return None
