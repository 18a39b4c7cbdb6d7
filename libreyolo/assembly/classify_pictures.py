"""What a classification run draws: class counts and a training batch at its start, the worst validation pictures as it goes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from libreyolo.data.classify import ClassifyData
from libreyolo.interfaces.batch import ClassifyBatch
from libreyolo.interfaces.events import TrainStart, ValidationEnd
from libreyolo.metrics.classification import ClassificationMetric
from libreyolo.record.plots.classify import ClassifyValidationPictures, draw_class_batch, draw_class_counts
from libreyolo.record.plots.listener import attempt


class ClassifyPictures(ClassifyValidationPictures):
    """Gives the picture listener the pictures themselves.

    first_batch: returns the first training batch, as the network sees it, on the CPU. samples: validation pictures drawn beside their class.
    """

    def __init__(
        self, run_dir: Path, names: dict[int, str], data: ClassifyData, *, first_batch: Callable[[int], ClassifyBatch], samples: int
    ) -> None:
        super().__init__(run_dir, names)
        self.data, self.first_batch, self.num_samples = data, first_batch, samples

    def on_train_start(self, event: TrainStart) -> None:
        super().on_train_start(event)
        attempt(self.folder / "labels.png", self._draw_counts)
        attempt(self.folder / "train_batch.png", lambda path: self._draw_batch(event.start_epoch, path))

    def on_validation_end(self, event: ValidationEnd) -> None:
        metric = next((m for m in event.samples if isinstance(m, ClassificationMetric)), None)
        pictures = self.data.val
        if metric is None or pictures is None:
            super().on_validation_end(event)
            return
        drawn = [metric.sample(i, pictures.image(i), pictures.path(i).name) for i in metric.worst(self.num_samples)]
        super().on_validation_end(replace(event, samples=drawn))

    def _draw_counts(self, path: Path) -> None:
        splits = {"train": self.data.train, "val": self.data.val}
        counts = {name: images.labels_histogram() for name, images in splits.items() if images is not None}
        draw_class_counts(counts, self.data.train.sizes, self.names, path)

    def _draw_batch(self, epoch: int, path: Path) -> None:
        batch = self.first_batch(epoch)
        draw_class_batch(batch.images, batch.labels, batch.shares, self.names, path)
