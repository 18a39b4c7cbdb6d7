"""Semantic segmentation: a class for every pixel, judged by the mean IoU of the classes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from libreyolo.interfaces.batch import SemanticBatch
from libreyolo.interfaces.input import InputSpec
from libreyolo.metrics.semantic import SemanticMetric
from libreyolo.ops.pixels import class_map
from libreyolo.tasks.criterion import CriterionTask
from libreyolo.tasks.passes import pictures_per_pass


class SemanticTask(CriterionTask[SemanticBatch]):
    """Three verbs for one segmenter.

    criterion: the family's loss; None where nothing is trained. class_logits: the family's decode, from the network's evaluation output to
    logits [B, C, h, w] of the whole input. samples: how many of the worst predictions the metric keeps, to be drawn.
    """

    best_metric = "metrics/mIoU"

    def __init__(self, *, criterion: Any, class_logits: Callable[[Any], Tensor], spec: InputSpec, names: dict[int, str], samples: int = 0) -> None:
        self.criterion, self.class_logits, self.spec, self.names, self.samples = criterion, class_logits, spec, names, samples

    def forward(self, net: nn.Module, batch: SemanticBatch) -> Tensor:
        """Return the network's output for evaluation, [B, ...], made in passes whose memory is bounded."""
        images = self._prepare(batch).images
        parts = images.split(pictures_per_pass(images.shape[-2], images.shape[-1]))
        found: Tensor = net(images) if len(parts) < 2 else torch.cat([net(part) for part in parts])
        return found

    def decode(self, output: Any, batch: SemanticBatch) -> list[Tensor]:
        """Return each picture's class map, uint8 [h, w] on the CPU, at the picture's original size.

        The logits, not the classes, are brought to that size; what shows padding is cut off before.
        """
        logits = self.class_logits(output)
        maps = []
        for i, (height, width) in enumerate(batch.original_hw.tolist()):
            shown = _shown(logits[i], batch.content[i].tolist(), (batch.images.shape[-2], batch.images.shape[-1]))
            maps.append(class_map(shown, (height, width)).cpu())
        return maps

    def metric(self) -> SemanticMetric:
        """Return a fresh accumulator."""
        return SemanticMetric(self.names, samples=self.samples)


def _shown(logits: Tensor, content: list[int], input_hw: tuple[int, int]) -> Tensor:
    """Return the part of [C, h, w] that shows the picture; logits may be coarser than the input by a whole factor."""
    y0, x0, y1, x1 = content
    rows, columns = logits.shape[-2] / input_hw[0], logits.shape[-1] / input_hw[1]
    top, left = round(y0 * rows), round(x0 * columns)
    bottom, right = max(top + 1, round(y1 * rows)), max(left + 1, round(x1 * columns))
    return logits[:, top:bottom, left:right]
