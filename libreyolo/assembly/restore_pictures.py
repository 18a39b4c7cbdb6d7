"""What a restoration run draws: the data and a training batch at its start, the worst validation pictures as it goes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch

from libreyolo.data.pair_set import PairSet
from libreyolo.data.restore import RestoreData
from libreyolo.interfaces.batch import RestoreBatch
from libreyolo.interfaces.events import TrainStart, ValidationEnd
from libreyolo.metrics.restore import RestoreMetric, to_uint8
from libreyolo.metrics.similarity import psnr
from libreyolo.record.plots.listener import attempt
from libreyolo.record.plots.restore import RestoreValidationPictures
from libreyolo.record.plots.restore_data import draw_pair_batch, draw_pair_data

MEASURED = 64  # training pairs whose PSNR is measured for the picture of the data


class RestorePictures(RestoreValidationPictures):
    """Gives the picture listener the pictures themselves.

    first_batch: returns the first training batch, as the network sees it, on the CPU. samples: validation pictures drawn beside their targets. crop:
    (height, width) of a training crop.
    """

    def __init__(self, run_dir: Path, data: RestoreData, *, first_batch: Callable[[int], RestoreBatch], samples: int, crop: tuple[int, int]) -> None:
        super().__init__(run_dir, {})
        self.data, self.first_batch, self.num_samples, self.crop = data, first_batch, samples, crop

    def on_train_start(self, event: TrainStart) -> None:
        super().on_train_start(event)
        attempt(self.folder / "data.png", self._draw_data)
        attempt(self.folder / "train_batch.png", lambda path: self._draw_batch(event.start_epoch, path))

    def on_validation_end(self, event: ValidationEnd) -> None:
        metric = next((m for m in event.samples if isinstance(m, RestoreMetric)), None)
        pairs = self.data.val
        if metric is None or pairs is None:
            super().on_validation_end(event)
            return
        drawn = [metric.sample(i, *pairs.pair(i), pairs.path(i).name) for i in metric.worst(self.num_samples)]
        super().on_validation_end(replace(event, samples=drawn))

    def _draw_data(self, path: Path) -> None:
        draw_pair_data(self.data.train.inputs.sizes, psnr_of_some(self.data.train, MEASURED), self.crop, path)

    def _draw_batch(self, epoch: int, path: Path) -> None:
        batch = self.first_batch(epoch)
        draw_pair_batch([to_uint8(image) for image in batch.images], [to_uint8(target) for target in batch.targets], path)


def psnr_of_some(pairs: PairSet, count: int) -> np.ndarray:
    """Return the PSNR in dB of at most `count` inputs against their targets, spread evenly over the set; float64."""
    places = np.unique(np.linspace(0, len(pairs) - 1, min(count, len(pairs))).round().astype(int))
    figures = []
    for place in places.tolist():
        given, target = (torch.from_numpy(picture).double() / 255.0 for picture in pairs.pair(place))
        figures.append(psnr(given, target))
    return np.array(figures, np.float64)
