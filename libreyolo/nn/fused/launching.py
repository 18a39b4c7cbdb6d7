"""Kernels of which one launch is like the last one for the same map: what Triton looks at before every launch, it looks at once."""

from __future__ import annotations

from typing import Any

import triton
from torch import Tensor

# Since then a compiled kernel is launched with all arguments of its function, constants included, in this way.
KEEPS = tuple(int(part) for part in triton.__version__.split(".")[:2]) >= (3, 6)
ALIGNED = 16  # bytes; code for tensors that begin at a multiple of it is another one


def launch(
    ready: dict[Any, Any],
    key: Any,
    kernel: Any,
    programs: int,
    stream: int,
    tensors: tuple[Tensor, ...],
    numbers: tuple[float, ...],
    constants: dict[str, int],
) -> None:
    """Run `programs` programs of a kernel, whose function takes tensors, then numbers, then constants, in their order here (`num_warps` is the last).

    ready: what was compiled, by key. With equal keys, everything that code depends on is equal, but for where tensors lie: device, types of tensors,
    constants, numbers (whether they are 1, or a multiple of 16) unless the kernel does not look at them. stream: CUDA's number of the current one.
    """
    addresses = addresses_of(tensors)
    place = 0
    for address in addresses:
        place |= address
    kept = ready.get(key) if place % ALIGNED == 0 else None
    if kept is not None:
        run, function, metadata, values = kept
        # As Triton's own, but with numbers for tensors, of which it would ask CUDA again what they are.
        run(programs, 1, 1, stream, function, metadata, None, None, None, *addresses, *numbers, *values)
        return
    compiled = kernel[(programs, 1, 1)](*tensors, *numbers, **constants)
    if KEEPS and place % ALIGNED == 0 and compiled is not None:  # the interpreter compiles nothing
        ready[key] = compiled.run, compiled.function, compiled.packed_metadata, tuple(constants.values())[:-1]


def addresses_of(tensors: tuple[Tensor, ...]) -> list[int]:
    """Return where they begin."""
    return [tensor.data_ptr() for tensor in tensors]
