"""What both peers' scripts share. It stands alone: a peer's interpreter sees this folder and its own packages, nothing of this project."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Iterator
from typing import Any

import torch

NOT_HERE = 3


def tell(event: str, **facts: Any) -> None:
    """Write an event for the measuring process; under DDP rank 0 speaks."""
    if int(os.environ.get("RANK", "-1")) <= 0:
        sys.stdout.write("\nBENCH " + json.dumps({"event": event, "time": time.time(), **facts}) + "\n")
        sys.stdout.flush()


def not_here(error: ImportError) -> None:
    """Leave, saying what is not installed."""
    tell("not here", why=f"{error.name or error} is not installed for {sys.executable}")
    sys.exit(NOT_HERE)


def memory_gb() -> float:
    """Return the most memory that torch has held on this process's device, in GB; 0 on the CPU."""
    return torch.cuda.max_memory_reserved() / 1e9 if torch.cuda.is_available() else 0.0


class Watched:
    """A peer's loader that tells the first step, and how long each epoch waited for its batches.

    After `epochs` epochs it yields its first batch again and again, from the device: what remains is the trainer's own step.
    held: whether it does that.
    """

    def __init__(self, loader: Any, epochs: int, device: torch.device | str, held: bool = True) -> None:
        self.loader, self.epochs, self.device, self.held = loader, epochs, device, held
        self.done = 0
        self.first: Any = None

    def __getattr__(self, name: str) -> Any:
        return getattr(self.loader, name)

    def __len__(self) -> int:
        return len(self.loader)

    def __iter__(self) -> Iterator[Any]:
        if self.held and self.done >= self.epochs:
            for _ in range(len(self.loader)):
                yield _copied(self.first)
        else:
            yield from self._read()
        self.done += 1

    def _read(self) -> Iterator[Any]:
        waited, began = 0.0, time.perf_counter()
        for step, batch in enumerate(self.loader):
            waited += time.perf_counter() - began
            if self.done == 0 and step == 0:
                self.first = _on_device(batch, self.device)
            yield batch
            if self.done == 0 and step == 0:  # the trainer asks for its second batch: its first step is under way
                if torch.cuda.is_available():
                    torch.cuda.synchronize()
                tell("first step")
            began = time.perf_counter()
        tell("waited", seconds=waited)


def _on_device(value: Any, device: torch.device | str) -> Any:
    """Return a batch with copies of its tensors on the device."""
    if isinstance(value, torch.Tensor):
        return value.detach().to(device, copy=True)
    if isinstance(value, dict):
        return {k: _on_device(v, device) for k, v in value.items()}
    return type(value)(_on_device(v, device) for v in value) if isinstance(value, (list, tuple)) else value


def _copied(value: Any) -> Any:
    """Return a batch that a trainer may change: its pictures are shared, everything small is new."""
    if isinstance(value, torch.Tensor):
        return value if value.dim() == 4 else value.clone()
    if isinstance(value, dict):
        return {k: _copied(v) for k, v in value.items()}
    return type(value)(_copied(v) for v in value) if isinstance(value, (list, tuple)) else value
