"""Points: object centres on a coarse grid, judged by the F1 of centres found."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from torch import Tensor

from libreyolo.interfaces.batch import DetectionBatch, Points
from libreyolo.interfaces.input import InputSpec
from libreyolo.metrics.point import PointMetric
from libreyolo.tasks.criterion import CriterionTask

# (network output, conf, radii, classes) -> cells, scores, labels and which stay at which radius of every picture, best first.
Locate = Callable[..., list[tuple[Tensor, Tensor, Tensor, Tensor]]]


class PointTask(CriterionTask[DetectionBatch]):
    """Three verbs for one point network.

    criterion: the family's loss; locate: the family's decode; stride: side of its cells in input pixels. thresholds, radii, tolerance: what an
    evaluation tries and allows (see `PointMetric`); a prediction has one threshold and one radius. max_det: most points of a picture.
    """

    best_metric = "metrics/grid_F1"

    def __init__(
        self,
        *,
        criterion: Any,
        locate: Locate,
        stride: int,
        spec: InputSpec,
        names: dict[int, str],
        thresholds: Sequence[float],
        radii: Sequence[int],
        tolerance: float = 0.0,
        num_pictures: int = 0,
        max_det: int = 300,
        classes: Sequence[int] | None = None,
    ) -> None:
        self.criterion, self.locate, self.stride, self.spec, self.names = criterion, locate, stride, spec, names
        self.thresholds, self.radii, self.tolerance = list(thresholds), list(radii), tolerance
        self.num_pictures, self.max_det, self.classes = num_pictures, max_det, classes

    def decode(self, output: Any, batch: DetectionBatch) -> list[Points]:
        """Return every point above the lowest threshold that stays at some radius, in pixels of the original pictures."""
        found = self.locate(output, conf=min(self.thresholds), radii=self.radii, classes=self.classes)
        return [self._to_original(*parts, batch.to_input[i]) for i, parts in enumerate(found)]

    def metric(self) -> PointMetric:
        """Return a fresh accumulator over the validation pictures."""
        return PointMetric(
            self.names,
            num_pictures=self.num_pictures,
            stride=self.stride,
            thresholds=self.thresholds,
            radii=self.radii,
            tolerance=self.tolerance,
        )

    def _to_original(self, cells: Tensor, scores: Tensor, labels: Tensor, kept: Tensor, to_input: Tensor) -> Points:
        """Move to the host, keep the `max_det` best of every radius, and undo (x_input = s * x + t) for the cells' centres."""
        kept = kept.cpu()
        kept &= kept.cumsum(dim=0) <= self.max_det
        rows = kept.any(dim=1)
        cells = cells.cpu()[rows]
        xy = ((cells.float() + 0.5) * self.stride - to_input[2:]) / to_input[:2]
        return Points(xy, scores.float().cpu()[rows], labels.cpu()[rows], cells, kept[rows])
