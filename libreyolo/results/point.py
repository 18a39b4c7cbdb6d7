"""Points on a picture."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from PIL import Image

from libreyolo.interfaces.batch import Points
from libreyolo.record.plots.boxes import class_color
from libreyolo.record.plots.dots import Dot, draw_dots
from libreyolo.results.base import Result, count_names


@dataclass(frozen=True)
class PointResult(Result):
    """Points on one picture, best first."""

    points: Points

    def __len__(self) -> int:
        return len(self.points.scores)

    @property
    def xy(self) -> np.ndarray:
        """[D, 2] float32, pixels of the picture."""
        return self.points.xy.numpy()

    @property
    def conf(self) -> np.ndarray:
        """[D] float32 in [0, 1]."""
        return self.points.scores.numpy()

    @property
    def cls(self) -> np.ndarray:
        """[D] int64 class ids."""
        return self.points.labels.numpy()

    def summary(self) -> str:
        """Return how many points of each class there are: "3 RBC, 1 WBC"."""
        return count_names(self.cls, self.names)

    def plot(self) -> np.ndarray:
        """Return the picture with a dot at each point, uint8 [H, W, 3] RGB."""
        drawn = Image.fromarray(self.picture)
        rows = zip(self.xy.tolist(), self.cls.tolist(), self.conf.tolist(), strict=True)
        draw_dots(drawn, [Dot((x, y), f"{self.names[c]} {score:.2f}", class_color(c)) for (x, y), c, score in rows])
        return np.asarray(drawn)
