"""Varifocal loss (arXiv 2008.13367, eq. 2) with few targets among many predictions. Q queries, C classes, N targets."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor


def varifocal_sums(
    logits: Tensor,
    queries: Tensor,
    labels: Tensor,
    scores: Tensor,
    found: Tensor,
    *,
    alpha: float = 0.75,
    gamma: float = 2.0,
    class_weights: Tensor | None = None,
) -> Tensor:
    """Return the loss summed over queries and classes, [...], of logits [..., Q, C].

    queries, labels, scores, found: [..., N]; where `found`, the query's logit of that label shall predict `scores` (an IoU, detached), with
    the score as weight; every other logit shall predict 0, weighted by alpha * p^gamma with p held constant. A pair of query and label occurs once.
    class_weights: [C] factors of the classes.
    """
    # BCE(x, t) = softplus(x) - t x: nearly everything is background, so no [..., Q, C] target is made; the few others are corrected.
    background = alpha * logits.detach().sigmoid().pow(gamma) * F.softplus(logits)
    if class_weights is not None:
        background = background * class_weights.to(background, non_blocking=True)
    index = queries * logits.shape[-1] + labels
    picked = logits.flatten(-2).gather(-1, index)
    positive = scores * (F.softplus(picked) - scores * picked)
    if class_weights is not None:
        positive = positive * class_weights.to(positive, non_blocking=True)[labels]
    change = positive - background.flatten(-2).gather(-1, index)
    return background.sum(dim=(-2, -1)) + (change * found.to(change.dtype)).sum(dim=-1)
