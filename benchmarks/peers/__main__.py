"""Ours and the published trainers side by side, in one run on one machine.

    python -m benchmarks.peers --out FOLDER --budget 540 --peer-python PYTHON --peer-site FOLDER     # again until nothing is missing
    python -m benchmarks.peers --out FOLDER --only ours ours-no-aux ultralytics
    python -m benchmarks.peers --out FOLDER --device cpu --pictures 16 --imgsz 64 --batch 4 --epochs 2 --steps 1 --workers 0   # does it run?

After every row FOLDER/peers.json and FOLDER/peers.md are written. A call goes on with the rows that FOLDER/peers.json does not hold. Generated sets
and run directories lie in --scratch. benchmarks/README.md says what each row and column is.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import torch

from benchmarks.peers.call import Task, go_on, parser_of
from benchmarks.peers.rows import ROWS, Place, Row, make_data
from benchmarks.peers.table import tables

SETTINGS = ("device", "pictures", "imgsz", "workers", "epochs", "steps", "batch")  # what rows of one table share


def lacks(row: Row, place: Place) -> str:
    """Return why the row can't be measured on this machine; "" where it can. On the CPU two GPUs are two ranks."""
    if place.device == "cpu":
        return "a peer's ranks need GPUs" if row.script and row.gpus > 1 else ""
    return f"it needs {row.gpus} GPU(s), here are {place.num_gpus}" if row.gpus > place.num_gpus else ""


def main(words: Sequence[str] | None = None) -> int:
    """Measure what is missing; return the number of rows that still are."""
    parser = parser_of("benchmarks.peers", __doc__, [row.name for row in ROWS])
    parser.add_argument("--peer-python", help="interpreter that has libreyolo 1.6.0 and ultralytics; this one where not given")
    parser.add_argument("--peer-site", help="folder of packages for that interpreter, where they are not installed in it")
    parser.add_argument("--epochs", type=int, default=3, help="of a training; the first one is not counted")
    parser.add_argument("--steps", type=int, default=40, help="of a step alone")
    parser.add_argument("--batch", type=int, help="pictures on each GPU; a row's own where not given")
    chosen = parser.parse_args(words)
    if chosen.epochs < 2:
        parser.error("--epochs must be at least 2: the first one is not counted")
    settings = {name: getattr(chosen, name) for name in SETTINGS}
    peers = {"peer_python": chosen.peer_python, "peer_site": chosen.peer_site}
    place = Place(chosen.scratch.resolve(), num_gpus=torch.cuda.device_count() if chosen.device == "cuda" else 1, **settings, **peers)
    tasks = {row.name: Task(row.limit, lacks(row, place), partial(make_data, row, place), partial(row.measure, row, place)) for row in ROWS}
    return go_on("peers", chosen, settings, tasks, partial(tables, ROWS))


if __name__ == "__main__":
    main()
