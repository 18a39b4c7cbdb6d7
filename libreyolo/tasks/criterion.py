"""The part of a task that is alike where one forward and the family's loss, its criterion, make the terms."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Generic, TypeVar

from torch import Tensor, nn

from libreyolo.interfaces.batch import Batch
from libreyolo.interfaces.input import InputSpec
from libreyolo.interfaces.term import Term
from libreyolo.ops.input import apply_input_spec

B = TypeVar("B", bound=Batch)


class CriterionTask(Generic[B]):
    """Asks the criterion for facts, stats and terms, and the network for its output, both on pictures in the family's input convention.

    criterion: the family's loss; None where nothing is trained.
    """

    criterion: Any
    spec: InputSpec

    def facts(self, batch: B) -> dict[str, int]:
        """Return what the family's forward needs to know of the whole batch."""
        return dict(self.criterion.facts(batch))

    def target_stats(self, batch: B) -> dict[str, Tensor]:
        """Return the normalisers that the batch decides without the network, where the family has such."""
        return dict(self.criterion.target_stats(batch))

    def terms(self, net: nn.Module, batch: B, facts: dict[str, int]) -> dict[str, Term]:
        """Run the training forward and the family's loss."""
        prepared = self._prepare(batch)
        return dict(self.criterion.terms(net(*self.criterion.inputs(prepared, facts)), prepared))

    def forward(self, net: nn.Module, batch: B) -> Any:
        """Return the network's output for evaluation."""
        return net(self._prepare(batch).images)

    def _prepare(self, batch: B) -> B:
        return replace(batch, images=apply_input_spec(batch.images, self.spec))
