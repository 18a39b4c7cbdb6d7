"""The network's own number convention."""

from __future__ import annotations

import torch
from torch import Tensor

from libreyolo.interfaces.input import InputSpec


def apply_input_spec(images: Tensor, spec: InputSpec) -> Tensor:
    """Return RGB [B, 3, H, W] in [0, 1] in the network's own convention: channel order, scale, then (x - mean) / std. Never in place.

    Works on any device without a synchronisation: the constants are arguments of the kernels, not tensors to be copied.
    """
    if spec.channels == "bgr":
        images = images.flip(1)
    if spec.scale != 1.0:
        images = images * spec.scale
    if spec.mean == (0.0, 0.0, 0.0) and spec.std == (1.0, 1.0, 1.0):
        return images
    return torch.stack([(images[:, c] - spec.mean[c]) / spec.std[c] for c in range(3)], dim=1)
