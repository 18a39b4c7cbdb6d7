"""What `predict` returns for one picture, whatever the task."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from PIL import Image

from libreyolo.errors import UserError


@dataclass(frozen=True)
class Result(ABC):
    """A picture and what a model says of it; each task adds its own fields.

    picture: uint8 [H, W, 3] RGB. names: class id to name. path: the file, or None for a picture in memory.
    """

    picture: np.ndarray
    names: dict[int, str]
    path: Path | None

    @abstractmethod
    def summary(self) -> str:
        """Return what was found in a few words, for a line in the shell."""

    @abstractmethod
    def plot(self) -> np.ndarray:
        """Return a picture of the result, uint8 [H, W, 3] RGB."""

    def product(self) -> np.ndarray:
        """Return the picture that `save` writes, uint8 [H, W, 3] RGB: the drawn one, unless the task makes pictures itself."""
        return self.plot()

    def save(self, path: str | Path) -> Path:
        """Write the result as a picture and return its path; folders are made, an existing file is replaced.

        Raises UserError where it can't be written, and where it would replace the picture itself.
        """
        target = Path(path)
        if self.path is not None and _is_same(target, self.path):
            raise UserError(f"{target} is the picture itself, which is never replaced; choose another name or folder.")
        try:
            target.parent.mkdir(parents=True, exist_ok=True)
            Image.fromarray(self.product()).save(target)
        except (OSError, ValueError) as error:  # ValueError: a suffix that Pillow does not know
            raise UserError(f"{target} could not be written: {error}.") from error
        return target


def _is_same(one: Path, other: Path) -> bool:
    try:
        return one.samefile(other)
    except (OSError, ValueError):  # one of them is not there, or can't be
        return False


def count_names(labels: np.ndarray, names: dict[int, str]) -> str:
    """Return how many of each class there are: "3 RBC, 1 WBC", or "nothing". labels: int64 [D] class ids."""
    counts = [(name, int((labels == i).sum())) for i, name in names.items()]
    return ", ".join(f"{n} {name}" for name, n in counts if n) or "nothing"


def save_all(results: Sequence[Result], folder: Path) -> list[Path]:
    """Write the pictures of the results into `folder`, named as their files (or picture_0, ...), and return their paths.

    Files of one name from two folders, or with two suffixes, get a number each: none replaces another of the same call, nor any file in a folder that
    pictures came from. Elsewhere an existing file is replaced.
    """
    origins = {result.path.parent.resolve() for result in results if result.path}
    taken = {path.stem for path in folder.iterdir() if path.suffix == ".png"} if folder.is_dir() and folder.resolve() in origins else set()
    paths = []
    for index, result in enumerate(results):
        stem = name = result.path.stem if result.path else f"picture_{index}"
        number = 1
        while name in taken:
            number += 1
            name = f"{stem}_{number}"
        taken.add(name)
        paths.append(result.save(folder / f"{name}.png"))
    return paths
