"""State dicts, by names and shapes alone."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from libreyolo.errors import UserError


def convolution_shape(state: Mapping[str, Tensor], name: str, family: str) -> torch.Size:
    """Return the shape of a convolution's weight, of four sides. Raises UserError where `state` has none of that name."""
    if name not in state or state[name].ndim != 4:
        raise UserError(f"These weights are not {family}: they have no convolution {name}.")
    return state[name].shape


def require_same(state: Mapping[str, Tensor], expected: Mapping[str, Tensor], family: str) -> None:
    """Raise UserError naming the first tensor of `state` that is missing, of another shape, or not part of `expected`.

    BatchNorm's step counters may be missing: old files, and those of frozen backbones, have none. family: its name, for the sentence.
    """
    for name, tensor in expected.items():
        if name not in state:
            if name.endswith("num_batches_tracked"):
                continue
            raise UserError(f"These weights are not a whole {family}: {name} is missing.")
        if state[name].shape != tensor.shape:
            raise UserError(f"These weights are not {family}: {name} has shape {tuple(state[name].shape)}, expected {tuple(tensor.shape)}.")
    for name in state:
        if name not in expected:
            raise UserError(f"These weights are not {family}: it has no {name}.")
