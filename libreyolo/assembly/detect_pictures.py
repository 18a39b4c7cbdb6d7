"""What a detection run draws: label statistics and a training batch at its start, the worst validation pictures as it goes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np

from libreyolo.data.detection import DetectionData
from libreyolo.data.image_set import ImageSet
from libreyolo.interfaces.batch import DetectionBatch
from libreyolo.interfaces.events import TrainStart, ValidationEnd
from libreyolo.metrics.detection import DetectionMetric
from libreyolo.record.plots.detection import DetectionValidationPictures
from libreyolo.record.plots.labels import draw_labels
from libreyolo.record.plots.listener import attempt
from libreyolo.record.plots.train_batch import draw_batch


class DetectionPictures(DetectionValidationPictures):
    """Gives the picture listener the pictures themselves.

    first_batch: returns the first training batch, as the network sees it, on the CPU. samples: validation pictures drawn beside their labels.
    """

    def __init__(
        self, run_dir: Path, names: dict[int, str], data: DetectionData, *, first_batch: Callable[[int], DetectionBatch], samples: int
    ) -> None:
        super().__init__(run_dir, names)
        self.data, self.first_batch, self.num_samples = data, first_batch, samples

    def on_train_start(self, event: TrainStart) -> None:
        super().on_train_start(event)
        attempt(self.folder / "labels.png", lambda path: draw_box_statistics(self.data.train, self.names, path))
        attempt(self.folder / "train_batch.png", lambda path: self._draw_batch(event.start_epoch, path))

    def on_validation_end(self, event: ValidationEnd) -> None:
        metric = next((m for m in event.samples if isinstance(m, DetectionMetric)), None)
        pictures = self.data.val
        if metric is None or pictures is None:
            super().on_validation_end(event)
            return
        worst = metric.worst(self.num_samples)
        drawn = [metric.sample(i, pictures.image(i), pictures.path(i).name) for i in worst]
        super().on_validation_end(replace(event, samples=drawn))

    def _draw_batch(self, epoch: int, path: Path) -> None:
        batch = self.first_batch(epoch)
        draw_batch(batch.images, batch.boxes, batch.labels, batch.valid, self.names, path)


def draw_box_statistics(train: ImageSet, names: dict[int, str], path: Path) -> None:
    """Write the four panels of `draw_labels` for the boxes of a split."""
    corners = train.box_rows
    centred = np.concatenate([(corners[:, :2] + corners[:, 2:]) / 2, corners[:, 2:] - corners[:, :2]], axis=1)
    draw_labels(train.label_rows, centred, np.diff(train.offsets), names, path)
