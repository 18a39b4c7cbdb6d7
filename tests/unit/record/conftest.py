"""A fake run: the events a trainer would send, without any training."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from libreyolo.interfaces.batch import DetectionBatch, Detections
from libreyolo.interfaces.events import CheckpointSaved, EpochEnd, Listener, StepEnd, TrainEnd, TrainStart, ValidationEnd
from libreyolo.metrics.detection import DetectionMetric

NAMES = {0: "cat", 1: "dog"}


def row_of(epoch: int, *, validated: bool = True) -> dict[str, Any]:
    """The row of one epoch; the metric rises with the epoch."""
    row: dict[str, Any] = {
        "epoch": epoch,
        "time": 1.5 * epoch,
        "train/loss": 8.0 / epoch,
        "validated": validated,
        "is_best": validated,
        "current_metric": epoch / 10 if validated else None,
        "current_metric_name": "metrics/mAP50-95" if validated else None,
        "best_metric": epoch / 10 if validated else None,
        "best_metric_name": "metrics/mAP50-95" if validated else None,
        "best_epoch": epoch if validated else None,
        "train/box_loss": 4.0 / epoch,
    }
    if validated:
        row |= {"metrics/mAP50-95": epoch / 10, "metrics/precision(B)": 0.5}
    return row | {"lr/group0": 0.01}


def validation_of(epoch: int) -> ValidationEnd:
    """A validation with curves and one sample, from a real metric on two pictures."""
    truth = {0: ([[4, 4, 40, 40]], [0]), 1: ([[10, 10, 50, 30], [60, 20, 90, 60]], [1, 0])}
    metric = DetectionMetric(NAMES, lambda i: (np.array(truth[i][0], np.float32), np.array(truth[i][1])), num_pictures=2)
    found = [
        Detections(torch.tensor([[4.0, 4, 40, 42]]), torch.tensor([0.8]), torch.tensor([0])),
        Detections(torch.tensor([[10.0, 10, 50, 31], [0, 60, 20, 90]]), torch.tensor([0.9, 0.4]), torch.tensor([1, 1])),
    ]
    zeros = torch.zeros(2, 1, dtype=torch.int64)
    metric.update(
        DetectionBatch(
            torch.zeros(2, 3, 2, 2),
            torch.ones(2),
            torch.arange(2),
            0,
            torch.zeros(2, 2, dtype=torch.int64),
            torch.zeros(2, 1, 4),
            zeros,
            zeros.bool(),
            zeros[:, 0],
            torch.zeros(2, 2, dtype=torch.int64),
            torch.ones(2, 4),
        ),
        found,
    )
    image = np.full((96, 96, 3), 90, np.uint8)
    samples = [metric.sample(index, image, f"picture {index}") for index in metric.worst(2)]
    return ValidationEnd(epoch, metric.compute(), metric.curves(), samples)


def start_event(run_dir: Path, epochs: int = 5, start_epoch: int = 0) -> TrainStart:
    return TrainStart(run_dir, {"data": "pets.yaml", "lr0": 0.01}, epochs, start_epoch, 20, 1, NAMES, resumed=start_epoch > 0)


def step_event(epoch: int, step: int) -> StepEnd:
    return StepEnd(epoch, step, 20, (epoch - 1) * 20 + step, {"loss": 8.0 / epoch, "box_loss": 4.0 / epoch}, 0.01, 100.0, 0.05, 65.0, 3.2)


Runner = Callable[..., None]


@pytest.fixture
def run_epochs() -> Runner:
    """A player of epochs `start_epoch + 1 .. last` for listeners; `finish` also ends the run."""

    def play(listeners: Sequence[Listener], run_dir: Path, last: int, *, start_epoch: int = 0, epochs: int = 5, finish: bool = True) -> None:
        def tell(verb: str, event: Any) -> None:
            for listener in listeners:
                getattr(listener, verb)(event)

        tell("on_train_start", start_event(run_dir, epochs, start_epoch))
        for epoch in range(start_epoch + 1, last + 1):
            for step in range(1, 21):
                tell("on_step_end", step_event(epoch, step))
            validated = epoch % 2 == 1
            if validated:
                tell("on_validation_end", validation_of(epoch))
            tell("on_epoch_end", EpochEnd(epoch, row_of(epoch, validated=validated), validated))
            if validated:
                tell("on_checkpoint", CheckpointSaved(run_dir / "weights" / "best.pt", epoch, True))
            tell("on_checkpoint", CheckpointSaved(run_dir / "weights" / "last.pt", epoch, False))
        if finish:
            result = {"best_checkpoint": run_dir / "weights" / "best.pt", "last_checkpoint": run_dir / "weights" / "last.pt"}
            tell("on_train_end", TrainEnd(run_dir, result))

    return play


@pytest.fixture
def wandb(monkeypatch) -> Any:
    from tests.unit.record.services import FakeWandb

    fake = FakeWandb()
    monkeypatch.setitem(sys.modules, "wandb", fake)
    for name in ("WANDB_MODE", "WANDB_PROJECT", "WANDB_NAME"):
        monkeypatch.delenv(name, raising=False)
    return fake


@pytest.fixture
def mlflow(monkeypatch) -> Any:
    from tests.unit.record.services import FakeMlflow

    fake = FakeMlflow()
    monkeypatch.setitem(sys.modules, "mlflow", fake)
    return fake
