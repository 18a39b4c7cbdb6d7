"""Runs as a user starts them, on a set of a dozen small pictures."""

from __future__ import annotations

import os
import random
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image, ImageDraw

from libreyolo import LibreYOLO

ROOT = Path(__file__).parents[2]
COLOURS = ((220, 30, 30), (30, 60, 220), (40, 200, 60))
# A run of a few seconds: two steps an epoch on 64 pixels, no auxiliary branch.
QUICK: dict[str, Any] = {
    "imgsz": 64, "batch": 4, "epochs": 2, "workers": 0, "device": "cpu", "warmup_epochs": 1, "no_aug_epochs": 1, "aux_weight": 0.0,
    "eval_interval": 1, "save_plots": False, "save_period": 0, "ema_tau": 5.0,
}  # fmt: skip


def draw_picture(path: Path, seed: int, classes: tuple[int, ...]) -> None:
    """Draw one square for each class on grey and write its label file."""
    draws = random.Random(seed)
    picture = Image.new("RGB", (64, 64), (draws.randrange(90, 160),) * 3)
    pen, rows = ImageDraw.Draw(picture), []
    for c in classes:
        x, y, side = draws.randrange(2, 30), draws.randrange(2, 30), draws.randrange(16, 32)
        pen.rectangle((x, y, x + side, y + side), fill=COLOURS[c])
        rows.append(f"{c} {(x + side / 2) / 64} {(y + side / 2) / 64} {side / 64} {side / 64}\n")
    path.parent.mkdir(parents=True, exist_ok=True)
    picture.save(path)
    label = Path(str(path.with_suffix(".txt")).replace("/images/", "/labels/"))
    label.parent.mkdir(parents=True, exist_ok=True)
    label.write_text("".join(rows))


def draw_set(folder: Path, *, num_train: int = 8, num_val: int = 4, yaml: str = "") -> Path:
    """Draw a set of two classes and return its data.yaml; `yaml` replaces the lines for the splits."""
    for i in range(num_train):
        draw_picture(folder / "images" / "train" / f"{i}.png", i, (0, 1) if i % 2 else (0,))
    for i in range(num_val):
        draw_picture(folder / "images" / "val" / f"{i}.png", 100 + i, (0, 1))
    lines = yaml or "train: images/train\nval: images/val\n"
    (folder / "data.yaml").write_text(f"path: .\n{lines}names: [red, blue]\n")
    return folder / "data.yaml"


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The data.yaml of a set of 8 training and 4 validation pictures."""
    return draw_set(tmp_path_factory.mktemp("tiny"))


@pytest.fixture(scope="session", autouse=True)
def own_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Keep the caches of these tests out of the user's."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("LIBREYOLO_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield


@dataclass(frozen=True)
class Run:
    """What a finished run returned and left."""

    result: dict[str, Any]

    @property
    def folder(self) -> Path:
        return Path(self.result["save_dir"])

    def checkpoint(self, name: str = "last.pt") -> dict[str, Any]:
        return torch.load(self.folder / "weights" / name, weights_only=True)

    @property
    def log(self) -> str:
        return (self.folder / "train.log").read_text()


def train(data: Path | str | None, project: Path, model: str | Path = "yolo9t", **arguments: Any) -> Run:
    """Train in this process, quickly unless `arguments` say otherwise."""
    return Run(LibreYOLO(model).train(data, **(QUICK | {"project": str(project)} | arguments)))


@dataclass(frozen=True)
class Answer:
    """How `python train.py ...` ended."""

    code: int
    stdout: str
    stderr: str


def train_py(*arguments: str, cwd: Path) -> Answer:
    """Run `python train.py` in a process of its own, as a user does."""
    environment = {k: v for k, v in os.environ.items() if k not in ("HYDRA_FULL_ERROR",)}
    command = [sys.executable, str(ROOT / "train.py"), *arguments]
    done = subprocess.run(command, cwd=cwd, env=environment, capture_output=True, text=True, timeout=300)
    return Answer(done.returncode, done.stdout, done.stderr)


def quick_overrides() -> list[str]:
    """Return QUICK as overrides for the Hydra door."""
    return [f"{name}={str(value).lower()}" for name, value in QUICK.items()]
