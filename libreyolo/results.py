"""What `predict` returns for one picture."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from libreyolo.errors import UserError
from libreyolo.interfaces.batch import Detections
from libreyolo.record.plots.boxes import Mark, class_color, draw_marks


@dataclass(frozen=True)
class Result:
    """Detections on one picture, best first.

    picture: uint8 [H, W, 3] RGB. path: the file, or None for a picture in memory. names: class id to name.
    """

    picture: np.ndarray
    detections: Detections
    names: dict[int, str]
    path: Path | None = None
    extras: dict[str, Any] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.detections.scores)

    @property
    def xyxy(self) -> np.ndarray:
        """[D, 4] float32, pixels of the picture."""
        return self.detections.boxes.numpy()

    @property
    def conf(self) -> np.ndarray:
        """[D] float32 in [0, 1]."""
        return self.detections.scores.numpy()

    @property
    def cls(self) -> np.ndarray:
        """[D] int64 class ids."""
        return self.detections.labels.numpy()

    def plot(self) -> np.ndarray:
        """Return the picture with its boxes drawn in, uint8 [H, W, 3] RGB."""
        drawn = Image.fromarray(self.picture)
        rows = zip(self.xyxy.tolist(), self.cls.tolist(), self.conf.tolist(), strict=True)
        draw_marks(drawn, [Mark(tuple(box), f"{self.names[c]} {score:.2f}", class_color(c)) for box, c, score in rows])
        return np.asarray(drawn)

    def save(self, path: str | Path) -> Path:
        """Write the drawn picture; folders are made, an existing file is replaced. Return its path. Raises UserError where it can't."""
        target = Path(path)
        try:
            target.parent.mkdir(parents=True, exist_ok=True)
            Image.fromarray(self.plot()).save(target)
        except (OSError, ValueError) as error:  # ValueError: a suffix that Pillow does not know
            raise UserError(f"{target} could not be written: {error}.") from error
        return target


def save_all(results: Sequence[Result], folder: Path) -> list[Path]:
    """Write the drawn pictures into `folder`, named as their files (or picture_0, ...), and return their paths.

    Files of one name from two folders, or with two suffixes, get a number each: none replaces another of the same call.
    """
    taken: set[str] = set()
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
