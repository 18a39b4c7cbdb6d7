"""What only one rank knows in the middle of an epoch: its part of the losses and, where they are not synchronised, its BatchNorm statistics.

At the end of an epoch there is nothing of the kind: the losses are told and the statistics averaged.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import nn

from libreyolo.engine import collectives
from libreyolo.engine.loss_log import LossLog


def gathered(losses: LossLog, modules: Sequence[nn.Module]) -> list[dict[str, Any]] | None:
    """Return the state of every rank, on rank 0 (None elsewhere): tensors on the CPU and plain numbers. A collective."""
    buffers = [b.detach().to("cpu", copy=True) for b in collectives.floating_buffers(modules)] if collectives.world_size() > 1 else []
    return collectives.gather_objects({"losses": losses.state(), "buffers": buffers})


@torch.no_grad()
def put_back(states: Sequence[dict[str, Any]], modules: Sequence[nn.Module]) -> dict[str, Any]:
    """Give the modules this rank's buffers and return its losses.

    With another number of ranks than saved the buffers become the ranks' mean, as at the end of an epoch, and rank 0 takes all the losses.
    """
    same = len(states) == collectives.world_size()
    live = collectives.floating_buffers(modules)
    saved = [states[collectives.rank()]["buffers"]] if same else [s["buffers"] for s in states if s["buffers"]]
    for index, buffer in enumerate(live if saved and saved[0] else []):
        buffer.copy_(saved[0][index] if same else torch.stack([s[index].double() for s in saved]).mean(0))
    if same:
        found: dict[str, Any] = states[collectives.rank()]["losses"]
        return found
    all_losses = [s["losses"] for s in states]
    total = torch.stack([s["sums"] for s in all_losses]).sum(0)
    return {**all_losses[0], "sums": total if collectives.rank() == 0 else torch.zeros_like(total)}
