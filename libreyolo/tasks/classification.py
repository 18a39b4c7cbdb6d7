"""Classification: one class a picture, judged by how often the best guess, or one of five, is right."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from torch import Tensor

from libreyolo.interfaces.batch import ClassifyBatch, ClassScores
from libreyolo.interfaces.input import InputSpec
from libreyolo.metrics.classification import ClassificationMetric
from libreyolo.tasks.criterion import CriterionTask


class ClassificationTask(CriterionTask[ClassifyBatch]):
    """Three verbs for one classifier.

    criterion: the family's loss; classify: the family's decode, network output -> probabilities [B, C]. truth: int64 [P], the class of each picture
    that is judged.
    """

    best_metric = "metrics/accuracy_top1"

    def __init__(
        self, *, criterion: Any, classify: Callable[[Any], Tensor], spec: InputSpec, names: dict[int, str], truth: np.ndarray | None = None
    ) -> None:
        self.criterion, self.classify, self.spec, self.names, self.truth = criterion, classify, spec, names, truth

    def decode(self, output: Any, batch: ClassifyBatch) -> list[ClassScores]:
        """Return every picture's class probabilities."""
        return [ClassScores(probs) for probs in self.classify(output).float().cpu()]

    def metric(self) -> ClassificationMetric:
        """Return a fresh accumulator over the validation pictures. Needs `truth`."""
        assert self.truth is not None, "a task that is judged needs the truth"
        return ClassificationMetric(self.names, self.truth)
