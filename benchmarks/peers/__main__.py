"""Ours and the published trainers side by side, in one run on one machine.

    python -m benchmarks.peers --out FOLDER --budget 540 --peer-python PYTHON --peer-site FOLDER     # again until nothing is missing
    python -m benchmarks.peers --out FOLDER --only ours ours-no-aux ultralytics
    python -m benchmarks.peers --out FOLDER --device cpu --pictures 16 --imgsz 64 --batch 4 --epochs 2 --steps 1 --workers 0   # does it run?

After every row FOLDER/peers.json and FOLDER/peers.md are written. A call goes on with the rows that FOLDER/peers.json does not hold. Generated sets
and run directories lie in --scratch. benchmarks/README.md says what each row and column is.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import torch

from benchmarks.peers.process import SECONDS_TO_LEAVE
from benchmarks.peers.rows import ROWS, Place, Row
from benchmarks.peers.store import Budget, SettingsError, Store, machine
from benchmarks.peers.table import tables

MARGIN = 2 * SECONDS_TO_LEAVE + 5  # seconds of the budget that are kept for ending a process and writing


def arguments_of(words: Sequence[str] | None) -> argparse.Namespace:
    """Return the arguments of the command."""
    names = [row.name for row in ROWS]
    parser = argparse.ArgumentParser(prog="python -m benchmarks.peers", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--only", nargs="+", choices=names, default=names, metavar="ROW", help=f"of {', '.join(names)}")
    parser.add_argument("--again", action="store_true", help="measure the rows of --only anew")
    parser.add_argument("--budget", type=float, default=float("inf"), help="seconds after which this call is over, whatever is missing")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--peer-python", default=sys.executable, help="interpreter that has libreyolo 1.6.0 and ultralytics")
    parser.add_argument("--peer-site", help="folder of packages for that interpreter, where they are not installed in it")
    parser.add_argument("--scratch", type=Path, default=Path(tempfile.gettempdir()) / "libreyolo-peers", help="where sets and run directories lie")
    parser.add_argument("--pictures", type=int, default=4096)
    parser.add_argument("--epochs", type=int, default=3, help="of a training; the first one is not counted")
    parser.add_argument("--steps", type=int, default=40, help="of a step alone")
    for name, meaning in (("imgsz", "input of every row"), ("batch", "pictures on each GPU"), ("workers", "loader processes of a rank")):
        parser.add_argument(f"--{name}", type=int, help=f"{meaning}; a row's own where not given")
    chosen = parser.parse_args(words)
    if chosen.epochs < 2:
        parser.error("--epochs must be at least 2: the first one is not counted")
    return chosen


def place_of(chosen: argparse.Namespace) -> Place:
    """Return what the rows need to know. On the CPU two "GPUs" are two ranks."""
    num_gpus = torch.cuda.device_count() if chosen.device == "cuda" else 1
    keys = {
        name: getattr(chosen, name) for name in ("device", "pictures", "epochs", "steps", "imgsz", "batch", "workers", "peer_python", "peer_site")
    }
    return Place(chosen.scratch.resolve(), num_gpus=num_gpus, **keys)


def lacks(row: Row, place: Place) -> str:
    """Return why the row can't be measured on this machine; "" where it can."""
    if place.device == "cpu":
        return "a peer's ranks need GPUs" if row.script and row.gpus > 1 else ""
    return f"it needs {row.gpus} GPU(s), here are {place.num_gpus}" if row.gpus > place.num_gpus else ""


def main(words: Sequence[str] | None = None) -> int:
    """Measure what is missing; return the number of rows that still are."""
    chosen = arguments_of(words)
    place, budget = place_of(chosen), Budget(chosen.budget - MARGIN, time.monotonic())
    settings = {name: getattr(place, name) for name in ("device", "pictures", "epochs", "steps", "imgsz", "batch", "workers")}
    try:
        store = Store(chosen.out.resolve(), "peers", settings)
    except SettingsError as error:
        sys.exit(str(error))
    rows = {row.name: row for row in ROWS}
    for name in store.missing(chosen.only, chosen.again):
        why = lacks(rows[name], place) or ("" if budget.allows(rows[name].limit) else "too little of the budget is left")
        if why:
            print(f"{name}: not started, {why}", flush=True)
            continue
        print(f"{name} ...", flush=True)
        found = rows[name].measure(rows[name], place, budget.left)
        if found is None:
            print(f"{name}: the budget ended it; the next call measures it", flush=True)
            continue
        store.keep(name, replace(found, machine=machine()))
        (chosen.out / "peers.md").write_text(tables(ROWS, store.rows, store.machines))
        print(f"{name}: {found.state} {found.note}", flush=True)
    missing = store.missing(chosen.only, again=False)
    print(tables(ROWS, store.rows, store.machines))
    print(f"missing: {', '.join(missing) or 'nothing'}", flush=True)
    return len(missing)


if __name__ == "__main__":
    main()
