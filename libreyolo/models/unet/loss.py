"""The loss of unet: pixel cross-entropy of the head, and of the auxiliary head with a weight (Long et al., arXiv 1411.4038, summed over pixels)."""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor

from libreyolo.interfaces.batch import SemanticBatch
from libreyolo.interfaces.term import Term, per_count
from libreyolo.ops.pixels import labelled_pixels, pixel_cross_entropy


class UNetLoss:
    """The terms of a batch: sums over this rank's labelled pixels, to be divided by those of all ranks, at least 1.

    nc: number of classes. aux_weight: of the auxiliary head's term.
    """

    def __init__(self, nc: int, *, aux_weight: float) -> None:
        self.nc, self.aux_weight = nc, aux_weight

    def inputs(self, batch: SemanticBatch, facts: Mapping[str, int]) -> tuple[Tensor]:
        """Return the arguments of the network's forward."""
        return (batch.images,)

    def facts(self, batch: SemanticBatch) -> dict[str, int]:
        """Return the numbers that ranks agree on before the forward: none here."""
        return {}

    def target_stats(self, batch: SemanticBatch) -> dict[str, Tensor]:
        """Return the one normaliser there is: it is known before the forward."""
        return {"pixels": labelled_pixels(batch).reshape(1)}

    def terms(self, output: Tensor | tuple[Tensor, Tensor], batch: SemanticBatch) -> dict[str, Term]:
        """Return the term "main", and "aux" where the network gave it (in training). Without any labelled pixel both are 0."""
        count = labelled_pixels(batch)
        main, aux = output if isinstance(output, tuple) else (output, None)
        terms = {"main": per_count(pixel_cross_entropy(main, batch), count, normaliser="pixels")}
        if aux is not None:
            terms["aux"] = per_count(self.aux_weight * pixel_cross_entropy(aux, batch), count, normaliser="pixels")
        return terms


build = UNetLoss
