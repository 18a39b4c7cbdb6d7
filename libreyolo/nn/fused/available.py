"""Whether Triton's kernels run on a device."""

from __future__ import annotations

import functools
import importlib.util
import os
import shutil
import sysconfig
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import torch

OLDEST = (8, 0)  # compute capability: older GPUs have no bfloat16, and Triton promises nothing for them


def runs_on(device: torch.device) -> bool:
    """Return whether the kernels run on this device."""
    return not obstacle(device)


def can_meet(device: torch.device) -> bool:
    """Return whether the kernels run on this device and may wait there for those of other ranks: flags are set and read in NVIDIA's assembly."""
    return runs_on(device) and torch.version.hip is None


@functools.cache
def obstacle(device: torch.device) -> str:
    """Return what keeps the kernels from running on this device, in a few words; "" where nothing does."""
    if device.type != "cuda":
        return "the kernels for both are for GPUs"
    if importlib.util.find_spec("triton") is None:
        return "triton, which torch brings along on CUDA machines, is not installed"
    if torch.version.hip is None and torch.cuda.get_device_capability(device) < OLDEST:
        return f"triton is for GPUs of compute capability {OLDEST[0]}.{OLDEST[1]} and more"
    # It builds a small Python module for every kernel that it launches.
    if not (os.environ.get("CC") or shutil.which("gcc") or shutil.which("clang")):
        return "triton finds no C compiler (gcc, clang, or the variable CC)"
    scheme = sysconfig.get_default_scheme()
    scheme = "posix_prefix" if scheme == "posix_local" else scheme  # Debian's; headers are where its own packages put them
    if not Path(sysconfig.get_paths(scheme)["include"], "Python.h").exists():
        return "triton finds no Python.h (Debian's package python3-dev)"
    return ""


def current(device: torch.device) -> AbstractContextManager[Any]:
    """Make this the device that kernels are launched on, which is the current one and not that of their tensors."""
    if device.type != "cuda" or device.index == torch._C._cuda_getDevice():
        return _AS_IT_IS
    return torch.cuda.device(device)


def stream(device: torch.device) -> int:
    """Return CUDA's number of the device's current stream, 0 on the CPU."""
    return int(torch._C._cuda_getCurrentRawStream(device.index)) if device.type == "cuda" else 0


_AS_IT_IS: AbstractContextManager[Any] = nullcontext()
