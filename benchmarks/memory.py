"""Host memory, open files and threads over many epochs of a tiny set: python benchmarks/memory.py --epochs 200 --out FOLDER.

Two ranks on the CPU with a loader process each, a tiny network in the place of yolo9's, a validation and a checkpoint every epoch. After each epoch
of rank 0 the whole tree of processes is measured: proportional set size without mapped files (pages that its processes share count once; those of
libraries depend on who else uses them), number of open files, number of threads.
Writes memory.csv and memory.png. Ends with exit code 1 where the last quarter of the run is more than 5 % above the second one.
"""

from __future__ import annotations

import argparse
import csv
import os
import sys
from pathlib import Path
from typing import Any

os.environ["OMP_NUM_THREADS"] = "1"
os.environ["CUDA_VISIBLE_DEVICES"] = ""

import psutil

from benchmarks.tiny import take_the_place_of_yolo9
from libreyolo import LibreYOLO
from libreyolo.data.shapes import make_shapes
from libreyolo.interfaces.events import EpochEnd, Listener

COLUMNS = ("epoch", "processes", "memory_mib", "open_files", "threads")
KEYS: dict[str, Any] = {
    "device": "cpu", "nproc": 2, "imgsz": 32, "sync_bn": False, "batch": 4, "workers": 1, "aux_weight": 0.0, "eval_interval": 1, "save_period": 0,
    "save_plots": False, "no_aug_epochs": 0, "warmup_epochs": 1.0, "patience": 0,
}  # fmt: skip


take_the_place_of_yolo9()  # here, so that the ranks, which import this script, do it too


class Meter(Listener):
    """Measures this job's processes at the end of every epoch; lives in rank 0."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def on_epoch_end(self, event: EpochEnd) -> None:
        root = psutil.Process(os.getppid())
        found = [measure(process) for process in [root, *root.children(recursive=True)]]
        sums = [sum(column) for column in zip(*filter(None, found), strict=True)]
        with self.path.open("a", newline="") as file:
            csv.writer(file).writerow([event.epoch, len(found), f"{sums[0] / 2**20:.1f}", sums[1], sums[2]])


def measure(process: psutil.Process) -> tuple[int, int, int] | None:
    try:
        lines = Path(f"/proc/{process.pid}/smaps_rollup").read_text().splitlines()
        kib = sum(int(line.split()[1]) for line in lines if line.startswith(("Pss_Anon:", "Pss_Shmem:")))
        return kib * 1024, process.num_fds(), process.num_threads()
    except (psutil.NoSuchProcess, OSError):
        return None


def mean(rows: list[dict[str, float]], name: str, quarter: int) -> float:
    size = len(rows) // 4
    part = rows[quarter * size : (quarter + 1) * size]
    return sum(row[name] for row in part) / len(part)


def draw(rows: list[dict[str, float]], path: Path) -> None:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    figure, axes = plt.subplots(2, 1, figsize=(8, 5), sharex=True)
    epochs = [row["epoch"] for row in rows]
    axes[0].plot(epochs, [row["memory_mib"] for row in rows])
    axes[0].set_ylabel("memory of all processes, MiB")
    axes[0].set_ylim(0, 1.25 * max(row["memory_mib"] for row in rows))
    for name in ("open_files", "threads", "processes"):
        axes[1].plot(epochs, [row[name] for row in rows], label=name.replace("_", " "))
    axes[1].set_ylim(bottom=0)
    axes[1].set_xlabel("epoch")
    axes[1].legend()
    figure.tight_layout()
    figure.savefig(path, dpi=100)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=200)
    parser.add_argument("--out", type=Path, required=True)
    given = parser.parse_args()
    given.out.mkdir(parents=True)
    table = (given.out / "memory.csv").absolute()
    table.write_text(",".join(COLUMNS) + "\n")
    data = make_shapes(given.out / "data", num_train=8, num_val=4, size=32)
    LibreYOLO("yolo9t").train(data=str(data), project=str(given.out / "runs"), epochs=given.epochs, callbacks=[Meter(table)], **KEYS)
    with table.open() as file:
        rows = [{name: float(value) for name, value in row.items()} for row in csv.DictReader(file)]
    draw(rows, given.out / "memory.png")
    worst = 0.0
    for name in COLUMNS[2:]:
        second, last = mean(rows, name, 1), mean(rows, name, 3)
        growth = last / second - 1
        print(f"{name}: {second:.1f} in the second quarter of {len(rows)} epochs, {last:.1f} in the last ({growth:+.1%})")
        worst = max(worst, growth)
    sys.exit(int(worst > 0.05))


if __name__ == "__main__":
    main()
