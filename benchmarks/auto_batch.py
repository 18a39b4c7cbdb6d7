"""What batch=-1 chooses, and whether the training then stays within it.

    python -m benchmarks.auto_batch --out FOLDER --budget 540       # again until nothing is missing
    python -m benchmarks.auto_batch --out FOLDER --only yolo9s resnet50-2-gpus
    python -m benchmarks.auto_batch --out FOLDER --device cpu --pictures 24 --imgsz 64 --workers 0    # does it run?

Each row is the command `train.py batch=-1` for two epochs with validations over the whole training set, at the recipe's own size. What was chosen,
predicted and reached while measuring is what its train.log says; what the training then reached is the memory column of its second epoch, which
knows the first one's validation; the process holds nothing else, so it compares with what was allowed, the part of the free memory that a step may
use. "-half-full": another process holds half of the device's free memory meanwhile, so about half as much is allowed.
FOLDER/auto_batch.json and FOLDER/auto_batch.md are written after every row; a call goes on with the rows that are missing.
"""

from __future__ import annotations

import argparse
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch

from benchmarks.peers import sets
from benchmarks.peers.call import Task, go_on, parser_of
from benchmarks.peers.process import Ended, run
from benchmarks.peers.rows import FEW, ROOT, word
from benchmarks.peers.store import Result, Values, available_cores, markdown, shown
from libreyolo.record.tables import read_results

GIB = 2**30
LIMIT = 240.0  # seconds of a row
NBS = 64
# What autobatch.py writes into the log.
CHOSEN = re.compile(
    r"(?P<fit>\d+) pictures fit on a device \((?:predicted (?P<predicted>[\d.]+), )?reached (?P<reached>[\d.]+) GiB\); global batch (?P<batch>\d+)"
)
FIXED = re.compile(r"batch=-1: memory is measured on CUDA devices only; on \w+ the global batch is (?P<batch>\d+)")
ALLOWED = re.compile(r"batch=-1: .* on \S+, (?P<allowed>[\d.]+) GiB for a step")
FULL = re.compile(r"CUDA out of memory|OutOfMemoryError")

# Takes half of what is free, says so, and holds it until its input ends.
HOLDER = """
import sys, torch
free, _ = torch.cuda.mem_get_info(0)
held = torch.empty(free // 2, dtype=torch.uint8, device="cuda:0").fill_(1)
torch.cuda.synchronize()
print("held", held.numel(), flush=True)
sys.stdin.read()
"""


@dataclass(frozen=True)
class Subject:
    """A model and what it trains on. few, repeat: as those of a row of benchmarks.peers; an epoch must be longer than the batch that fits."""

    model: str
    data: Callable[[Path, int], Path]
    few: bool = False
    repeat: int = 1


@dataclass(frozen=True)
class Row:
    """One training. nbs: its nominal batch. half_full: whether someone else sits on the device."""

    subject: Subject
    gpus: int = 1
    nbs: int | None = None
    half_full: bool = False

    @property
    def name(self) -> str:
        words = (f"{self.gpus}-gpus" if self.gpus > 1 else "", f"nbs{self.nbs}" if self.nbs else "", "half-full" if self.half_full else "")
        return "-".join(word for word in (self.subject.model, *words) if word)

    @property
    def on_one(self) -> str:
        """The name of the same row on one GPU."""
        return replace(self, gpus=1).name


SUBJECTS = [
    Subject("yolo9s", sets.judged_detection),
    Subject("rtdetrr18", sets.judged_detection),
    Subject("resnet50", sets.class_folders, repeat=4),
    Subject("unets", sets.masks, few=True),  # its validation is on large pictures
]
ROWS = [
    *(Row(subject) for subject in SUBJECTS),
    *(Row(subject, half_full=True) for subject in SUBJECTS),
    *(Row(subject, nbs=NBS) for subject in SUBJECTS),
    *(Row(subject, gpus=2) for subject in SUBJECTS),
    *(Row(subject, gpus=2, nbs=NBS) for subject in SUBJECTS),
]
HEAD = (
    "row",
    "fit on a device",
    "global batch",
    "to one GPU's",
    "allowed GiB",
    "predicted GiB",
    "reached GiB",
    "training reached GiB",
    "out of memory",
    "note",
)


def read_log(text: str) -> Values:
    """Return what the log of a training says of its batch: "batch", and where it was measured "fit", "allowed", "predicted", "reached" (GiB)."""
    for pattern in (CHOSEN, FIXED):
        found = pattern.search(text)
        if found:
            allowed = ALLOWED.search(text)
            given = {**found.groupdict(), **(allowed.groupdict() if allowed else {})}
            return {name: float(value) for name, value in given.items() if value}
    return {}


def outcome(ended: Ended, run_dir: Path) -> Result:
    """Return the row of a training that has ended, from its log and its results.csv."""
    log = run_dir / "train.log"
    text = log.read_text(errors="replace") if log.exists() else ""
    values = read_log(text)
    rows = read_results(run_dir / "results.csv")
    if rows and any(row["system/gpu_memory_gb"] for row in rows):
        values["trained"] = max(float(row["system/gpu_memory_gb"] or 0) for row in rows) * 1e9 / GIB
    failed = ended.code != 0
    values["full"] = "yes" if failed and any(FULL.search(line) for line in (*text.splitlines()[-30:], *ended.tail)) else "no"
    if ended.code is None:
        return Result("cut off", values, f"after {LIMIT:.0f} s", ended.tail)
    if failed:
        return Result("failed", values, f"exit {ended.code}: {ended.tail[-1].strip()[:120] if ended.tail else ''}", ended.tail)
    return Result("done", values)


def make_data(row: Row, chosen: argparse.Namespace) -> Path:
    """Return what the row trains on, made where it is not there."""
    return row.subject.data(sets.below(chosen.scratch), min(chosen.pictures, FEW) if row.subject.few else chosen.pictures)


def measure(row: Row, chosen: argparse.Namespace, left: float) -> Result | None:
    """Train; None where the call's time, not the row's, was too short."""
    data = make_data(row, chosen)
    run_dir = chosen.scratch.resolve() / "runs" / f"auto-batch-{row.name}"
    shutil.rmtree(run_dir, ignore_errors=True)
    words = [f"{name}={word(value)}" for name, value in keys_of(row, chosen, data, run_dir).items()]
    with someone_else() if row.half_full else nullcontext():
        ended = run([sys.executable, "train.py", *words], cwd=ROOT, limit=min(LIMIT, left))
    found = outcome(ended, run_dir)
    shutil.rmtree(run_dir / "weights", ignore_errors=True)
    return None if ended.code is None and left < LIMIT else found


def keys_of(row: Row, chosen: argparse.Namespace, data: Path, run_dir: Path) -> Mapping[str, Any]:
    """Return the arguments of train.py."""
    place: dict[str, Any] = {"device": list(range(row.gpus)) if row.gpus > 1 else 0}
    if chosen.device == "cpu":
        place = {"device": "cpu", **({"nproc": row.gpus} if row.gpus > 1 else {})}
    workers = chosen.workers if chosen.workers is not None else max(len(available_cores()) // max(torch.cuda.device_count(), 1), 1)
    size = {"imgsz": chosen.imgsz} if chosen.imgsz else {}
    subject = row.subject
    length = {"min_samples": chosen.pictures * subject.repeat} if subject.repeat > 1 else {}
    return {
        "model": subject.model, "data": data, "batch": -1, "nbs": row.nbs, "epochs": 2, "eval_interval": 1, "save_plots": False, "report": False,
        "save_period": 0, "workers": workers, **length, **size, **place, "hydra.run.dir": run_dir,
    }  # fmt: skip


@contextmanager
def someone_else() -> Iterator[None]:
    """Another process holds half of the first device's free memory."""
    process = subprocess.Popen([sys.executable, "-c", HOLDER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        if not process.stdout.readline().startswith("held"):
            raise RuntimeError("the process that should hold half of the device's memory did not start")
        yield
    finally:
        process.communicate()


def table(found: Mapping[str, Result], machines: Sequence[str]) -> str:
    """Return the rows as Markdown."""
    lines = []
    for row in ROWS:
        if row.name not in found:
            continue
        result, values = found[row.name], dict(found[row.name].values)
        one = found.get(row.on_one)
        if row.gpus > 1 and one and "batch" in one.values and "batch" in values:
            values["factor"] = float(values["batch"]) / float(one.values["batch"])
        forms = (("fit", ".0f"), ("batch", ".0f"), ("factor", ".2f"), *((name, ".2f") for name in ("allowed", "predicted", "reached", "trained")))
        cells = [shown(values, name, form) for name, form in forms]
        lines.append([row.name, *cells, shown(values, "full", "s"), result.note if result.state == "done" else f"{result.state}: {result.note}"])
    where = f"Measured on {'; '.join(machines)}.\n\n" if machines else ""
    return where + markdown(HEAD, lines)


def lacks(row: Row, device: str) -> str:
    """Return why the row can't be measured here; "" where it can."""
    if device == "cpu":
        return "half-full is for GPUs" if row.half_full else ""
    count = torch.cuda.device_count()
    return f"it needs {row.gpus} GPU(s), here are {count}" if row.gpus > count else ""


def main(words: Sequence[str] | None = None) -> int:
    """Measure what is missing; return the number of rows that still are."""
    chosen = parser_of("benchmarks.auto_batch", __doc__, [row.name for row in ROWS]).parse_args(words)
    settings = {name: getattr(chosen, name) for name in ("device", "pictures", "imgsz")}
    tasks = {row.name: Task(LIMIT, lacks(row, chosen.device), partial(make_data, row, chosen), partial(measure, row, chosen)) for row in ROWS}
    return go_on("auto_batch", chosen, settings, tasks, table)


if __name__ == "__main__":
    main()
