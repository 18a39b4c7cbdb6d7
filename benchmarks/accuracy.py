"""Accuracy on small real sets: the figures of benchmarks/README.md, all jobs of one call side by side.

    python benchmarks/accuracy.py --data FOLDER_WITH_bccd_cards_trashnet_nuclei_denoise25 --out FOLDER

Every job is a command that a user could type; its run directory lies in OUT/NAME. OUT/table.md holds the results, OUT/keep/ what is worth keeping.
With --budget, what still runs after so many seconds is ended as a cluster would end it, and the table holds what was reached.
"""

from __future__ import annotations

import argparse
import csv
import math
import shutil
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


@dataclass(frozen=True)
class Job:
    """One training. `after`: the job whose best weights it starts from. data: a folder below --data, or what is in it.

    view: lines of a data.yaml over the folder `data`, written to OUT/NAME.yaml; None: the folder's own.
    """

    name: str
    model: str
    data: str
    arguments: tuple[str, ...]
    after: str | None = None
    view: str | None = None


SCRATCH = ("epochs=100", "batch=16", "imgsz=640", "eval_interval=5")
SHORT = ("epochs=20", "batch=16", "imgsz=640", "eval_interval=5", "workers=3")
# Nuclei against the rest, and all three classes of the set's own data.yaml. Pictures of 256 to 384 pixels, judged at 384.
NUCLEI = ("imgsz=256", "eval_imgsz=384", "epochs=100", "batch=8", "amp=true", "seed=0", "workers=4")
NUCLEUS_OR_NOT = """\
train: images/train
val: images/val
names: [background, nucleus]
label_mapping: {0: 0, 1: 1, 2: 1, 255: 255}
"""
JOBS = [
    *(Job(f"yolo9s-bccd-seed{seed}", "yolo9s", "bccd", (*SCRATCH, f"seed={seed}", "workers=4")) for seed in range(3)),
    Job("yoloxs-bccd", "yoloxs", "bccd", (*SCRATCH, "seed=0", "workers=8")),
    Job("rtdetrr18-bccd", "rtdetrr18", "bccd", ("epochs=72", "batch=16", "imgsz=640", "eval_interval=6", "seed=0", "workers=4")),
    Job("yolo9t-cards", "yolo9t", "cards", ("epochs=40", "batch=16", "imgsz=640", "eval_interval=10", "workers=4")),
    Job("yolo9t-bccd-scratch20", "yolo9t", "bccd", SHORT, after=None),
    Job("yolo9t-bccd-from-cards20", "yolo9t", "bccd", SHORT, after="yolo9t-cards"),
    Job(
        "fomos-bccd",
        "fomos",
        "bccd",
        ("epochs=100", "batch=16", "imgsz=320", "lr0=0.003", "flip_prob=0.5", "flipud=0.5", "eval_interval=5", "workers=4"),
    ),
    Job("resnet18-trashnet", "resnet18", "trashnet", ("epochs=100", "batch=64", "imgsz=224", "seed=0", "workers=4")),
    Job("unets-nuclei-two", "unets", "nuclei", NUCLEI, view=NUCLEUS_OR_NOT),
    Job("unets-nuclei-three", "unets", "nuclei", NUCLEI),
    # 48 pairs of 192 pixels: eight crops of each to an epoch, 2400 steps. The inputs have 20.4 dB.
    Job("nafnets-denoise25", "nafnets", "denoise25", ("epochs=100", "batch=16", "imgsz=128", "min_samples=384", "eval_interval=5", "workers=4")),
]

OTHERS = ("metrics/mAP50", "metrics/pixel_accuracy", "metrics/accuracy_top5", "metrics/f1")  # shown beside the metric that decides


def command(job: Job, data: Path, out: Path, device: int) -> list[str]:
    """Return what a user would type; writes the data.yaml of a job that has its own view of the data."""
    source = data / job.data
    if job.view is not None:
        source = out / f"{job.name}.yaml"
        source.write_text(f"path: {data / job.data}\n{job.view}")
    words = [sys.executable, "train.py", f"model={job.model}", f"data={source}", *job.arguments]
    words += [f"device={device}", "cache=ram", f"hydra.run.dir={out / job.name}"]
    return words + ([f"weights={out / job.after / 'weights' / 'best.pt'}"] if job.after else [])


def run(jobs: list[Job], data: Path, out: Path, devices: list[int], budget: float) -> dict[str, tuple[int, float]]:
    """Run every job as soon as the one it needs has ended; return exit code and seconds by name.

    budget: seconds after which no job starts and those that run are told to end.
    """
    until, told = time.time() + budget, False
    waiting, running, ended = list(jobs), {}, {}
    while waiting or running:
        if time.time() > until and not told:
            told = True
            waiting.clear()
            for process, _ in running.values():
                process.terminate()
        for job in [j for j in waiting if j.after is None or j.after in ended]:
            waiting.remove(job)
            log = (out / f"{job.name}.log").open("w")
            running[job.name] = (
                subprocess.Popen(command(job, data, out, devices[jobs.index(job) % len(devices)]), cwd=ROOT, stdout=log, stderr=subprocess.STDOUT),
                time.time(),
            )
        for name, (process, started) in list(running.items()):
            if process.poll() is not None:
                ended[name] = (process.returncode, time.time() - started)
                del running[name]
                print(f"{name}: exit {ended[name][0]}, {ended[name][1]:.0f} s", flush=True)
        time.sleep(0.5)
    return ended


def table(jobs: list[Job], out: Path, ended: dict[str, tuple[int, float]]) -> str:
    """Return a markdown table of the best and last validation of every job."""
    lines = ["| job | metric | best | at epoch | last | others of the best | seconds |", "| --- | --- | --- | --- | --- | --- | --- |"]
    for job in jobs:
        path = out / job.name / "results.csv"
        rows = [r for r in csv.DictReader(path.open()) if r["validated"] == "1"] if path.exists() else []
        if not rows:
            how = f"exit {ended[job.name][0]}, no result" if job.name in ended else "never started"
            lines.append(f"| {job.name} | {how} | | | | | |")
            continue
        best = max(rows, key=lambda r: float(r["current_metric"]))
        name = best["current_metric_name"]
        others = [f"{k.removeprefix('metrics/')} {float(best[k]):.4f}" for k in OTHERS if best.get(k) and k != name]
        numbers = [f"{float(best['current_metric']):.4f}", best["epoch"], f"{float(rows[-1]['current_metric']):.4f}", ", ".join(others)]
        lines.append(f"| {job.name} | {name.removeprefix('metrics/')} | {' | '.join(numbers)} | {ended[job.name][1]:.0f} |")
    return "\n".join(lines) + "\n"


def keep(jobs: list[Job], out: Path) -> None:
    """Copy tables, pictures and logs, not weights."""
    for job in jobs:
        target = out / "keep" / job.name
        target.mkdir(parents=True, exist_ok=True)
        source = out / job.name
        wanted = [out / f"{job.name}.log", *(source.glob("*.csv")), *(source.glob("*.yaml")), *(source.glob("*.json")), *(source.glob("plots/*.png"))]
        for path in wanted:
            if path.exists():
                shutil.copy(path, target / path.name)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--devices", type=int, nargs="+", default=[0], help="GPUs that the jobs take in turn")
    parser.add_argument("--budget", type=float, default=math.inf, help="seconds for all of them")
    parser.add_argument("--only", nargs="+", help="names of jobs")
    chosen = parser.parse_args()
    jobs = [j for j in JOBS if not chosen.only or j.name in chosen.only]
    out = chosen.out.resolve()
    out.mkdir(parents=True, exist_ok=True)
    ended = run(jobs, chosen.data.resolve(), out, chosen.devices, chosen.budget)
    keep(jobs, out)
    (out / "table.md").write_text(table(jobs, out, ended))
    print((out / "table.md").read_text())


if __name__ == "__main__":
    main()
