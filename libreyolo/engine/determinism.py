"""Which kernels torch takes while training, repeatable ones or the fastest that are found, and everything as it was afterwards."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager

import torch

log = logging.getLogger(__name__)

CUBLAS = "CUBLAS_WORKSPACE_CONFIG"  # read by cuBLAS when it makes its handle; torch warns where it is missing


@contextmanager
def kernels(*, deterministic: bool = False, cudnn_benchmark: bool = False) -> Iterator[None]:
    """Inside the block, ask torch for repeatable kernels, or let cuDNN try its algorithms; torch's settings and the environment are put back.

    cudnn_benchmark: whenever a convolution meets maps of a size that it has not met before; which one is the fastest may differ from run to run, and
    with it the last digits. What neither asks for stays as the caller of this process has it.
    """
    search = torch.backends.cudnn.benchmark
    before, warn_only, workspace = torch.are_deterministic_algorithms_enabled(), _warns_only(), os.environ.get(CUBLAS)
    if deterministic:
        os.environ.setdefault(CUBLAS, ":4096:8")
        torch.use_deterministic_algorithms(True, warn_only=True)
        log.info("deterministic=true: repeatable kernels where torch has them; expect slower steps.")
    if cudnn_benchmark:
        torch.backends.cudnn.benchmark = True
        log.info("cudnn_benchmark=true: cuDNN tries its algorithms at every new input size; two runs may differ by rounding.")
    try:
        yield
    finally:
        torch.backends.cudnn.benchmark = search
        torch.use_deterministic_algorithms(before, warn_only=warn_only)
        if workspace is None:
            os.environ.pop(CUBLAS, None)


def _warns_only() -> bool:
    return torch.is_deterministic_algorithms_warn_only_enabled()
