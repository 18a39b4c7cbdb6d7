"""What a sweep directory says about its jobs."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from libreyolo.record.report.facts import RunFacts, read_run, split_override

# What a job leaves first, by the place where Hydra or the run itself puts it; any of them makes a directory a job's.
JOB_FILES = (".hydra/overrides.yaml", "status.json", "train.log")


@dataclass(frozen=True)
class SweepJob:
    """One job: its directory's name below the sweep's, its run, and the values of the swept keys by key ("" where its command has none)."""

    name: str
    facts: RunFacts
    values: dict[str, str]


@dataclass(frozen=True)
class SweepFacts:
    """A sweep: its jobs best first, those without a metric last; `swept` are the keys that do not have one value in all of them.

    `constant` are the other things that were typed. Metrics are those by which the runs chose their best epochs: the larger, the better.
    """

    sweep_dir: Path
    jobs: list[SweepJob]
    swept: list[str]
    constant: list[str]

    @property
    def metric_names(self) -> list[str]:
        """The metrics that jobs were judged by; more than one where they are of different tasks."""
        return list(dict.fromkeys(job.facts.metric_name for job in self.jobs if job.facts.metric is not None))


def read_sweep(sweep_dir: Path) -> SweepFacts:
    """Return what is known of the sweep in `sweep_dir`; no jobs where none has begun."""
    found = {file.parents[1 if "/" in name else 0] for name in JOB_FILES for file in Path(sweep_dir).rglob(name)}
    found.discard(Path(sweep_dir))
    directories = sorted((d for d in found if not found & set(d.parents)), key=_natural)  # what lies inside a job is no job
    runs = [(directory, read_run(directory)) for directory in directories]
    typed = [dict(split_override(override) for override in run.overrides) for _, run in runs]
    keys = list(dict.fromkeys(key for each in typed for key in each))
    swept = [key for key in keys if len({each.get(key) for each in typed}) > 1]
    constant = [f"{key}={typed[0][key]}" for key in keys if key not in swept]
    jobs = [
        SweepJob(directory.relative_to(sweep_dir).as_posix(), run, {key: each.get(key, "") for key in swept})
        for (directory, run), each in zip(runs, typed, strict=True)
    ]
    best_first = sorted(jobs, key=lambda job: -job.facts.metric if job.facts.metric is not None else float("inf"))
    return SweepFacts(Path(sweep_dir), best_first, swept, constant)


def as_number(value: str) -> float | None:
    """Return a swept value as a number, None where it is not a finite one."""
    try:
        found = float(value)
    except ValueError:
        return None
    return found if abs(found) < float("inf") else None


def _natural(path: Path) -> list[tuple[int, int, str]]:
    """Sort key by which job 10 comes after job 9."""
    return [(0, int(part), "") if part.isdigit() else (1, 0, part) for part in re.split(r"(\d+)", str(path))]
