"""What a segmentation run draws: statistics of the classes and a training batch at its start, the worst validation pictures as it goes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from libreyolo.data.semantic import SemanticData
from libreyolo.interfaces.batch import SemanticBatch
from libreyolo.interfaces.events import TrainStart, ValidationEnd
from libreyolo.metrics.semantic import SHOWN_SIDE, SemanticMetric
from libreyolo.record.plots.listener import attempt
from libreyolo.record.plots.semantic import SemanticValidationPictures, draw_batch, draw_classes


class SemanticPictures(SemanticValidationPictures):
    """Gives the picture listener the pictures themselves.

    first_batch: returns the first training batch, as the network sees it, on the CPU. samples: validation pictures drawn beside their masks.
    """

    def __init__(
        self, run_dir: Path, names: dict[int, str], data: SemanticData, *, first_batch: Callable[[int], SemanticBatch], samples: int
    ) -> None:
        super().__init__(run_dir, names)
        self.data, self.first_batch, self.num_samples = data, first_batch, samples

    def on_train_start(self, event: TrainStart) -> None:
        super().on_train_start(event)
        attempt(self.folder / "labels.png", self._draw_classes)
        attempt(self.folder / "train_batch.png", lambda path: self._draw_batch(event.start_epoch, path))

    def on_validation_end(self, event: ValidationEnd) -> None:
        metric = next((m for m in event.samples if isinstance(m, SemanticMetric)), None)
        pictures = self.data.val
        if metric is None or pictures is None:
            super().on_validation_end(event)
            return
        side = (SHOWN_SIDE, SHOWN_SIDE)
        drawn = [metric.sample(i, pictures.image(i, side), pictures.path(i).name) for i in metric.worst(self.num_samples)]
        super().on_validation_end(replace(event, samples=drawn))

    def _draw_classes(self, path: Path) -> None:
        train = self.data.train
        draw_classes(train.class_pixels, train.class_pictures, len(train), self.names, path)

    def _draw_batch(self, epoch: int, path: Path) -> None:
        batch = self.first_batch(epoch)
        draw_batch(batch.images, batch.masks, self.names, path)
