"""Whether Triton's kernels run where the tests do: on a GPU, else in Triton's interpreter (`tests/conftest.py`)."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os

import torch

ON_GPU = torch.cuda.is_available()
REASON = "triton comes with torch's CUDA builds; none that runs here is installed"


def _new_enough() -> bool:
    """The interpreter of older ones fails on any loop with a newer NumPy."""
    major, minor = importlib.metadata.version("triton").split(".")[:2]
    return (int(major), int(minor)) >= (3, 5)


INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1" and importlib.util.find_spec("triton") is not None and _new_enough()  # on CPU tensors
RUN = INTERPRETED or (ON_GPU and importlib.util.find_spec("triton") is not None)  # on tensors of the GPU where there is one
