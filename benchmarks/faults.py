"""Kill a training of two ranks at random, resume it, and see that nothing is lost: python benchmarks/faults.py --kills 200 --out FOLDER.

Every life of a run is the real thing (LibreYOLO(...).train(nproc=2, resume="auto")), but forked from a process that has imported torch already,
so it starts in a fraction of a second; and in the place of yolo9's network stands a tiny one. A life is ended by one fault, chosen and timed by
a generator with a fixed seed:

  parent, rank           SIGKILL of the parent or of a rank at any moment
  save                   SIGKILL of rank 0 or of the parent in the middle of writing a checkpoint: half written, whole, renamed
  validation             SIGKILL of a rank or of the parent in a validation
  SIGTERM, SIGUSR1, ...  the signals of clusters, to the parent or to one rank, at any moment or in a validation

After each life: no process is left; the checkpoint on disk loads, and is not older than the one before. When a run comes to its end, its last
checkpoint equals bit for bit that of a run which nothing disturbed, results.csv has every epoch once, status.json says completed, and neither the
run directory nor the folder for temporary files holds anything of the killed lives. (A life that is killed before its first checkpoint leaves a
directory that nobody goes on in; the next one begins in another.) The first thing that is not so ends the script with exit
code 1. Linux only.
"""

from __future__ import annotations

import argparse
import collections
import ctypes
import getpass
import json
import multiprocessing
import os
import random
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

os.environ["OMP_NUM_THREADS"] = "1"
os.environ["CUDA_VISIBLE_DEVICES"] = ""

import psutil
import torch
import torch._dynamo
import torchvision

from benchmarks.tiny import take_the_place_of_yolo9
from launch import spawn
from launch.run_lock import LOCK_FILE
from libreyolo import LibreYOLO, build, run
from libreyolo.assembly import detect
from libreyolo.data.shapes import make_shapes
from libreyolo.engine import checkpoint, trainer
from libreyolo.metrics import detection as detection_metric
from libreyolo.models.yolo9 import decode, loss
from libreyolo.record.tables import read_results

KEYS: dict[str, Any] = {
    "device": "cpu", "nproc": 2, "imgsz": 32, "sync_bn": False, "batch": 4, "epochs": 8, "workers": 0, "aux_weight": 0.0, "eval_interval": 1,
    "save_period": 0, "save_plots": False, "no_aug_epochs": 3, "warmup_epochs": 1.0, "ema_tau": 5.0, "resume": "auto",
}  # fmt: skip
# What a training imports when it comes to it; imported above, so that a forked life need not.
PRELOADED = (build, decode, detect, detection_metric, loss, run, torch._dynamo, torchvision)
SUBREAPER = 36  # linux/prctl.h, PR_SET_CHILD_SUBREAPER: orphans become children of this process, so none is overlooked
LIFELINES: list[Connection] = []
PATIENCE = 60.0  # seconds for the processes of a life to be gone; the promise is 30, on a machine that is not crowded
CODES = {"parent": {-9}, "rank": {1}, "save": {1, -9}, "validation": {1, -9}}  # of the parent


@dataclass(frozen=True)
class Fault:
    """kind: a key of CODES, or "signal". number: what is sent. at: when, as a part of an undisturbed life; None: in a validation or while saving.

    to: "parent" or a rank. nth: which save or validation. stage: how far the writing has come.
    """

    kind: str
    number: int
    to: str | int
    at: float | None = None
    nth: int = 1
    stage: str = ""

    def __str__(self) -> str:
        place = "save" if self.kind == "save" else "validation"
        where = f"in {place} {self.nth} {self.stage}".rstrip() if self.at is None else f"at {self.at:.2f}"
        return f"{signal.Signals(self.number).name} to {self.to if self.to == 'parent' else f'rank {self.to}'} {where}"


def draw_fault(draws: random.Random) -> Fault:
    kind = draws.choice(["parent", "parent", "rank", "rank", "rank", "save", "validation", "signal", "signal", "signal"])
    to: str | int = draws.choice(["parent", 0, 1])
    if kind == "save":
        stage = draws.choice(["half written", "before the flush", "before the rename", "after the rename"])
        return Fault(kind, signal.SIGKILL, draws.choice(["parent", 0]), None, draws.randint(1, 4), stage)
    if kind == "validation":
        return Fault(kind, signal.SIGKILL, to, None, draws.randint(1, 2))
    if kind == "signal":
        number = draws.choice([signal.SIGTERM, signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2])
        inside = draws.random() < 0.25
        return Fault(kind, number, to, None if inside else draws.uniform(0.1, 0.9), draws.randint(1, 2))
    return Fault(kind, signal.SIGKILL, "parent" if kind == "parent" else draws.randint(0, 1), draws.uniform(0.02, 0.9))


# ------------------------------------------------------------------------------------------------------------------ inside a life


def live(data: Path, project: Path, log: Path, fault: Fault | None) -> None:
    """Be the parent of one life of a run; never returns."""
    code = 1
    try:
        file = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        os.dup2(file, 1), os.dup2(file, 2)
        torch.multiprocessing.spawn, spawn.Pipe = fork_rank, pipe  # type: ignore[assignment]
        if fault is not None and fault.at is None:
            arm(fault)
        LibreYOLO("yolo9t").train(data=str(data), project=str(project), **KEYS)
        code = 0
    except SystemExit as leaving:
        code = int(leaving.code or 0)
    except BaseException as error:
        print(f"{type(error).__name__}: {error}", file=sys.stderr)
    finally:
        with suppress(Exception):
            sys.stdout.flush(), sys.stderr.flush()
        os._exit(code)


def fork_rank(function: Callable[..., None], args: tuple[Any, ...], nprocs: int, join: bool) -> Any:
    """Start a rank as torch.multiprocessing.spawn does, but forked, with nothing in it of what a fresh process would not have."""

    def begin(index: int, rank: int, job: Any, lifeline: Connection) -> None:
        for held in LIFELINES:
            held.close()
        function(index, rank, job, lifeline)

    return torch.multiprocessing.start_processes(begin, args, nprocs=nprocs, join=join, start_method="fork")


def pipe(duplex: bool) -> tuple[Connection, Connection]:
    """Make a lifeline and remember the parent's end of it, which a fresh process would not inherit."""
    ends = multiprocessing.Pipe(duplex)
    LIFELINES.append(ends[1])
    return ends


def arm(fault: Fault) -> None:
    """Make the fault happen in the right rank, when it comes to the right place."""
    seen = collections.Counter[str]()

    def strike() -> None:
        os.kill(os.getppid() if fault.to == "parent" else os.getpid(), fault.number)
        if fault.to == "parent" and fault.number == signal.SIGKILL:
            time.sleep(60)  # this rank is about to be taken along

    def my_turn(place: str) -> bool:
        if os.environ.get("RANK") != str(0 if fault.to == "parent" else fault.to):
            return False
        seen[place] += 1
        return seen[place] == fault.nth

    if fault.kind == "save":
        arm_save(fault.stage, my_turn, strike)
        return
    validate = trainer.validate

    def hurt(*arguments: Any, **settings: Any) -> Any:
        if my_turn("validation"):
            strike()
        return validate(*arguments, **settings)

    trainer.validate = hurt


def arm_save(stage: str, my_turn: Callable[[str], bool], strike: Callable[[], None]) -> None:
    write, save, fsync, rename = checkpoint.write, torch.save, os.fsync, Path.replace
    turn = False

    def whole(content: Any, path: Path) -> None:
        nonlocal turn
        turn = my_turn("save")
        write(content, path)

    def when(place: str) -> None:
        if turn and stage == place:
            strike()

    def half(content: Any, stream: Any) -> None:
        save(content, stream)
        if turn and stage == "half written":
            stream.truncate(stream.tell() // 2)
            stream.flush()
            strike()

    def flush(handle: int) -> None:
        when("before the flush")
        fsync(handle)

    def take_the_name(path: Path, target: Any) -> Path:
        when("before the rename")
        found = rename(path, target)
        when("after the rename")
        return found

    checkpoint.write, torch.save, os.fsync, Path.replace = whole, half, flush, take_the_name  # type: ignore[assignment, method-assign]


# ------------------------------------------------------------------------------------------------------------------ outside of it


class Campaign:
    """Runs, one after another, each of as many lives as its faults leave it."""

    def __init__(self, out: Path, seed: int) -> None:
        self.out, self.draws = out, random.Random(seed)
        self.data = make_shapes(out / "data", num_train=8, num_val=4, size=32)
        self.temporary = out / "tmp"
        self.temporary.mkdir()
        tempfile.tempdir = str(self.temporary)
        os.environ |= {"TMPDIR": str(self.temporary), "LIBREYOLO_CACHE": str(out / "cache")}
        self.kinds: collections.Counter[str] = collections.Counter()
        self.codes: collections.Counter[int] = collections.Counter()
        self.runs, self.lives, self.midway, self.longest = 0, 0, 0, 0.0
        self.whole, self.seconds = self._undisturbed()

    def _undisturbed(self) -> tuple[Path, float]:
        began = time.monotonic()
        code = self._life(self.out / "whole", None)
        expect(code == 0, f"the undisturbed run ended with {code}: see {self.out / 'whole.log'}")
        return only(self.out.glob("whole/*/weights/last.pt")), time.monotonic() - began

    def run(self, most_kills: int) -> None:
        """Take one run to its end, disturbing it while there are kills left."""
        self.runs += 1
        project, position = self.out / f"run{self.runs}", (0, 0)
        while True:
            fault = draw_fault(self.draws) if sum(self.kinds.values()) < most_kills else None
            code = self._life(project, fault)
            position = self._check_checkpoint(project, position)
            if code == 0 or self._is_complete(project):  # a signal may come with the end
                break
        self._compare(project, killed=code < 0)
        shutil.rmtree(project)

    def _is_complete(self, project: Path) -> bool:
        return any(json.loads(path.read_text())["state"] == "completed" for path in project.glob("*/status.json"))

    def _life(self, project: Path, fault: Fault | None) -> int:
        """Live one life and return its exit code, negative for a signal; nothing of it may stay."""
        self.lives += 1
        log = project.with_suffix(".log")
        pid = os.fork()
        if pid == 0:
            live(self.data, project, log, fault)
        struck = fault is not None and (fault.at is None or self._strike(pid, fault))
        _, status = os.waitpid(pid, 0)
        code = os.waitstatus_to_exitcode(status)
        gone = self._wait_for_the_rest(log)
        # A life that came to its end all the same was not hit: it had no such save or validation left, or ended in that moment.
        if fault is not None and struck and code != 0:
            allowed = CODES.get(fault.kind, {128 + fault.number, -fault.number})
            expect(code in allowed, f"life {self.lives} ended with {code} after {fault}: see {log}")
            self.kinds[fault.kind if fault.kind != "signal" else signal.Signals(fault.number).name] += 1
            self.codes[code] += 1
            self.longest = max(self.longest, gone)
        else:
            expect(code == 0, f"life {self.lives} ended with {code} though nothing was done to it ({fault}): see {log}")
        return code

    def _strike(self, pid: int, fault: Fault) -> bool:
        """Send the signal when its time has come; return whether somebody was there to get it."""
        assert fault.at is not None
        until = time.monotonic() + fault.at * self.seconds
        parent = psutil.Process(pid)
        while parent.status() != psutil.STATUS_ZOMBIE:
            ranks = ranks_of(parent)
            if time.monotonic() >= until and (fault.to == "parent" or len(ranks) == KEYS["nproc"]):
                with suppress(ProcessLookupError):
                    os.kill(pid if fault.to == "parent" else ranks[int(fault.to)], fault.number)
                return True
            time.sleep(0.01)
        return False

    def _wait_for_the_rest(self, log: Path) -> float:
        began = time.monotonic()
        while True:
            with suppress(ChildProcessError):
                while os.waitpid(-1, os.WNOHANG)[0]:
                    pass
            left = psutil.Process().children(recursive=True)
            if not left:
                return time.monotonic() - began
            expect(time.monotonic() - began < PATIENCE, f"life {self.lives} left processes behind ({left}): see {log}")
            time.sleep(0.02)

    def _check_checkpoint(self, project: Path, before: tuple[int, int]) -> tuple[int, int]:
        """Return how far the run's last.pt has come; it must load, and not be older than it was."""
        found = sorted(project.glob("*/weights/last.pt"))
        if not found:
            expect(before == (0, 0), f"{project} has lost its checkpoint")
            return before
        content = checkpoint.read(only(iter(found)))
        position = (int(content["progress"]["epoch"]), int(content["progress"]["step_in_epoch"]))
        expect(position >= before, f"{found[0]} went back from {before} to {position}")
        self.midway += position[1] > 0
        return position

    def _compare(self, project: Path, killed: bool) -> None:
        """Compare a finished run with the undisturbed one, and look for what may be left.

        killed: its parent was, after everything was done; its temporary folders go with the next run, and the page that it was writing stays a
        half-written file.
        """
        last = only(project.glob("*/weights/last.pt"))
        found, expected = checkpoint.read(last), checkpoint.read(self.whole)
        different = [key for key in ("train_model", "ema", "optimizer") if not same(found[key], expected[key])]
        expect(not different, f"{last} differs from an undisturbed run in {different}")
        expect(rows(last) == rows(self.whole), f"{last.parents[1] / 'results.csv'} differs from that of an undisturbed run")
        status = json.loads((last.parents[1] / "status.json").read_text())
        expect(status["state"] == "completed", f"{last.parents[1]} is {status['state']}")
        expect({p.name for p in last.parent.iterdir()} == {"best.pt", "last.pt"}, f"{last.parent} holds more than its checkpoints")
        hidden = [p for p in last.parents[1].rglob(".*") if p.name not in (".hydra", LOCK_FILE)]
        expect(not [p for p in hidden if not (killed and p.name.startswith(".report.html."))], f"left over: {hidden}")
        ours = [p.name for p in self.temporary.iterdir() if p.name != f"torchinductor_{getpass.getuser()}"]  # torch keeps a cache there
        expect(killed or not ours, f"left over: {ours}")


def ranks_of(parent: psutil.Process) -> list[int]:
    """Return the process numbers of a life's ranks, in the order of their starts; multiprocessing's resource tracker is none of them."""
    found = []
    for child in parent.children():
        with suppress(psutil.Error):  # it has just ended
            if "resource_tracker" not in " ".join(child.cmdline()):
                found.append((child.create_time(), child.pid))
    return [pid for _, pid in sorted(found)]


def same(one: Any, other: Any) -> bool:
    if isinstance(one, torch.Tensor):
        return torch.equal(one, other)
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(same(one[k], other[k]) for k in one)
    if isinstance(one, (list, tuple)):
        return len(one) == len(other) and all(same(a, b) for a, b in zip(one, other, strict=True))
    return bool(one == other)


def rows(last: Path) -> list[dict[str, Any]]:
    table = read_results(last.parents[1] / "results.csv")
    return [{k: v for k, v in row.items() if k != "time" and not k.startswith(("speed/", "system/"))} for row in table]


def only(paths: Any) -> Path:
    found = list(paths)
    expect(len(found) == 1, f"expected one of {found}")
    return Path(found[0])


def expect(fact: bool, otherwise: str) -> None:
    if not fact:
        sys.exit(otherwise)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, required=True)
    given = parser.parse_args()
    os.nice(5)
    ctypes.CDLL(None).prctl(SUBREAPER, 1, 0, 0, 0)
    take_the_place_of_yolo9()
    given.out.mkdir(parents=True)
    began = time.monotonic()
    campaign = Campaign(given.out.absolute(), given.seed)
    while sum(campaign.kinds.values()) < given.kills:
        campaign.run(given.kills)
        print(f"{sum(campaign.kinds.values())} kills, {campaign.runs} runs, {campaign.lives} lives, {time.monotonic() - began:.0f} s", flush=True)
    kinds = ", ".join(f"{name} {count}" for name, count in sorted(campaign.kinds.items()))
    codes = ", ".join(f"{code}: {count}" for code, count in sorted(campaign.codes.items()))
    print(f"kills by kind: {kinds}")
    print(f"exit codes of the parent: {codes}")
    print(f"lives that ended with a checkpoint inside an epoch: {campaign.midway}")
    print(f"an undisturbed life: {campaign.seconds:.1f} s; longest until the last process of a life was gone: {campaign.longest:.1f} s")


if __name__ == "__main__":
    main()
