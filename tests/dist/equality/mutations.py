"""The four faults that published trainers have shipped, and one that ours could have, each as a patch of the real code in every rank."""

from __future__ import annotations

import pkgutil
from collections.abc import Callable
from contextlib import ExitStack, contextmanager
from importlib import import_module
from typing import Any
from unittest.mock import patch

from torch import nn

import libreyolo.data
from libreyolo.data.sampler import EpochSampler
from libreyolo.engine import collectives, fusion, step
from libreyolo.engine.step import TrainStep


@contextmanager
def normaliser_made_local():
    """Every rank divides by its own count, and DDP takes the mean of the means."""
    with patch.object(collectives, "sum_", lambda tensor: tensor.mul_(collectives.world_size())):
        yield


@contextmanager
def loss_multiplied_by_world_size():
    original = TrainStep.__init__

    def init(self: TrainStep, *args: Any, **options: Any) -> None:
        original(self, *args, **options)
        self.world_size = collectives.world_size() ** 2

    with patch.object(TrainStep, "__init__", init):
        yield


@contextmanager
def sampler_dropped():
    """Every rank takes all pictures, its own part of the batch at a time."""

    def unsharded(count: int, *, batch: int, rank: int = 0, world_size: int = 1, **options: Any) -> EpochSampler:
        return EpochSampler(count, batch=batch // world_size, rank=0, world_size=1, **options)

    modules = [import_module(f"libreyolo.data.{found.name}") for found in pkgutil.iter_modules(libreyolo.data.__path__)]
    with ExitStack() as stack:
        for module in (m for m in modules if hasattr(m, "EpochSampler")):
            stack.enter_context(patch.object(module, "EpochSampler", unsharded))
        yield


@contextmanager
def sync_batchnorm_left_out():
    def as_it_is(net: nn.Module, *_: Any) -> nn.Module:
        return net

    with patch.object(fusion, "synchronise", as_it_is):
        yield


@contextmanager
def vectors_left_to_each_rank():
    """DDP averages the gradients of weights, and nobody those of the vectors."""
    with patch.object(step, "finish_gradients", lambda net: None):
        yield


MUTATIONS: dict[str, Callable[[], Any]] = {
    f.__name__: f for f in (normaliser_made_local, loss_multiplied_by_world_size, sampler_dropped, sync_batchnorm_left_out, vectors_left_to_each_rank)
}
