"""Detection: boxes with classes, judged by COCO's average precision."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from libreyolo.interfaces.batch import DetectionBatch, Detections
from libreyolo.interfaces.input import InputSpec
from libreyolo.metrics.detection import DetectionMetric
from libreyolo.tasks.criterion import CriterionTask

# Index of a picture -> its boxes [k, 4] xyxy in original pixels and its class ids [k].
Truth = Callable[[int], tuple[np.ndarray, np.ndarray]]
# (network output, conf, iou, max_det, classes) -> boxes in input pixels, scores, labels of every picture, best first.
Detect = Callable[..., list[tuple[Tensor, Tensor, Tensor]]]


class DetectionTask(CriterionTask[DetectionBatch]):
    """Three verbs for one detector.

    criterion: the family's loss; detect: the family's decode. `conf` and `iou` are those of evaluation (low, so that the whole precision-recall
    curve is seen).
    """

    best_metric = "metrics/mAP50-95"

    def __init__(
        self,
        *,
        criterion: Any,
        detect: Detect,
        spec: InputSpec,
        names: dict[int, str],
        truth: Truth | None = None,
        num_pictures: int = 0,
        conf: float = 0.001,
        iou: float = 0.6,
        max_det: int = 300,
        eval_max_det: int | None = None,
        classes: Sequence[int] | None = None,
    ) -> None:
        self.criterion, self.detect, self.spec = criterion, detect, spec
        self.names, self.truth, self.num_pictures = names, truth, num_pictures
        self.conf, self.iou, self.max_det, self.classes = conf, iou, max_det, classes
        self.eval_max_det = eval_max_det or max_det

    def decode(self, output: Any, batch: DetectionBatch) -> list[Detections]:
        """Return detections in pixels of the original pictures, clipped to them."""
        content = content_of(batch).to(batch.images.device, non_blocking=True)
        found = self.detect(output, conf=self.conf, iou=self.iou, max_det=self.max_det, classes=self.classes, content=content)
        return [_to_original(boxes, scores, labels, batch.to_input[i], batch.original_hw[i]) for i, (boxes, scores, labels) in enumerate(found)]

    def metric(self) -> DetectionMetric:
        """Return a fresh accumulator over the validation pictures. Needs `truth`."""
        assert self.truth is not None, "a task that is judged needs the truth"
        return DetectionMetric(self.names, self.truth, num_pictures=self.num_pictures, max_det=self.eval_max_det)


def content_of(batch: DetectionBatch) -> Tensor:
    """Return the part of each input that holds its picture, [B, 4] float32 xyxy in input pixels, on the CPU."""
    start = batch.to_input[:, 2:]
    size = batch.to_input[:, :2] * batch.original_hw.flip(1).float()
    return torch.cat([start, start + size], dim=1)


def _to_original(boxes: Tensor, scores: Tensor, labels: Tensor, to_input: Tensor, hw: Tensor) -> Detections:
    """Undo (x_input = s * x + t), clip to the picture, and move to the host."""
    scale, shift = to_input[:2].repeat(2), to_input[2:].repeat(2)
    original = (boxes.float().cpu() - shift) / scale
    height, width = (float(v) for v in hw)
    original[:, 0::2] = original[:, 0::2].clamp(0, width)
    original[:, 1::2] = original[:, 1::2].clamp(0, height)
    return Detections(original, scores.float().cpu(), labels.cpu().to(torch.int64))
