"""The page of a sweep: its jobs compared, best first, each with a link to its own page."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Any
from urllib.parse import quote

from libreyolo.record import shell
from libreyolo.record.atomic import write_text
from libreyolo.record.numbers import number
from libreyolo.record.progress import duration
from libreyolo.record.report.html import Markup, element, text
from libreyolo.record.report.page import Section, badge, command, page, tiles
from libreyolo.record.report.parallel import parallel_coordinates
from libreyolo.record.report.run_page import PAGE
from libreyolo.record.report.sweep_facts import SweepFacts, SweepJob, as_number, read_sweep
from libreyolo.record.report.table import Cell, table


def write_sweep_report(sweep_dir: Path) -> Path | None:
    """Write report.html into a sweep directory and return its path; None where no job has begun. Raises OSError where that is not possible."""
    sweep = read_sweep(Path(sweep_dir))
    if not sweep.jobs:
        return None
    path = Path(sweep_dir) / PAGE
    write_text(path, sweep_report(sweep))
    return path


def sweep_report(sweep: SweepFacts) -> str:
    """Return the page."""
    broken = [job for job in sweep.jobs if job.facts.state != "completed"]
    sections = [
        Section("jobs", "Jobs, best first", _jobs(sweep)),
        Section("parallel", f"Swept values against {', '.join(sweep.metric_names)}", parallel_coordinates(sweep)),
        Section("broken", "Jobs that did not complete", _broken(broken)),
        Section("constant", "The same in every job", _constant(sweep)),
    ]
    keys = ", ".join(sweep.swept) if len(sweep.swept) <= 3 else f"{len(sweep.swept)} keys"
    title = f"Sweep of {keys or 'one command'}: {len(sweep.jobs)} job{'s' if len(sweep.jobs) > 1 else ''}"
    return page(title, _head(sweep, title), sections)


def _head(sweep: SweepFacts, title: str) -> Markup:
    best = sweep.jobs[0]
    states = [job.facts.state for job in sweep.jobs]
    seconds = sum(job.facts.seconds or 0.0 for job in sweep.jobs)
    shown: list[tuple[str, object]] = [("jobs", len(sweep.jobs))]
    shown += [(state, states.count(state)) for state in dict.fromkeys(sorted(states))]
    shown.append(("duration of all", duration(seconds)))
    if best.facts.metric is not None:
        shown.append((f"best {best.facts.metric_name}", number(best.facts.metric)))
        shown += [(f"best {key}", value or number(None)) for key, value in best.values.items()]
    return text([element("h1", title), element("p", str(sweep.sweep_dir), class_="where"), tiles(shown)])


def _jobs(sweep: SweepFacts) -> Markup:
    several = len(sweep.metric_names) > 1
    metric = "best metric" if several or not sweep.metric_names else sweep.metric_names[0]
    head = ["job", *sweep.swept, metric, *(["of"] if several else []), "epoch", "state", "duration"]
    rows = []
    for job in sweep.jobs:
        facts = job.facts
        seconds = Cell(None if facts.seconds is None else duration(facts.seconds), facts.seconds)
        row: list[Any] = [_link(job), *(_value(job.values[key]) for key in sweep.swept), facts.metric, *([facts.metric_name] if several else [])]
        rows.append([*row, facts.status.get("best_epoch"), badge(facts.state), seconds])
    marked = 0 if sweep.jobs[0].facts.metric is not None else None
    note = element("p", "Jobs of different tasks are judged by different metrics: compare only those of one.", class_="none") if several else None
    return text([note, table(head, rows, marked=marked)])


def _link(job: SweepJob) -> Markup:
    """The job's name, a link where it has a page."""
    there = (job.facts.run_dir / PAGE).exists()
    return element("a", job.name, href=f"{quote(job.name)}/{PAGE}") if there else text(job.name)


def _value(value: str) -> Cell:
    """A swept value as it was typed, sorted as a number where it is one."""
    return Cell(value or None, as_number(value))


def _broken(jobs: list[SweepJob]) -> Markup:
    rows = [[job.name, badge(job.facts.state), job.facts.error or None, element("code", str(job.facts.run_dir / "train.log"))] for job in jobs]
    return table(["job", "state", "reason", "log"], rows, sortable=False, class_="reasons")


def _constant(sweep: SweepFacts) -> Markup:
    best = next((job for job in sweep.jobs if job.facts.metric is not None), None)
    typed = command("Typed", shlex.join(sweep.constant)) if sweep.constant else None
    words = best.facts.overrides if best else []
    again = command("The best job again, as a single run", shell.train(*words)) if words else None
    return text([typed, again])
