"""Published policies of random changes of colour and shape, drawn from a key. They are torchvision's."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from typing import Any

import torch
from PIL import Image


def apply_policy(name: str, picture: Image.Image, seed: int) -> Image.Image:
    """Return the picture changed by "randaugment" (arXiv 1909.13719), "autoaugment" (1805.09501) or "augmix" (1912.02781).

    The draws are a function of `seed`; the process's generators are as before.
    """
    with _drawing_from(seed):
        changed: Image.Image = _policy(name)(picture)
    return changed


@lru_cache(maxsize=4)
def _policy(name: str) -> Any:
    from torchvision.transforms import InterpolationMode, v2  # seconds to import, for those who ask for a policy only

    # AugMix works on tensors, which torchvision cannot turn with a bicubic filter.
    kind, interpolation = {
        "randaugment": (v2.RandAugment, InterpolationMode.BICUBIC),
        "autoaugment": (v2.AutoAugment, InterpolationMode.BICUBIC),
        "augmix": (v2.AugMix, InterpolationMode.BILINEAR),
    }[name]
    return kind(interpolation=interpolation)


@contextmanager
def _drawing_from(seed: int) -> Iterator[None]:
    """Seed torch's generator of the CPU alone: `torch.manual_seed` would set those of the GPUs back at every picture too."""
    before = torch.default_generator.get_state()
    torch.default_generator.manual_seed(seed)
    try:
        yield
    finally:
        torch.default_generator.set_state(before)
