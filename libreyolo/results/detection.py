"""Boxes on a picture."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from PIL import Image

from libreyolo.interfaces.batch import Detections
from libreyolo.record.plots.boxes import Mark, class_color, draw_marks
from libreyolo.results.base import Result, count_names


@dataclass(frozen=True)
class DetectionResult(Result):
    """Detections on one picture, best first."""

    detections: Detections

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

    def summary(self) -> str:
        """Return how many boxes of each class there are: "3 RBC, 1 WBC"."""
        return count_names(self.cls, self.names)

    def plot(self) -> np.ndarray:
        """Return the picture with its boxes drawn in, uint8 [H, W, 3] RGB."""
        drawn = Image.fromarray(self.picture)
        rows = zip(self.xyxy.tolist(), self.cls.tolist(), self.conf.tolist(), strict=True)
        draw_marks(drawn, [Mark(tuple(box), f"{self.names[c]} {score:.2f}", class_color(c)) for box, c, score in rows])
        return np.asarray(drawn)
