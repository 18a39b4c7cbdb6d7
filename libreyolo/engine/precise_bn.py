"""Recompute BatchNorm statistics with fixed weights, as a plain mean over many batches ("precise BN", arXiv 2105.07576, section 3)."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from libreyolo.engine import collectives
from libreyolo.interfaces.task import Loader, Task


@torch.no_grad()
def recompute_statistics(
    net: nn.Module, task: Task, loader: Loader, num_pictures: int, *, epoch: int = 0, leaving: Callable[[], bool] = lambda: False
) -> None:
    """Replace the running statistics of every BatchNorm in `net` by their mean over about `num_pictures` training pictures of `epoch`.

    All ranks take part with their own shares, and the statistics are averaged over them. A network without BatchNorm is left as it is.
    leaving: asked before each batch; True leaves the rest out, and the statistics are then good for nothing but being computed again.
    """
    norms = [m for m in net.modules() if isinstance(m, _BatchNorm) and m.track_running_stats]
    if not norms:
        return
    momenta = [m.momentum for m in norms]
    net.eval()
    for norm in norms:
        norm.reset_running_stats()
        norm.momentum = None  # torch's cumulative mean
        norm.train()
    seen = 0
    for step, batch in enumerate(loader.epoch(epoch)):
        if leaving():
            break
        task.forward(net, batch)
        seen += loader.real_pictures(epoch, step)
        if seen >= num_pictures:
            break
    for norm, momentum in zip(norms, momenta, strict=True):
        norm.momentum = momentum
        norm.eval()
    collectives.average_buffers([net])
