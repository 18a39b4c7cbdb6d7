"""The device on which CUDA does what names no device: events, streams, captures, Triton kernels and the loader's pinning thread."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch


def current(device: torch.device) -> AbstractContextManager[Any]:
    """Make a CUDA device the current one inside the block, so that nothing opens a context on GPU 0 or waits for it; other kinds need nothing."""
    return torch.cuda.device(device) if device.type == "cuda" else nullcontext()
