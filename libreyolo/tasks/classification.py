"""Classification: one class a picture, judged by how often the best guess, or one of five, is right."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
from torch import Tensor, nn

from libreyolo.interfaces.batch import ClassifyBatch, ClassScores
from libreyolo.interfaces.input import InputSpec
from libreyolo.interfaces.term import Term
from libreyolo.metrics.classification import ClassificationMetric
from libreyolo.ops.input import apply_input_spec


class ClassificationTask:
    """Three verbs for one classifier.

    criterion: the family's loss; classify: the family's decode, network output -> probabilities [B, C]. truth: int64 [P], the class of each picture
    that is judged.
    """

    best_metric = "metrics/accuracy_top1"

    def __init__(
        self, *, criterion: Any, classify: Callable[[Any], Tensor], spec: InputSpec, names: dict[int, str], truth: np.ndarray | None = None
    ) -> None:
        self.criterion, self.classify, self.spec, self.names, self.truth = criterion, classify, spec, names, truth

    def facts(self, batch: ClassifyBatch) -> dict[str, int]:
        """Return what the family's forward needs to know of the whole batch."""
        return dict(self.criterion.facts(batch))

    def target_stats(self, batch: ClassifyBatch) -> dict[str, Tensor]:
        """Return the normalisers that the batch decides without the network."""
        return dict(self.criterion.target_stats(batch))

    def terms(self, net: nn.Module, batch: ClassifyBatch, facts: dict[str, int]) -> dict[str, Term]:
        """Run the training forward and the family's loss."""
        prepared = self._prepare(batch)
        return dict(self.criterion.terms(net(*self.criterion.inputs(prepared, facts)), prepared))

    def forward(self, net: nn.Module, batch: ClassifyBatch) -> Any:
        """Return the network's output for evaluation."""
        return net(self._prepare(batch).images)

    def decode(self, output: Any, batch: ClassifyBatch) -> list[ClassScores]:
        """Return every picture's class probabilities."""
        return [ClassScores(probs) for probs in self.classify(output).float().cpu()]

    def metric(self) -> ClassificationMetric:
        """Return a fresh accumulator over the validation pictures. Needs `truth`."""
        assert self.truth is not None, "a task that is judged needs the truth"
        return ClassificationMetric(self.names, self.truth)

    def _prepare(self, batch: ClassifyBatch) -> ClassifyBatch:
        return replace(batch, images=apply_input_spec(batch.images, self.spec))
