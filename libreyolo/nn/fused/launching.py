"""Kernels of which one launch is like the last one for the same map: what Triton looks at before every launch, it looks at once."""

from __future__ import annotations

from typing import Any

import triton
from torch import Tensor

# Since then a compiled kernel is launched with all arguments of its function, constants included.
KEEPS = tuple(int(part) for part in triton.__version__.split(".")[:2]) >= (3, 6)
ALIGNED = 16  # bytes; code for tensors that begin at a multiple of it is another one


def launch(
    ready: dict[Any, Any], key: Any, kernel: Any, programs: int, tensors: tuple[Tensor, ...], numbers: tuple[float, ...], **constants: int
) -> None:
    """Run `programs` programs of a kernel, whose function takes tensors, then numbers, then constants, in their order here (and `num_warps`).

    ready: what was compiled, by key. With equal keys, everything that code depends on is equal, but for where tensors lie: device, types of tensors,
    constants, numbers (whether they are 1, or a multiple of 16) unless the kernel does not look at them.
    """
    place = 0
    for tensor in tensors:
        place |= tensor.data_ptr()
    grid = (programs, 1, 1)
    compiled = ready.get(key) if place % ALIGNED == 0 else None
    if compiled is not None:
        constants.pop("num_warps")
        compiled[grid](*tensors, *numbers, *constants.values())
        return
    compiled = kernel[grid](*tensors, *numbers, **constants)
    if KEEPS and place % ALIGNED == 0 and compiled is not None:  # the interpreter compiles nothing
        ready[key] = compiled
