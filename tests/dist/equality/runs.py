"""Whole trainings through the Python door, and what their steps saw."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import torch

from libreyolo import LibreYOLO
from libreyolo.engine import collectives
from libreyolo.engine.step import TrainStep

# 6 pictures in fours: the last step of an epoch is short. Mosaic closes before the last epoch. A small rate, for a network with BatchNorm over so
# few pictures is chaotic: at 0.01 it multiplies a difference of rounding by 100 at every step.
KEYS: dict[str, Any] = {
    "device": "cpu", "imgsz": 64, "batch": 4, "workers": 0, "epochs": 3, "no_aug_epochs": 1, "warmup_epochs": 1.0, "aux_weight": 0.0, "lr0": 0.0005,
    "ema_decay": 0.5, "ema_tau": 2.0, "eval_interval": 1, "save_period": 1, "save_plots": False, "single_cls": True, "seed": 4,
}  # fmt: skip


@dataclass(frozen=True)
class Step:
    """One micro-batch over all ranks: learning rate, and by place in the epoch's list (index, weight, digest of pixels and boxes)."""

    lr: float
    momentum: float
    pictures: dict[tuple[int, int], tuple[int, float, str]]
    draws: list[tuple[float, float, float]]  # one number of Python, NumPy and torch for each rank


def learn_a_little(data: str, project: str) -> str:
    """Return weights that see something, so that metrics of what is trained from them are not all 0."""
    plain = {"mosaic_prob": 0.0, "hsv_prob": 0.0, "flip_prob": 0.0, "no_aug_epochs": 0, "batch": 6, "lr0": 0.01, "ema_decay": 0.9}
    length = {"epochs": 30, "warmup_epochs": 3.0, "eval_interval": 30, "save_period": 0}
    result = LibreYOLO("yolo9t").train(data=data, project=project, name="start", **{**KEYS, **plain, **length})
    return str(result["last_checkpoint"])


def train(start: str, data: str, project: str, name: str, keys: dict[str, Any] | None = None) -> dict[str, Any]:
    """Train from the weights `start` on this rank; return its steps (on rank 0), result and directory."""
    with recorded() as steps:
        result = LibreYOLO(start).train(data=data, project=project, name=name, exist_ok=True, **{**KEYS, **(keys or {})})
    return {"steps": steps, "dir": Path(result["save_dir"]), "result": result}


def resume(run_dir: str, keys: dict[str, Any] | None = None) -> dict[str, Any]:
    """Go on from a run directory."""
    with recorded() as steps:
        result = LibreYOLO("yolo9t").train(resume=run_dir, device="cpu", **(keys or {}))
    return {"steps": steps, "dir": Path(result["save_dir"]), "result": result}


@contextmanager
def recorded() -> Iterator[list[Step]]:
    """Write down what every step sees, over all ranks."""
    steps: list[Step] = []
    backward, move = TrainStep.backward, TrainStep.move
    gathered: Any = None

    def look(self: TrainStep, window: Sequence[Any], pictures: Sequence[int]) -> Any:
        nonlocal gathered
        mine = {k: v for batch in window for k, v in _pictures(batch).items()}
        draws = (random.random(), float(np.random.rand()), float(torch.rand(1)))
        gathered = collectives.gather_objects((mine, draws))
        return backward(self, window, pictures)

    def call(self: TrainStep) -> Any:
        if gathered is not None:
            group = self.optimizer.param_groups[0]
            seen = dict(sorted((k, v) for part, _ in gathered for k, v in part.items()))
            steps.append(Step(group["lr"], group["momentum"], seen, [d for _, d in gathered]))
        return move(self)

    with patch.object(TrainStep, "backward", look), patch.object(TrainStep, "move", call):
        yield steps


def _pictures(batch: Any) -> dict[tuple[int, int], tuple[int, float, str]]:
    found = {}
    for i, (epoch, place) in enumerate(batch.key.tolist()):
        digest = hashlib.blake2b(batch.images[i].numpy().tobytes(), digest_size=8)
        digest.update(batch.boxes[i][batch.valid[i]].numpy().tobytes())
        found[epoch, place] = (int(batch.index[i]), float(batch.weight[i]), digest.hexdigest())
    return found
