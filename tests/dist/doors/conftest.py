"""Trainings started as a user starts them, on a set of a dozen small pictures; and looking for what stays behind."""

from __future__ import annotations

import contextlib
import csv
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import psutil
import pytest
from PIL import Image

from tests.dist.launch.conftest import until

ROOT = Path(__file__).parents[3]
TRAIN = str(ROOT / "train.py")
TORCHRUN = ("-m", "torch.distributed.run", "--standalone", "--nproc_per_node=2")
# A small network without its training-only branch, two steps an epoch, no pictures: a run of two ranks is mostly start-up.
SMALL = {
    "imgsz": 64,
    "epochs": 1,
    "batch": 4,
    "workers": 0,
    "eval_interval": 1,
    "save_plots": False,
    "save_period": 0,
    "aux_weight": 0.0,
    "device": "cpu",
}
LIKE_TRAIN_PY = """
import os, signal
from pathlib import Path
import train
from libreyolo import door
from libreyolo.engine import trainer
from libreyolo.errors import UserError

def rank():  # at the call: a worker gets its rank after it has imported this script
    return os.environ.get("RANK", "parent")
{patch}
if __name__ == "__main__":
    door.enter(train.main)
"""


def words(**changes: object) -> list[str]:
    """Return the small run's settings as command-line overrides."""
    return [f"{key}={value}" for key, value in {**SMALL, **changes}.items()]


def make_data(folder: Path, *, classes: int = 2, name: str = "data.yaml") -> Path:
    """Write 8 training and 4 validation pictures of 64 pixels with one coloured square each; return the data.yaml."""
    rng = np.random.default_rng(0)
    for split, count in (("train", 8), ("val", 4)):
        for kind in ("images", "labels"):
            (folder / kind / split).mkdir(parents=True, exist_ok=True)
        for index in range(count):
            pixels = rng.integers(0, 60, (64, 64, 3), dtype=np.uint8)
            pixels[16:48, 16:48, index % classes] = 230
            Image.fromarray(pixels).save(folder / "images" / split / f"{index}.png")
            (folder / "labels" / split / f"{index}.txt").write_text(f"{index % classes} 0.5 0.5 0.5 0.5\n")
    (folder / name).write_text(f"path: .\ntrain: images/train\nval: images/val\nnames: {['red', 'green', 'blue'][:classes]}\n")
    return folder / name


@dataclass
class Ended:
    """A process that is over."""

    code: int
    out: str
    err: str


@dataclass
class Started:
    """A process that runs, and every descendant that was seen."""

    process: subprocess.Popen[str]
    seen: dict[int, psutil.Process] = field(default_factory=dict)
    looked: float = 0.0

    def look(self) -> bool:
        """Note the descendants, now and then (it reads all of /proc); return whether the process is over."""
        if time.monotonic() < self.looked + 0.5:
            return self.process.poll() is not None
        self.looked = time.monotonic()
        with contextlib.suppress(psutil.NoSuchProcess):
            self.seen.update({child.pid: child for child in psutil.Process(self.process.pid).children(recursive=True)})
        return self.process.poll() is not None

    def until(self, condition: Callable[[], object], what: str) -> None:
        """Poll until `condition()`; an end of the process before that is a failure."""

        def met() -> bool:
            over = self.look()
            if condition():
                return True
            assert not over, f"ended before {what}: {self.process.communicate()}"
            return False

        until(met, what)

    def end(self, seconds: float = 400) -> Ended:
        """Wait for the end; nothing that it started may stay."""
        until(self.look, "the end", seconds)
        out, err = self.process.communicate()
        until(
            lambda: not any(child.is_running() and child.status() != psutil.STATUS_ZOMBIE for child in self.seen.values()), "its processes' end", 15
        )
        return Ended(self.process.returncode, out, err)


class Workplace:
    """A folder to start trainings in: `data/` holds the set, `tmp/` takes temporary files."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.started: list[Started] = []
        (folder / "tmp").mkdir()
        make_data(folder / "data")

    @property
    def runs(self) -> list[Path]:
        """Run directories of the Hydra door."""
        return sorted(self.folder.glob("outputs/*/*"))

    @property
    def temporary(self) -> list[str]:
        return [path.name for path in (self.folder / "tmp").iterdir() if path.name.startswith(("launch", "libreyolo"))]

    def script(self, text: str, name: str = "script.py") -> str:
        (self.folder / name).write_text(text)
        return name

    def start(self, *command: str, environ: dict[str, str] | None = None, stdin: Path | None = None) -> Started:
        """Start Python with these arguments."""
        variables = {name: value for name, value in os.environ.items() if not name.startswith(("SLURM", "TORCHELASTIC"))}
        own = {
            "PYTHONPATH": f"{self.folder}{os.pathsep}{ROOT}",
            "TMPDIR": str(self.folder / "tmp"),
            "OMP_NUM_THREADS": "1",
            "LIBREYOLO_CACHE": str(self.folder / "cache"),
            "PYTHONDONTWRITEBYTECODE": "1",
        }
        with contextlib.ExitStack() as stack:
            feed = stack.enter_context(stdin.open()) if stdin else subprocess.DEVNULL
            process = subprocess.Popen(
                [sys.executable, *command],
                cwd=self.folder,
                env={**variables, **own, **(environ or {})},
                stdin=feed,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )
        self.started.append(Started(process))
        return self.started[-1]

    def run(self, *command: str, environ: dict[str, str] | None = None, stdin: Path | None = None) -> Ended:
        return self.start(*command, environ=environ, stdin=stdin).end()

    def close(self) -> None:
        for started in self.started:
            started.look()
            for child in [*started.seen.values(), started.process]:
                with contextlib.suppress(psutil.NoSuchProcess):
                    child.send_signal(signal.SIGKILL)
            started.process.wait()


@pytest.fixture
def workplace(tmp_path: Path) -> Iterator[Workplace]:
    place = Workplace(tmp_path)
    yield place
    place.close()


@pytest.fixture(scope="module")
def shared_workplace(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Workplace]:
    place = Workplace(tmp_path_factory.mktemp("shared"))
    yield place
    place.close()


def rows(run_dir: Path) -> list[dict[str, str]]:
    """Return the lines of results.csv."""
    with (run_dir / "results.csv").open() as file:
        return [{key.strip(): value.strip() for key, value in row.items()} for row in csv.DictReader(file)]


def epochs_in(run_dir: Path) -> list[int]:
    return [int(row["epoch"]) for row in rows(run_dir)]
