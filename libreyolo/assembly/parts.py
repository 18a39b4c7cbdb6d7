"""What every task's assembly offers to `build`."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import torch

from libreyolo.data.loader import available_cpus, resolve_workers
from libreyolo.interfaces.events import Listener
from libreyolo.interfaces.family import Family
from libreyolo.interfaces.input import InputSpec
from libreyolo.interfaces.task import Loader, Task
from libreyolo.recipe import Recipe

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Seat:
    """Where one rank sits."""

    rank: int
    world_size: int
    ranks_on_host: int
    device: torch.device

    def workers(self, requested: int) -> int:
        """Return the loader processes of this rank: as many as requested, never more over all ranks than the host has CPUs."""
        allowed, message = resolve_workers(requested, self.ranks_on_host, available_cpus())
        if message and self.rank == 0:
            log.info("%s", message)
        return allowed


class Assembly(Protocol):
    """The data of a run, read and checked, and everything made from it."""

    names: dict[int, str]

    def __init__(self, family: Family, recipe: Recipe, spec: InputSpec, cwd: Path) -> None:
        """Read the data. Raises UserError for what is wrong with it."""

    def task(self, split: str = "val", **evaluation: Any) -> Task:
        """Return the task, with its loss and the truth of `split`; `evaluation` overrides thresholds."""

    def train_loader(self, seat: Seat, batch: int) -> Loader:
        """Return the training loader of a rank; `batch` is the global micro-batch."""

    def val_loader(self, seat: Seat, batch: int, split: str = "val") -> Loader | None:
        """Return the evaluation loader of a rank (`batch` pictures at a time on each), or None where there is no such split."""

    @classmethod
    def predictor(cls, family: Family, spec: InputSpec, names: dict[int, str], **settings: Any) -> Task:
        """Return a task that only predicts."""

    def pictures(self, run_dir: Path) -> list[Listener]:
        """Return the listeners that draw this task's pictures."""

    def close(self) -> None:
        """Give back shared memory."""
