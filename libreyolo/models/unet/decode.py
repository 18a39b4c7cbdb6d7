"""From unet's output to class logits of the input."""

from __future__ import annotations

from torch import Tensor


def class_logits(output: Tensor) -> Tensor:
    """Return the logits [B, C, h, w] of the whole input, at whatever resolution the network has; evaluation gives nothing else."""
    return output
