"""What every task's data is to a run: three splits, the loaders of a seat, and memory to give back."""

from __future__ import annotations

from abc import ABC, abstractmethod
from pathlib import Path
from typing import Any, Generic, TypeVar

from libreyolo.assembly.parts import Judged, Seat
from libreyolo.data.dataset_yaml import SPLITS
from libreyolo.data.picture_cache import Cache, RamPictures
from libreyolo.interfaces.task import Loader
from libreyolo.recipe import Recipe

R = TypeVar("R", bound=Recipe)
S = TypeVar("S")

SHOWN = 16  # most pictures of a training batch that is drawn


class Splits(ABC, Generic[R, S]):
    """Base of the assemblies. A task's own reads `data`, whose `train`, `val` and `test` are sets of its kind (the latter two may be None), and
    says how batches are made of a set: `training_batches` and `judged_batches`."""

    recipe: R
    data: Any
    judged: Judged | None
    _told_of_workers = False

    @abstractmethod
    def training_batches(self, **seat: Any) -> Loader:
        """Return the training loader; seat: batch, and where it is not that of one process on the CPU, rank, world_size, workers and device."""

    @abstractmethod
    def judged_batches(self, judged: S, **seat: Any) -> Loader:
        """Return the evaluation loader of a set; seat: batch, rank, world_size, workers and device."""

    def kept(self) -> Cache:
        """Return which pictures are kept decoded, by the recipe; those that are seen only once are so only where that was asked for."""
        once = self.judged is not None or self.recipe.epochs == 1 or self.recipe.max_steps is not None
        cache: Cache = self.recipe.cache
        return False if cache == "auto" and once else cache

    def train_loader(self, seat: Seat, batch: int) -> Loader:
        return self.training_batches(batch=batch, **self._placed(seat))

    def val_loader(self, seat: Seat, batch: int, split: str = "val") -> Loader | None:
        judged = self.split(split)
        return None if judged is None else self.judged_batches(judged, batch=batch, **self._placed(seat))

    def first_batch(self, epoch: int) -> Any:
        """Return the first training batch of an epoch (at most SHOWN pictures), on the CPU."""
        return next(iter(self.training_batches(batch=min(self.recipe.batch, SHOWN)).epoch(epoch)))

    def split(self, name: str) -> S | None:
        """Return the training, validation or test set, which is read when it is first asked for; None where there is none."""
        found: S | None = getattr(self.data, name)
        return found

    def example(self) -> Path:
        """Return a picture to try the trained model on."""
        found: Path = (self.data.val or self.data.train).path(0)
        return found

    def close(self) -> None:
        """Give back the memory of kept pictures."""
        for pictures in self.read_so_far():
            cache = getattr(pictures, "cache", None)
            if isinstance(cache, RamPictures):
                cache.close()

    def read_so_far(self) -> list[S]:
        """Return the sets that were asked for and are there."""
        return [vars(self.data)[name] for name in SPLITS if vars(self.data).get(name) is not None]  # cached properties

    def _placed(self, seat: Seat) -> dict[str, Any]:
        workers = seat.workers(self.recipe.workers, tell=not self._told_of_workers)
        self._told_of_workers = True  # once, whatever number of loaders there are
        return {"rank": seat.rank, "world_size": seat.world_size, "workers": workers, "device": seat.device}
