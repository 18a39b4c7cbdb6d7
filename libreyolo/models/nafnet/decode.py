"""From the network's output to a picture."""

from __future__ import annotations

from torch import Tensor


def restore(output: Tensor, hw: tuple[int, int]) -> Tensor:
    """Return the picture in the top left corner of an output [3, H, W]: float32 [3, h, w], RGB clipped to [0, 1]."""
    return output[:, : hw[0], : hw[1]].float().clamp(0.0, 1.0)
