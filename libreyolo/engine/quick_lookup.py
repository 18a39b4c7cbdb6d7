"""A network's children and parameters, found at once: torch looks each one up in Python code of its own, thousands of times in a step."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from torch import nn


@contextmanager
def looked_up_quickly(net: nn.Module) -> Iterator[None]:
    """For the block, let every module of `net` find its children and parameters among its plain attributes, where Python looks first.

    Values of tensors may change in the block, and what is assigned to a name is found; entries of `_modules` and `_parameters` must stay.
    """
    modules = list(net.modules())
    for module in modules:
        module.__dict__ |= module._modules | module._parameters
    try:
        yield
    finally:
        for module in modules:
            for name in module._modules | module._parameters:
                module.__dict__.pop(name, None)
