"""What a piece of code asks of a device: its operators, counted."""

from __future__ import annotations

from collections import Counter
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode


class Operators(TorchDispatchMode):
    """Counts, inside the block, operators by name; those that change a whole number under a name of their own."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: Counter[str] = Counter()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func._schema.name.removeprefix("aten::")
        whole = args and isinstance(args[0], Tensor) and args[0].dtype == torch.int64
        self.seen[f"{name} of counters" if whole else name] += 1
        return func(*args, **(kwargs or {}))
