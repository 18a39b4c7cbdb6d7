"""The device's part of our step: python -m benchmarks.peers.alone JSON. Batches lie on the device already; network, loss, optimiser and average run.

With "count" in the JSON it tells how many bytes such a step reads and writes, and how many the device copies in a second, instead of timing it.
"""

from __future__ import annotations

import json
import sys
import time
from collections import Counter
from contextlib import ExitStack
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from benchmarks.peers.process import tell
from libreyolo import build, schema
from libreyolo.assembly import assembly_for
from libreyolo.assembly.parts import Seat
from libreyolo.engine import determinism
from libreyolo.engine.progress import Progress

BATCHES, WARM_STEPS = 4, 8
COPIES = 30
MADE_WITHOUT_WRITING = ("empty", "new_empty")


class Traffic(TorchDispatchMode):
    """Counts the bytes that operators read and write: every tensor that one takes is read once, every tensor that one makes or changes is written.

    Below autograd and autocast, so backward, casts and the optimiser count. An operator that only looks at memory in another way (a view) counts
    nothing; a broadcast tensor counts its memory, not its shape. What an operator does inside (a convolution that reads its input twice) and kernels
    that no operator stands for (Triton) are not seen: the count is for plain torch, and from below.
    """

    def __init__(self) -> None:
        super().__init__()
        self.bytes: Counter[str] = Counter()  # by operator

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None) -> Any:
        found = func(*args, **(kwargs or {}))
        name = func._schema.name.removeprefix("aten::")
        if not name.startswith(MADE_WITHOUT_WRITING):
            self.bytes[name] += traffic(func, args, kwargs or {}, found)
        return found

    @property
    def total(self) -> int:
        return sum(self.bytes.values())


def traffic(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], found: Any) -> int:
    """Return the bytes that one call of an operator reads and writes."""
    made = [t for t in tree_leaves(found) if isinstance(t, Tensor)]
    given = [t for t in tree_leaves((args, kwargs)) if isinstance(t, Tensor)]
    changed: list[Tensor] = []
    for place, argument in enumerate(func._schema.arguments):
        if argument.alias_info is not None and argument.alias_info.is_write:
            value = args[place] if place < len(args) else kwargs.get(argument.name)
            changed += [t for t in tree_leaves(value) if isinstance(t, Tensor)]
    held = {t.untyped_storage().data_ptr() for t in given}
    new = [t for t in made if t.untyped_storage().data_ptr() not in held]
    if not new and not changed:
        return 0 if made else sum(map(_bytes, _distinct(given)))  # a view; or what only reads
    return sum(map(_bytes, _distinct(given))) + sum(map(_bytes, new)) + sum(map(_bytes, _distinct(changed)))


def _bytes(tensor: Tensor) -> int:
    return min(tensor.numel() * tensor.element_size(), tensor.untyped_storage().nbytes())


def _distinct(tensors: list[Tensor]) -> list[Tensor]:
    return list({id(t): t for t in tensors}.values())


class Step:
    """Our training step on batches that wait on the device."""

    def __init__(self, asked: dict[str, Any]) -> None:
        family, size = schema.model_names()[asked["model"]]
        recipe = schema.resolve(family, size, {**asked["keys"], "data": asked["data"], "batch": asked["batch"], "val": False, "workers": 0})
        self.device = torch.device("cpu" if asked["device"] == "cpu" else "cuda:0")
        self.batch = asked["batch"]
        self._kernels = ExitStack()
        self._kernels.enter_context(determinism.kernels(deterministic=recipe.deterministic, cudnn_benchmark=recipe.cudnn_benchmark))
        assembly = assembly_for(family)(family, recipe, family.input, Path.cwd())
        net = build.training_network(family, recipe, len(assembly.names), build.Start(None, {}, "random weights"))
        seat = Seat(0, 1, 1, self.device)
        self.training = build.training(
            family, recipe, assembly, net, seat, progress=Progress(), save=lambda summary: None, tell=lambda name, event: None
        )
        self.training.trainer.net.train()
        self.batches = list(islice(self.training.trainer.train_loader.epoch(0), BATCHES))
        self._verdict: Any = None
        self._taken = 0

    def __call__(self) -> None:
        """Take one step, as the trainer does: the host learns what came of a step while the device does the next."""
        step = self.training.trainer.step
        step.backward([self.batches[self._taken % len(self.batches)]], [self.batch])
        self._settle()
        self._verdict = step.move()
        self._taken += 1

    def _settle(self) -> None:
        if self._verdict is not None:
            self._verdict.wait()
            if self.training.ema:
                self.training.ema.update(self.training.bare, self.training.trainer.step.norms.of)
        self._verdict = None

    def wait(self) -> None:
        """Return when the device has done everything."""
        self._settle()
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)

    def close(self) -> None:
        self.training.close()
        self._kernels.close()


def copy_bandwidth(device: torch.device) -> float:
    """Return the bytes that a device-to-device copy reads and writes in a second: the median of some, on memory larger than any cache."""
    size = 2 * 2**30 if device.type == "cuda" else 64 * 2**20
    source = torch.randint(0, 255, (size,), dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    seconds = []
    for _ in range(COPIES):
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        began = time.perf_counter()
        target.copy_(source)
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        seconds.append(time.perf_counter() - began)
    return 2 * size / sorted(seconds)[COPIES // 2]


def main(asked: dict[str, Any]) -> None:
    """Tell an event "alone" or "traffic"."""
    step = Step(asked)
    warm = min(WARM_STEPS, asked["steps"])
    for _ in range(warm):
        step()
    step.wait()
    if asked.get("count"):
        with Traffic() as counted:
            step()
            step.wait()
        largest = [[name, number / step.batch] for name, number in counted.bytes.most_common(8)]
        step.close()
        tell("traffic", bytes_per_picture=counted.total / step.batch, largest=largest, copy_bytes_per_second=copy_bandwidth(step.device))
        return
    began = time.perf_counter()
    for _ in range(asked["steps"]):
        step()
    step.wait()
    seconds = time.perf_counter() - began
    step.close()
    memory = torch.cuda.max_memory_reserved(step.device) / 1e9 if step.device.type == "cuda" else 0.0
    tell("alone", images_per_second=step.batch * asked["steps"] / seconds, memory_gb=memory)


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
