"""What every task's assembly offers to `build`."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import numpy as np
import torch

from libreyolo.data.counterparts import composed
from libreyolo.data.dataset_yaml import SPLITS
from libreyolo.data.loader import resolve_workers
from libreyolo.data.memory import available_cpus
from libreyolo.errors import UserError, nearest
from libreyolo.interfaces.batch import Batch
from libreyolo.interfaces.data_report import DataReport
from libreyolo.interfaces.events import Listener
from libreyolo.interfaces.family import Family
from libreyolo.interfaces.input import InputSpec
from libreyolo.interfaces.task import Loader, Task
from libreyolo.recipe import Recipe
from libreyolo.results import Result

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Seat:
    """Where one rank sits."""

    rank: int
    world_size: int
    ranks_on_host: int
    device: torch.device

    def workers(self, requested: int, *, tell: bool = True) -> int:
        """Return the loader processes of this rank: as many as requested, never more over all ranks than the host has CPUs.

        tell: whether rank 0 says it where there are fewer.
        """
        allowed, message = resolve_workers(requested, self.ranks_on_host, available_cpus())
        if message and tell and self.rank == 0:
            log.info("%s", message)
        return allowed


@dataclass(frozen=True)
class Predictor:
    """What turns pictures in memory into results.

    task: only `forward` and `decode` of it are asked for. prepare: uint8 RGB pictures and the network input (h, w) -> an evaluation batch on the
    CPU. result: picture, its decoded prediction, its file (or None) -> what `predict` returns.
    """

    task: Task
    prepare: Callable[[list[np.ndarray], tuple[int, int]], Batch]
    result: Callable[[np.ndarray, Any, Path | None], Result]


@dataclass(frozen=True)
class Judged:
    """What a model is judged on where nothing is trained: the one split that is read, and the model's classes.

    Raises UserError for a split that is not known.
    """

    split: str
    names: Mapping[int, str]

    def __post_init__(self) -> None:
        if self.split not in SPLITS:
            raise UserError(f"split={self.split} is not known: choose {', '.join(SPLITS[:-1])} or {SPLITS[-1]}.")


class Assembly(Protocol):
    """The data of a run, read and checked, and everything made from it."""

    names: dict[int, str]

    def __init__(self, family: Family, recipe: Recipe, spec: InputSpec, cwd: Path, judged: Judged | None = None) -> None:
        """Read the data: what a training needs, or what is `judged` and nothing else. Raises UserError for what is wrong with it."""

    def task(self, split: str = "val", **evaluation: Any) -> Task:
        """Return the task, with its loss and the truth of `split`; `evaluation` overrides thresholds. Raises UserError for one it has not."""

    def train_loader(self, seat: Seat, batch: int) -> Loader:
        """Return the training loader of a rank; `batch` is the global micro-batch."""

    def val_loader(self, seat: Seat, batch: int, split: str = "val") -> Loader | None:
        """Return the evaluation loader of a rank (`batch` pictures at a time on each), or None where there is no such split."""

    @classmethod
    def predictor(cls, family: Family, spec: InputSpec, names: dict[int, str], **settings: Any) -> Predictor:
        """Return what predicts; `settings` are those of `predict` that the caller gave. Raises UserError for one that this task has not."""

    @classmethod
    def check(cls, data: str | Path, *, cwd: Path) -> DataReport:
        """Look at a whole data set without training on it; every mistake of the user's becomes a finding, none is raised, nothing is written.

        A task without readers of its own takes another's (`check = DetectionAssembly.check`).
        """

    def pictures(self, run_dir: Path) -> list[Listener]:
        """Return the listeners that draw this task's pictures."""

    def close(self) -> None:
        """Give back shared memory."""


@runtime_checkable
class HasExample(Protocol):
    """An assembly that can name a picture to try a trained model on."""

    def example(self) -> Path | None:
        """Return a picture file that was not trained on, or one that was where there is no other; None where there is no file."""


def refuse_unknown(given: Mapping[str, Any], known: Iterable[str], what: str) -> None:
    """Raise UserError for the first setting that `what` ("predicting boxes") does not have."""
    allowed = list(known)
    for name in given:
        if name not in allowed:
            knows = f"it has {', '.join(allowed)}" if allowed else "it has no such settings"
            raise UserError(f"{name}={given[name]} means nothing for {what}: {knows}.{nearest(name, allowed)}")


def refuse_other_classes(data: Any, found: Mapping[int, str], known: Mapping[int, str]) -> None:
    """Raise UserError where the classes of a data set, `found`, are not those of the model, `known`: another number, or one with another id.

    Names that the model lacks are only warned about: ids are compared, and a set may be labelled in another language.
    """
    if len(found) != len(known):
        raise UserError(f"{data} has {len(found)} classes and this model {len(known)}: they must agree to be compared.")
    own = {_plain(name): class_id for class_id, name in known.items()}
    other = [class_id for class_id, name in found.items() if _plain(name) != _plain(known[class_id])]
    moved = next((class_id for class_id in other if _plain(found[class_id]) in own), None)
    if moved is not None:
        name = found[moved]
        raise UserError(
            f"{data} has the classes of this model in another order ({name} is {moved} there, {own[_plain(name)]} here): give them the order of the "
            "model's names."
        )
    if other:
        first = other[0]
        log.warning(
            "%s: %d classes have other names than in the model (%d is %s, in the model %s); ids are compared.",
            data,
            len(other),
            first,
            found[first],
            known[first],
        )


def _plain(name: str) -> str:
    return composed(name.strip()).casefold()
