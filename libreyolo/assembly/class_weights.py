"""Weights of classes in a loss, from how often each occurs."""

from __future__ import annotations

import numpy as np
import torch


def class_weights(counts: np.ndarray, power: float) -> torch.Tensor | None:
    """Return float32 weights by class: inverse frequency to `power`, with mean 1; a class that never occurs counts as one that occurs once.

    counts: how often each class occurs, [C]. None where all weights are 1, with power 0.
    """
    if power == 0:
        return None
    weights = (1.0 / np.maximum(counts, 1).astype(np.float64)) ** power
    return torch.from_numpy(weights / weights.mean()).float()
