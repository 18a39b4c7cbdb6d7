"""What every classifier's loss and decode are. B batch, C classes."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from libreyolo.interfaces.batch import ClassifyBatch
from libreyolo.interfaces.term import Term, per_count


class ClassificationLoss:
    """Cross-entropy, its mean over the pictures of all ranks.

    nc: number of classes. label_smoothing: the part of every label that is spread evenly over the classes (arXiv 1512.00567, section 7).
    class_weights: [C] factors of the labels' classes, None for 1. The mean stays one over pictures, not over weights, so that a mixed label and a
    plain one count alike.
    """

    def __init__(self, nc: int, *, label_smoothing: float = 0.0, class_weights: Tensor | None = None) -> None:
        self.nc, self.label_smoothing, self.class_weights = nc, label_smoothing, class_weights

    def inputs(self, batch: ClassifyBatch, facts: Mapping[str, int]) -> tuple[Tensor]:
        """Return the arguments of the network's forward."""
        return (batch.images,)

    def facts(self, batch: ClassifyBatch) -> dict[str, int]:
        """Return the numbers that ranks agree on before the forward: none."""
        return {}

    def target_stats(self, batch: ClassifyBatch) -> dict[str, Tensor]:
        """Return the normaliser, which the batch decides without the network: its real pictures."""
        return {"pictures": batch.weight.sum().reshape(1)}

    def terms(self, output: Tensor, batch: ClassifyBatch) -> dict[str, Term]:
        """Return the term "ce" of logits [B, C], always in float32 or wider. A picture of weight 0 adds nothing."""
        logits = output if output.dtype == torch.float64 else output.float()
        per_picture = cross_entropy(logits, batch.labels, batch.shares, self.label_smoothing, self.class_weights)
        return {"ce": per_count((batch.weight * per_picture).sum(), batch.weight.sum(), normaliser="pictures")}


def cross_entropy(logits: Tensor, labels: Tensor, shares: Tensor, smoothing: float = 0.0, class_weights: Tensor | None = None) -> Tensor:
    """Return -sum over c of w_c t_c log p_c for each picture, [B].

    logits: [B, C]. labels: [B, 2] class ids and shares: [B, 2] how much of the label each is (they add up to 1): the target t, of which
    `smoothing` is spread evenly over the classes. class_weights: [C], None for 1.
    """
    log_p = logits.log_softmax(dim=1)
    if class_weights is not None:
        log_p = log_p * class_weights.to(log_p, non_blocking=True)
    own = (shares.to(log_p.dtype) * log_p.gather(1, labels)).sum(dim=1)
    return -(1 - smoothing) * own - smoothing * log_p.mean(dim=1) if smoothing else -own


def probabilities(output: Tensor) -> Tensor:
    """Return the classes' probabilities, float32 [B, C], of logits [B, C]."""
    return output.float().softmax(dim=1)
