"""What a point run draws: label statistics and the cells of a training batch at its start, the worst validation pictures as it goes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from libreyolo.assembly.detect_pictures import draw_box_statistics
from libreyolo.data.detection import DetectionData
from libreyolo.interfaces.batch import DetectionBatch
from libreyolo.interfaces.events import TrainStart, ValidationEnd
from libreyolo.metrics.point import PointMetric
from libreyolo.ops.cells import target_grid
from libreyolo.record.plots.listener import attempt
from libreyolo.record.plots.point import PointValidationPictures, draw_cells


class PointPictures(PointValidationPictures):
    """Gives the picture listener the pictures themselves.

    first_batch: returns the first training batch, as the network sees it, on the CPU. samples: validation pictures drawn beside their labels.
    stride: side of a cell in input pixels.
    """

    def __init__(
        self,
        run_dir: Path,
        names: dict[int, str],
        data: DetectionData,
        *,
        first_batch: Callable[[int], DetectionBatch],
        samples: int,
        stride: int,
    ) -> None:
        super().__init__(run_dir, names)
        self.data, self.first_batch, self.num_samples, self.stride = data, first_batch, samples, stride

    def on_train_start(self, event: TrainStart) -> None:
        super().on_train_start(event)
        attempt(self.folder / "labels.png", lambda path: draw_box_statistics(self.data.train, self.names, path))
        attempt(self.folder / "train_batch.png", lambda path: self._draw_batch(event.start_epoch, path))

    def on_validation_end(self, event: ValidationEnd) -> None:
        metric = next((m for m in event.samples if isinstance(m, PointMetric)), None)
        pictures = self.data.val
        if metric is not None and pictures is not None:
            worst = metric.worst(self.num_samples)
            drawn = [metric.sample(i, pictures.image(i), pictures.truth(i)[0], pictures.path(i).name) for i in worst]
            event = replace(event, samples=drawn)
        super().on_validation_end(event)

    def _draw_batch(self, epoch: int, path: Path) -> None:
        batch = self.first_batch(epoch)
        hw = (batch.images.shape[2] // self.stride, batch.images.shape[3] // self.stride)
        draw_cells(batch.images, target_grid(batch.boxes, batch.labels, batch.valid, hw, self.stride), self.stride, self.names, path)
