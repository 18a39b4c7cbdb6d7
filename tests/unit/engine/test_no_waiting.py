"""Between two steps the engine itself never waits for the device; and the watch that says so sees what waits."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from libreyolo.engine.ema import EMA
from libreyolo.engine.loss_log import LossLog
from libreyolo.engine.step import TrainStep
from tests.unit.engine.toy import CPU, ToyTask, toy_batches, toy_net
from tests.unreadable import DEVICE, WaitsError, nothing_waits

WAITING: dict[str, Callable[[Tensor], Any]] = {
    "a number": lambda x: float(x.sum()),
    "a condition": lambda x: bool((x > 0).any()),
    "a mask": lambda x: x[x > 0],
    "assignment by a mask": lambda x: x.index_put_((x > 0,), x.new_ones(3)),
    "a list": lambda x: x.tolist(),
    "the way to the host": lambda x: x.cpu(),
    "places": lambda x: torch.where(x > 0),
    "repeats without their sum": lambda x: x.repeat_interleave(x.long()),
    "the way from the host": lambda x: torch.zeros(3).to(x.device),
    "assignment from the host": lambda x: x.copy_(torch.zeros(3)),
    "places on the host": lambda x: x[torch.tensor([0])],
    "numbers of the host": lambda x: torch.tensor([1.0, 2.0], device=x.device),
}
FREE: dict[str, Callable[[Tensor], Any]] = {
    "a copy from the host that does not block": lambda x: torch.zeros(3).to(x.device, non_blocking=True),
    "places on the device": lambda x: x[x.long()],
    "a choice": lambda x: torch.where(x > 0, x, 0.0).masked_fill(x < 0, 1.0),
    "repeats with their sum": lambda x: x.repeat_interleave(x.long(), output_size=5),
    "numbers of the host that stay there": lambda x: torch.tensor([1.0]).tolist(),
}


@pytest.mark.parametrize("what", WAITING)
def test_what_waits_is_seen(what: str) -> None:
    WAITING[what](torch.ones(3))  # nothing is wrong with it but where it runs
    x = torch.ones(3, device=DEVICE)
    with nothing_waits(), pytest.raises((WaitsError, RuntimeError)):
        WAITING[what](x)


@pytest.mark.parametrize("what", FREE)
def test_what_does_not_wait_passes(what: str) -> None:
    x = torch.ones(3, device=DEVICE)
    with nothing_waits():
        FREE[what](x)


@pytest.mark.parametrize("micro_batches", [1, 2])
@pytest.mark.parametrize("kind", [torch.optim.SGD, torch.optim.AdamW])
def test_steps_with_clipping_average_and_losses_never_wait(kind: Any, micro_batches: int) -> None:
    """With a fused optimiser, as on a GPU, where it looks at the flag of a refused step itself."""
    net, task = toy_net(), ToyTask()
    optimizer = kind(net.parameters(), lr=0.01, fused=True, **({"momentum": 0.9} if kind is torch.optim.SGD else {}))
    step = TrainStep(net, task, optimizer, device=CPU, amp_dtype=None, clip_max_norm=1.0)
    ema, losses = EMA(net, decay=0.9, tau=1.0), LossLog(CPU)
    before = net.state_dict()["2.weight"].clone()
    batches = toy_batches(2 * micro_batches)
    verdicts = []
    with nothing_waits(every=True):
        for first in range(0, len(batches), micro_batches):
            parts = step.backward(batches[first : first + micro_batches], [4] * micro_batches)
            verdicts.append(step.move())
            ema.update(net, step.norms.of)
            losses.add(parts, 4 * micro_batches)
            reading = losses.read()
    assert [verdict.wait() for verdict in verdicts] == [[0.0, 0.0]] * 2
    assert reading.wait()["fit"] > 0
    assert not torch.equal(before, net.state_dict()["2.weight"])
