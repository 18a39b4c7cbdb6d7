"""BatchNorm's counters of batches, moved for a whole network at once: each layer's own addition is one more launch, hundreds in a step."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from libreyolo.engine.kernel_norm import KernelBatchNorm

COUNTER = "num_batches_tracked"


class NormCounters:
    """Counts for every BatchNorm in `net`, which a forward of the network runs once each.

    One in eval mode does not count. One whose statistics are a cumulative mean (momentum None) counts by itself, since it reads the number, and so
    does one whose own kernel moves it along.
    """

    def __init__(self, net: nn.Module) -> None:
        norms = [m for m in net.modules() if isinstance(m, _BatchNorm) and not isinstance(m, KernelBatchNorm)]
        self._norms = [m for m in norms if m.num_batches_tracked is not None]
        self._ignored = torch.zeros((), dtype=torch.int64)  # on the CPU, where an addition launches nothing

    @contextmanager
    def one_forward(self) -> Iterator[None]:
        """Take the counters away from their layers inside the block, give them back after it, and move them by 1 where it ends well.

        So it is around what a CUDA graph replays and torch.compile compiles, and not a part of it.
        """
        counting = [m for m in self._norms if m.training and m.momentum is not None]
        counters = [m._buffers[COUNTER] for m in counting]
        for norm in counting:
            # A layer without a counter counts nothing; torch's synchronised one insists on having one.
            norm._buffers[COUNTER] = self._ignored if isinstance(norm, nn.SyncBatchNorm) else None
        try:
            yield
        finally:
            for norm, counter in zip(counting, counters, strict=True):
                norm._buffers[COUNTER] = counter
        if counters:
            torch._foreach_add_([c for c in counters if c is not None], 1)
