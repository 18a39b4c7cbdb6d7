"""One call of a measurement that may need several: its arguments, its time, and the loop over what is missing."""

from __future__ import annotations

import argparse
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from benchmarks.peers.process import SECONDS_TO_LEAVE
from benchmarks.peers.store import Result, SettingsError, Store, machine

MARGIN = 2 * SECONDS_TO_LEAVE + 5  # seconds of the budget that are kept for ending a process and writing


@dataclass(frozen=True)
class Budget:
    """Seconds of a call. A row is started where at least half of its own limit is left, and never runs beyond the call's end."""

    seconds: float
    began: float

    @property
    def left(self) -> float:
        return self.seconds - MARGIN - (time.monotonic() - self.began)

    def allows(self, limit: float) -> bool:
        """Return whether a row that takes `limit` seconds at the most should be started now."""
        return self.left >= limit / 2


@dataclass(frozen=True)
class Task:
    """A row as the loop sees it. limit: the most seconds that it takes. lacks: why it can't be measured on this machine, "" where it can.

    prepare: makes what it needs where it is not there yet; not part of its limit. measure: seconds that are left -> its result, None where they
    were too few.
    """

    limit: float
    lacks: str
    prepare: Callable[[], object]
    measure: Callable[[float], Result | None]


def parser_of(program: str, description: str | None, names: Sequence[str]) -> argparse.ArgumentParser:
    """Return a parser with what every measurement takes."""
    parser = argparse.ArgumentParser(prog=f"python -m {program}", description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--only", nargs="+", choices=names, default=names, metavar="ROW", help=f"of {', '.join(names)}")
    parser.add_argument("--again", action="store_true", help="measure the rows of --only anew")
    parser.add_argument("--budget", type=float, default=float("inf"), help="seconds after which this call is over, whatever is missing")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--scratch", type=Path, default=Path(tempfile.gettempdir()) / "libreyolo-peers", help="where sets and run directories lie")
    parser.add_argument("--pictures", type=int, default=4096, help="of a generated set")
    parser.add_argument("--imgsz", type=int, help="input of every row; a row's own where not given")
    parser.add_argument("--workers", type=int, help="loader processes of a rank; a GPU's share of the cores where not given")
    return parser


@contextmanager
def _ended_like_ctrl_c() -> Iterator[None]:
    """Let SIGTERM end this call as Ctrl-C does: what it runs is ended with it."""

    def leave(number: int, frame: object) -> None:
        sys.exit(128 + number)

    before = signal.signal(signal.SIGTERM, leave)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def go_on(
    name: str,
    chosen: argparse.Namespace,
    settings: Mapping[str, Any],
    tasks: Mapping[str, Task],
    page: Callable[[Mapping[str, Result], Sequence[str]], str],
) -> int:
    """Measure what <out>/<name>.json does not hold, as far as the budget goes; return the number of rows that are missing then.

    page: the rows and the machines that they come from -> Markdown, written to <out>/<name>.md after every row.
    """
    budget = Budget(chosen.budget, time.monotonic())
    try:
        store = Store(chosen.out.resolve(), name, settings)
    except SettingsError as error:
        sys.exit(str(error))
    for row in store.missing(chosen.only, chosen.again):
        task = tasks[row]
        why = task.lacks or ("" if budget.allows(task.limit) else "too little of the budget is left")
        if why:
            print(f"{row}: not started, {why}", flush=True)
            continue
        print(f"{row} ...", flush=True)
        task.prepare()
        with _ended_like_ctrl_c():
            found = task.measure(budget.left)
        if found is None:
            print(f"{row}: the budget ended it; the next call measures it", flush=True)
            continue
        store.keep(row, replace(found, machine=machine()))
        (chosen.out / f"{name}.md").write_text(page(store.rows, store.machines))
        print(f"{row}: {found.state} {found.note}", flush=True)
    missing = store.missing(chosen.only, again=False)
    print(page(store.rows, store.machines))
    print(f"missing: {', '.join(missing) or 'nothing'}", flush=True)
    return len(missing)
