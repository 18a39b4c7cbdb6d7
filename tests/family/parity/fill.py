"""Weights, images and targets made by rule from names and shapes alone; needs nothing of ours, so that a recorder can use it too.

A tensor's values come from a standard normal generator seeded by crc32 of its state-dict name, drawn in float64 and kept in float32:
  constants that an architecture computes itself (KEEP) and integer tensors    unchanged
  running_mean                                                                 0.05 n
  running_var                                                                  1 + 0.1 |n|
  vectors that are added (biases and the like)                                 0.05 n
  other vectors                                                                1 + 0.1 n
  the rest                                                                     sqrt(2) n / sqrt(fan in)
Deep SiLU stacks collapse or explode under random running statistics: evaluate after `compare.take_batch_statistics`.
"""

from __future__ import annotations

import math
import zlib

import numpy as np
import torch
from torch import Tensor, nn

KEEP = {"num_batches_tracked", "anchors", "valid_mask", "num_points_scale", "up", "reg_scale", "periods", "_kp_active_mask"}
ADDED = ("bias", "token")

# Per picture: class, x1, y1, x2, y2 in fractions of the sides.
TARGETS = [
    [(3, 0.10, 0.15, 0.45, 0.55), (17, 0.50, 0.40, 0.95, 0.90), (3, 0.05, 0.60, 0.30, 0.85)],
    [(41, 0.25, 0.20, 0.80, 0.75)],
]

# A whole picture, a box whose sides run through cell centres (4 px), two that hold no centre, two equal ones and one nearly so; an empty
# picture.
CROWDED = [
    [
        (5, 0.0, 0.0, 1.0, 1.0),
        (5, 0.05, 0.05, 0.95, 0.975),
        (7, 0.025, 0.025, 0.275, 0.275),
        (12, 0.51, 0.51, 0.53, 0.53),
        (12, 0.76, 0.26, 0.77, 0.29),
        (7, 0.3, 0.3, 0.6, 0.6),
        (7, 0.3, 0.3, 0.6, 0.6),
        (8, 0.31, 0.3, 0.6, 0.625),
    ],
    [],
    [(0, 0.5, 0.125, 0.975, 0.375), (79, 0.5, 0.375, 0.975, 0.625)],
]


def value(name: str, shape: tuple[int, ...]) -> np.ndarray | None:
    """Return the float32 values of a floating tensor, None when it stays as built."""
    last = name.rsplit(".", 1)[-1]
    if last in KEEP:
        return None
    n = np.random.Generator(np.random.PCG64(zlib.crc32(name.encode()))).standard_normal(shape)
    is_vector = len(shape) <= 1 or (last != "weight" and sum(side > 1 for side in shape) <= 1)
    if last == "running_mean":
        filled = 0.05 * n
    elif last == "running_var":
        filled = 1 + 0.1 * np.abs(n)
    elif is_vector:
        is_added = any(word in last for word in ADDED) or last == "beta" or "implicit_a" in name
        filled = 0.05 * n if is_added else 1 + 0.1 * n
    else:
        fan_in = math.prod(shape[2:] if len(shape) == 3 and shape[0] == 1 else shape[1:])
        filled = math.sqrt(2) * n / math.sqrt(fan_in)
    return filled.astype(np.float32)


def fill(model: nn.Module) -> None:
    """Set every tensor of the module's state dict by rule; of two names of one storage the later wins."""
    with torch.no_grad():
        for name, tensor in model.state_dict().items():
            values = value(name, tuple(tensor.shape)) if tensor.is_floating_point() else None
            if values is not None:
                tensor.copy_(torch.from_numpy(values))


def pictures(height: int, width: int, *, count: int = 2, seed: int = 1234) -> Tensor:
    """Return [count, 3, height, width] float32 in [0, 1): waves that differ per picture and channel, and noise."""
    noise = np.random.Generator(np.random.PCG64(seed)).random((count, 3, height, width))
    y = (np.arange(height) / height)[None, None, :, None]
    x = (np.arange(width) / width)[None, None, None, :]
    picture = np.arange(1.0, count + 1)[:, None, None, None]
    channel = np.arange(1.0, 4)[None, :, None, None]
    waves = 0.5 + 0.5 * np.sin(2 * np.pi * (picture * y + channel * x))
    return torch.from_numpy((0.5 * waves + 0.5 * noise).astype(np.float32))


def class_masks(height: int, width: int, *, num_classes: int, count: int = 2) -> Tensor:
    """Return [count, height, width] uint8 class ids: tiles of 8 pixels, another class each; the top left tile is ignored (255)."""
    y, x, picture = np.arange(height)[None, :, None] // 8, np.arange(width)[None, None, :] // 8, np.arange(count)[:, None, None]
    masks = ((y + 2 * x + picture) % num_classes).astype(np.uint8)
    masks[:, :8, :8] = 255
    return torch.from_numpy(masks)
