"""A device from which nothing can be read, for tests that nothing waits for the device: torch's "meta" device, watched.

On a GPU the host waits wherever it needs a value (a condition, a number, a shape that follows from values), and wherever it copies from ordinary
memory without `non_blocking`. A meta tensor has no values, so the first kind is an error by itself; the second one is looked for here.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest import mock

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

DEVICE = torch.device("meta")

# Operators whose result, or its shape, CUDA works out on the host.
VALUES = frozenset({"_local_scalar_dense", "nonzero", "masked_select", "_unique2", "unique_dim", "unique_consecutive", "equal", "bincount"})
INDEXED = frozenset({"index", "index_put", "index_put_"})


class WaitsError(Exception):
    """What is raised where the host would wait for the device."""


class _Operators(TorchDispatchMode):
    """Raises at operators that wait. every: those on the CPU too, as if it were a device."""

    def __init__(self, every: bool) -> None:
        super().__init__()
        self.every = every

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        name = func._schema.name.removeprefix("aten::")
        if name in VALUES or name in INDEXED or (name == "repeat_interleave" and kwargs.get("output_size") is None):
            self._look(name, args, kwargs)
        if name == "_to_copy" and _blocks(args[0].device, kwargs.get("device") or args[0].device, kwargs.get("non_blocking", False)):
            raise WaitsError("a copy that blocks")
        if name == "copy_" and _blocks(args[1].device, args[0].device, args[2] if len(args) > 2 else kwargs.get("non_blocking", False)):
            raise WaitsError("a copy that blocks")
        return func(*args, **kwargs)

    def _look(self, name: str, args: Any, kwargs: Any) -> None:
        tensors = [leaf for leaf in pytree.tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)]
        if not self.every and all(t.device != DEVICE for t in tensors):
            return
        if name not in INDEXED:
            raise WaitsError(name)
        for places in (given for given in args[1] if given is not None):
            if places.dtype in (torch.bool, torch.uint8):
                raise WaitsError(f"{name} with a mask")
            if places.device != args[0].device:
                raise WaitsError(f"{name} with places that are on the host")


def _blocks(source: torch.device, target: torch.device, non_blocking: bool) -> bool:
    return source.type != target.type and DEVICE in (source, target) and not non_blocking


class _Literals(TorchFunctionMode):
    """Raises where numbers of the host become a tensor on the device: torch.tensor copies them, and waits."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func in (torch.tensor, torch.as_tensor) and kwargs.get("device") is not None and torch.device(kwargs["device"]) == DEVICE:
            raise WaitsError(f"{func.__name__} on the device")
        return func(*args, **kwargs)


@contextmanager
def nothing_waits(*, every: bool = False) -> Iterator[None]:
    """Raise, inside the block, where the host would wait for what is on DEVICE. every: where it would if the CPU were the device.

    Mixed precision, which knows no such device, stays off.
    """
    autocast = torch.autocast

    def on_the_cpu(kind: str, **options: Any) -> Any:
        return autocast("cpu" if kind == DEVICE.type else kind, **options)

    with ExitStack() as stack:
        stack.enter_context(mock.patch.object(torch, "autocast", on_the_cpu))
        stack.enter_context(_Literals())
        stack.enter_context(_Operators(every))
        yield
