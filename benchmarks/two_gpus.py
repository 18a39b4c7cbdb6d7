"""What must be seen on two real GPUs: every door, every ending, and that two GPUs train the same model as one.

    python benchmarks/two_gpus.py launch  --data FOLDER_WITH_bccd --out FOLDER     # doors and endings, one after another (about 4 minutes)
    python benchmarks/two_gpus.py equal   --data FOLDER_WITH_bccd --out FOLDER     # 1 GPU against 2, three seeds each; losses step by step
    python benchmarks/two_gpus.py resume  --data FOLDER_WITH_bccd --out FOLDER     # stopped on 2, continued on 1, and the other way round

Each writes OUT/<part>.md. A call of `equal` or `resume` does what OUT does not hold yet; with --most 1 only what needs one GPU, several at once, so
that the runs on two GPUs have both for themselves in the next call: collectives of a run that shares its GPUs wait for the time slices of both.
Needs psutil and nvidia-ml-py.
"""

from __future__ import annotations

import argparse
import csv
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
EPOCHS = 40
TINY = ["model=yolo9t", "imgsz=320", "batch=16", "workers=2", "cache=ram", "save_plots=false", "save_period=0"]


class StepLosses:
    """A callback: one JSON line for every step event. At module level, so that it crosses to the workers."""

    def __init__(self, path: str) -> None:
        self.path = path

    def on_step_end(self, event: Any) -> None:
        with Path(self.path).open("a") as stream:
            stream.write(json.dumps({"step": event.global_step, **event.losses}) + "\n")


def train(arguments: Sequence[str], log: Path, prefix: Sequence[str] = (sys.executable,), env: dict[str, str] | None = None) -> subprocess.Popen[str]:
    """Start train.py with its output in a file."""
    stream = log.open("w")
    words = [*prefix, "train.py", *arguments]
    return subprocess.Popen(words, cwd=ROOT, stdout=stream, stderr=subprocess.STDOUT, env={**os.environ, **(env or {})}, text=True)


def gpu_processes() -> list[set[int]]:
    """Return the process numbers on each GPU."""
    import pynvml

    pynvml.nvmlInit()
    handles = [pynvml.nvmlDeviceGetHandleByIndex(i) for i in range(pynvml.nvmlDeviceGetCount())]
    return [{p.pid for p in pynvml.nvmlDeviceGetComputeRunningProcesses(h)} for h in handles]


def descendants(pid: int) -> dict[int, str]:
    """Return the process and everything below it: number to command line."""
    import psutil

    try:
        top = psutil.Process(pid)
        return {p.pid: " ".join(p.cmdline())[-60:] for p in [top, *top.children(recursive=True)]}
    except psutil.NoSuchProcess:
        return {}


def wait_for(what: Callable[[], bool], seconds: float) -> bool:
    """Return whether `what` became true in time."""
    until = time.time() + seconds
    while time.time() < until:
        if what():
            return True
        time.sleep(0.2)
    return False


def said(log: Path) -> str:
    return log.read_text(errors="replace") if log.exists() else ""


def stepping(log: Path) -> bool:
    """Return whether a step has been reported."""
    return "step 2/" in said(log) or "step 3/" in said(log) or "done" in said(log)


class Launch:
    """Doors and endings, one after another; each prints a line that says what was seen."""

    def __init__(self, data: Path, out: Path) -> None:
        self.data, self.out = data / "bccd" / "data.yaml", out
        self.lines: list[str] = []

    def say(self, ok: bool, text: str) -> None:
        self.lines.append(f"- {'ok' if ok else 'NOT OK'}: {text}")
        print(self.lines[-1], flush=True)

    def arguments(self, name: str, *more: str) -> list[str]:
        return [*TINY, f"data={self.data}", f"hydra.run.dir={self.out / name}", "log_interval=1", "epochs=2", "val=false", *more]

    def door(self, name: str, arguments: Sequence[str], prefix: Sequence[str] = (sys.executable,), env: dict[str, str] | None = None) -> None:
        """Run to the end; say where the processes sat."""
        log = self.out / f"{name}.log"
        process = train(arguments, log, prefix, env)
        seated: list[set[int]] = []

        def look() -> bool:
            mine = set(descendants(process.pid))
            now = [gpu & mine for gpu in gpu_processes()]
            if sum(map(len, now)) >= sum(map(len, seated or [set()])):
                seated[:] = now
            return process.poll() is not None

        ended = wait_for(look, 120)
        counts = [len(s) for s in seated]
        both = set.intersection(*seated) if seated else set()
        text = said(self.out / name / "train.log") or said(log)
        ranks = next((line.split(": ")[-1] for line in text.splitlines() if re.search(r"\branks? on ", line)), "?")
        backend = next((line.split("backend ")[-1].split(",")[0] for line in text.splitlines() if "backend" in line), "none")
        self.say(
            ended and process.returncode == 0,
            f"{name}: exit {process.returncode}, {ranks}, backend {backend}, processes by GPU {counts}, on both {len(both)}",
        )

    def python_door(self) -> None:
        """Two jobs in a row in one process, then predict."""
        script = self.out / "two_jobs.py"
        script.write_text(
            "import sys\nfrom libreyolo import LibreYOLO\n"
            "if __name__ == '__main__':\n"
            "    model = LibreYOLO('yolo9t')\n"
            "    for job in range(2):\n"
            f"        done = model.train(data={str(self.data)!r}, device='0,1', epochs=1, batch=16, imgsz=320, workers=2, cache='ram',\n"
            f"            save_plots=False, project={str(self.out)!r}, name='python')\n"
            "        print('JOB', job, done['save_dir'], model.nc, model.device, next(model.net.parameters()).device)\n"
            f"    print('PREDICTED', len(model.predict({str(self.data.parent / 'images' / 'val')!r}, device=0)))\n"
        )
        env = {**os.environ, "PYTHONPATH": f"{ROOT}:{os.environ.get('PYTHONPATH', '')}"}
        run = subprocess.run([sys.executable, str(script)], cwd=self.out, capture_output=True, text=True, timeout=200, env=env)
        seen = [line for line in run.stdout.splitlines() if line.startswith(("JOB", "PREDICTED"))]
        self.say(
            run.returncode == 0 and len(seen) == 3, f"python door, two jobs in a row: exit {run.returncode}; {'; '.join(seen) or run.stderr[-300:]}"
        )

    def interrupted(self, name: str, act: Callable[[subprocess.Popen[str]], None], seconds: float, expected: Callable[[int, str], bool]) -> None:
        """Train on both GPUs, disturb it during a step, and say how it ended."""
        log = self.out / f"{name}.log"
        process = train(self.arguments(name, "device=[0,1]", "epochs=200"), log)
        if not wait_for(lambda: "epoch 2/" in said(log), 90):
            process.kill()
            self.say(False, f"{name}: it never trained: {said(log)[-300:]}")
            return
        family = descendants(process.pid)
        started = time.time()
        act(process)
        ended = wait_for(lambda: process.poll() is not None, seconds)
        took = time.time() - started
        if not ended:
            process.kill()
        import psutil

        wait_for(lambda: not any(psutil.pid_exists(p) for p in family), 10)
        left = [p for p in family if psutil.pid_exists(p) and psutil.Process(p).status() != "zombie"]
        on_gpu = [len(gpu & set(family)) for gpu in gpu_processes()]
        loads = self.loads(self.out / name / "weights" / "last.pt")
        tail = said(log)
        ok = ended and expected(process.returncode, tail) and not left and loads
        words = next((line for line in reversed(tail.splitlines()) if line.strip()), "")
        self.say(
            ok,
            f"{name}: exit {process.returncode} after {took:.1f} s, {len(left)} processes left, on GPUs {on_gpu}, "
            f"last.pt loads: {loads}; last line: {words[:200]}",
        )

    @staticmethod
    def loads(path: Path) -> bool:
        import torch

        try:
            return "model" in torch.load(path, map_location="cpu", weights_only=True)
        except (OSError, RuntimeError):
            return False

    def run(self, only: Sequence[str]) -> None:
        """Show what was asked for; nothing named: everything."""
        torchrun = (sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node=2")
        parts: dict[str, Callable[[], None]] = {
            "hydra": lambda: self.door("hydra", self.arguments("hydra", "device=[0,1]")),
            "torchrun": lambda: self.door("torchrun", self.arguments("torchrun", "device=[0,1]"), prefix=torchrun),
            "visible-1": lambda: self.door("visible-1", self.arguments("visible-1", "device=0"), env={"CUDA_VISIBLE_DEVICES": "1"}),
            "sigkill-rank1": lambda: self.interrupted("sigkill-rank1", self.kill_rank_one, 30, names_rank_one),
            "ctrl-c": lambda: self.interrupted("ctrl-c", lambda p: p.send_signal(signal.SIGINT), 15, lambda code, text: code == 130),
            "python": self.python_door,
        }
        for name, part in parts.items():
            if not only or name in only:
                part()
                (self.out / "launch.md").write_text("\n".join(self.lines) + "\n")

    @staticmethod
    def kill_rank_one(process: subprocess.Popen[str]) -> None:
        second = gpu_processes()[1] & set(descendants(process.pid))
        os.kill(next(iter(second)), signal.SIGKILL)


def names_rank_one(code: int, text: str) -> bool:
    return code not in (0, None) and "rank 1" in text and "SIGKILL" in text


def best(run: Path) -> float:
    rows = [r for r in csv.DictReader((run / "results.csv").open()) if r["validated"] == "1"]
    return max(float(r["metrics/mAP50-95"]) for r in rows)


def last(run: Path) -> float:
    rows = [r for r in csv.DictReader((run / "results.csv").open()) if r["validated"] == "1"]
    return float(rows[-1]["metrics/mAP50-95"])


def epochs_done(run: Path) -> int:
    """Return the epochs in a run's table; 0 where there is none."""
    path = run / "results.csv"
    return sum(1 for _ in csv.DictReader(path.open())) if path.exists() else 0


def equal(data: Path, out: Path, most: int) -> None:
    """Forty epochs with augmentation, 1 GPU and 2, three seeds each; then 20 steps in float32 without augmentation from trained weights."""
    yaml = data / "bccd" / "data.yaml"
    jobs = [(gpus, seed) for gpus in (1, 2) for seed in range(3)]

    def one(job: tuple[int, int]) -> None:
        gpus, seed = job
        run = out / f"equal-{gpus}gpu-seed{seed}"
        if gpus > most or epochs_done(run) == EPOCHS:
            return
        device = "device=[0,1]" if gpus == 2 else f"device={seed % 2}"
        words = [*TINY, f"data={yaml}", device, f"epochs={EPOCHS}", "no_aug_epochs=5", f"seed={seed}", "eval_interval=4", f"hydra.run.dir={run}"]
        code = train(words, out / f"{run.name}.log").wait()
        print(f"{run.name}: exit {code}", flush=True)

    with ThreadPoolExecutor(3) as pool:
        list(pool.map(one, [job for job in jobs if job[0] == 1]))
    for job in jobs:
        one(job)
    losses = [float32_losses(gpus, yaml, out) for gpus in (1, 2) if gpus <= most]
    if most == 1:
        return
    lines = ["| seed | GPUs | best mAP50-95 | last mAP50-95 |", "| --- | --- | --- | --- |"]
    means: dict[int, list[float]] = {1: [], 2: []}
    for gpus, seed in jobs:
        run = out / f"equal-{gpus}gpu-seed{seed}"
        try:
            means[gpus].append(last(run))
            lines.append(f"| {seed} | {gpus} | {best(run):.4f} | {last(run):.4f} |")
        except (OSError, IndexError, ValueError):
            lines.append(f"| {seed} | {gpus} | no result | |")
    if all(means.values()):
        one_gpu, two_gpus = (sum(v) / len(v) for v in means.values())
        lines.append(f"\nMeans of the last validation: 1 GPU {one_gpu:.4f}, 2 GPUs {two_gpus:.4f}, difference {abs(one_gpu - two_gpus):.4f}.")
    lines += [
        "",
        "Loss of 20 steps from trained weights, float32, augmentation off:",
        "",
        "| step | 1 GPU | 2 GPUs | relative difference |",
        "| --- | --- | --- | --- |",
    ]
    for step, (a, b) in enumerate(zip(*losses, strict=False), start=1):
        lines.append(f"| {step} | {a:.6f} | {b:.6f} | {abs(a - b) / abs(a):.1e} |")
    (out / "equal.md").write_text("\n".join(lines) + "\n")
    draw(out)
    print((out / "equal.md").read_text(), flush=True)


def draw(out: Path) -> None:
    """Draw what the runs of `equal` recorded, one line each: OUT/equal.jpg."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(11, 3.6), layout="constrained")
    left, right = figure.subplots(1, 2)
    for run in sorted(out.glob("equal-?gpu-seed?")):
        gpus, seed = run.name[6], int(run.name[-1])
        rows = list(csv.DictReader((run / "results.csv").open()))
        style: dict[str, Any] = {"color": {"1": "tab:blue", "2": "tab:orange"}[gpus], "linestyle": ("-", "--", ":")[seed], "linewidth": 1.4}
        style["label"] = f"{gpus} GPU{'s' if gpus == '2' else ''}, seed {seed}"
        left.plot([int(r["epoch"]) for r in rows], [float(r["train/loss"]) for r in rows], **style)
        judged = [r for r in rows if r["metrics/mAP50-95"]]
        right.plot([int(r["epoch"]) for r in judged], [float(r["metrics/mAP50-95"]) for r in judged], marker="o", markersize=3, **style)
    for axes, what in ((left, "training loss"), (right, "mAP50-95")):
        axes.set_xlabel("epoch")
        axes.set_ylabel(what)
        axes.grid(alpha=0.3)
    left.set_yscale("log")
    right.legend(fontsize=8)
    figure.savefig(out / "equal.jpg", dpi=110)


def float32_losses(gpus: int, yaml: Path, out: Path) -> list[float]:
    """Return the loss of each of 20 steps, from the running means that a callback collects.

    From trained weights, at a small learning rate: a fresh network multiplies a rounding difference by about 100 in a step, because near-equal
    scores decide which anchors are positive.
    """
    path = out / f"steps-{gpus}.jsonl"
    if not path.exists():
        twenty_steps(gpus, yaml, out, path)
    means = {}
    for line in said(path).splitlines():
        row = json.loads(line)
        step = row.pop("step")
        means[step] = sum(row.values())
    # The report is the mean since the epoch began (19 steps an epoch, all but the last of 16 pictures): undo it step by step.
    losses, before, count = [], 0.0, 0
    for step in sorted(means):
        if step == 20:
            before, count = 0.0, 0
        pictures = 4 if step == 19 else 16
        losses.append((means[step] * (count + pictures) - before) / pictures)
        before, count = means[step] * (count + pictures), count + pictures
    return losses


def twenty_steps(gpus: int, yaml: Path, out: Path, path: Path) -> None:
    """Train 20 steps by the Python door with a callback that writes every step's running means to `path`."""
    script = out / f"steps_{gpus}.py"
    device = "'0,1'" if gpus == 2 else "0"
    weights = next(iter(sorted(out.glob("equal-*/weights/best.pt"))), None)
    if weights is None:
        print("no trained weights to take 20 steps from", flush=True)
        return
    script.write_text(
        "from benchmarks.two_gpus import StepLosses\nfrom libreyolo import LibreYOLO\n"
        "if __name__ == '__main__':\n"
        f"    LibreYOLO({str(weights)!r}).train(data={str(yaml)!r}, device={device}, epochs=2, batch=16, imgsz=320, workers=2, cache='ram',\n"
        "        lr0=0.0005, warmup_epochs=0, amp=False, val=False, mosaic_prob=0.0, hsv_prob=0.0, flip_prob=0.0, max_steps=20, log_interval=1,\n"
        f"        save_plots=False, deterministic=True, project={str(out)!r}, name='steps{gpus}', callbacks=[StepLosses({str(path)!r})])\n"
    )
    env = {**os.environ, "PYTHONPATH": f"{ROOT}:{os.environ.get('PYTHONPATH', '')}", "NVIDIA_TF32_OVERRIDE": "0"}
    with (out / f"steps-{gpus}.log").open("w") as log:
        subprocess.run([sys.executable, str(script)], cwd=out, stdout=log, stderr=subprocess.STDOUT, env=env, timeout=240, check=False)


def resume(data: Path, out: Path, most: int) -> None:
    """Six epochs: unbroken on 1 GPU and on 2; stopped on 2 after three and continued on 1; stopped on 1 and continued on 2."""
    common = [*TINY, f"data={data / 'bccd' / 'data.yaml'}", "epochs=6", "no_aug_epochs=2", "eval_interval=1", "warmup_epochs=1"]
    places = {1: "device=1", 2: "device=[0,1]"}
    chains = {"unbroken-1": (1,), "one-then-two": (1, 2), "unbroken-2": (2,), "two-then-one": (2, 1)}
    for name, legs in chains.items():
        run = out / name
        if legs[0] <= most and not epochs_done(run):
            stop = ["stop_after_epoch=3"] if len(legs) == 2 else []
            train([*common, places[legs[0]], *stop, f"hydra.run.dir={run}"], out / f"{name}-a.log").wait()
        if len(legs) == 2 and max(legs) <= most and epochs_done(run) == 3:
            train([f"resume={run}", places[legs[1]]], out / f"{name}-b.log").wait()
    if most == 1:
        return
    lines = ["| run | epoch | lr/group0 | train/loss | mAP50-95 |", "| --- | --- | --- | --- | --- |"]
    for name in chains:
        path = out / name / "results.csv"
        for row in csv.DictReader(path.open()) if path.exists() else []:
            lines.append(
                f"| {name} | {row['epoch']} | {float(row['lr/group0']):.6f} | {float(row['train/loss']):.4f} | {float(row['metrics/mAP50-95']):.4f} |"
            )
    (out / "resume.md").write_text("\n".join(lines) + "\n")
    print((out / "resume.md").read_text(), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("part", choices=("launch", "equal", "resume"))
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--most", type=int, choices=(1, 2), default=2, help="GPUs that a training of this call may need")
    parser.add_argument("--keys", nargs="*", default=(), help="recipe keys of every training by train.py, like fused=true")
    parser.add_argument("--only", nargs="*", default=(), help="parts of launch: hydra, torchrun, visible-1, sigkill-rank1, ctrl-c, python")
    chosen = parser.parse_args()
    TINY.extend(chosen.keys)
    data, out = chosen.data.resolve(), chosen.out.resolve()
    out.mkdir(parents=True, exist_ok=True)
    if chosen.part == "launch":
        Launch(data, out).run(chosen.only)
    elif chosen.part == "equal":
        equal(data, out, chosen.most)
    else:
        resume(data, out, chosen.most)


if __name__ == "__main__":
    main()
