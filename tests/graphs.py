"""What is left of an earlier graph of autograd when a network is called again.

A parameter's gradient is accumulated by a node that every living graph with the parameter in it shares, and that is gone with the last of them.
It can carry a mark, so a mark that is found again says that a graph was kept.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn


class Watched:
    """Looks at every call of `net`: `kept` counts the parameters whose graph of an earlier call was alive when it was called again."""

    def __init__(self, net: nn.Module) -> None:
        self.net, self.kept, self.calls = net, 0, 0
        net.register_forward_pre_hook(lambda module, inputs: self._count())
        net.register_forward_hook(self._mark)

    def look(self) -> int:
        """Count once more, after the last call, and return the count."""
        self._count()
        return self.kept

    def _count(self) -> None:
        self.kept += sum("seen" in node.metadata for node in self._nodes())

    def _mark(self, module: nn.Module, inputs: Any, outputs: Any) -> None:
        self.calls += 1
        for node in self._nodes():
            node.metadata["seen"] = True

    def _nodes(self) -> list[Any]:
        """Return the parameters' nodes, new ones where none is alive."""
        with torch.enable_grad():
            views: list[Any] = [p.view_as(p) for p in self.net.parameters() if p.requires_grad]
        return [view.grad_fn.next_functions[0][0] for view in views]
