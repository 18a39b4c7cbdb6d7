"""Repeatable kernels while training, and everything as it was afterwards."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager

import torch

log = logging.getLogger(__name__)

CUBLAS = "CUBLAS_WORKSPACE_CONFIG"  # read by cuBLAS when it makes its handle; torch warns where it is missing


@contextmanager
def deterministic_kernels(wanted: bool) -> Iterator[None]:
    """Ask torch for repeatable kernels inside the block where `wanted`; torch's setting and the environment are put back."""
    before, warn_only, workspace = torch.are_deterministic_algorithms_enabled(), _warns_only(), os.environ.get(CUBLAS)
    if wanted:
        os.environ.setdefault(CUBLAS, ":4096:8")
        torch.use_deterministic_algorithms(True, warn_only=True)
        log.info("deterministic=true: repeatable kernels where torch has them; expect slower steps.")
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(before, warn_only=warn_only)
        if workspace is None:
            os.environ.pop(CUBLAS, None)


def _warns_only() -> bool:
    return torch.is_deterministic_algorithms_warn_only_enabled()
