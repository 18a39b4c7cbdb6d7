"""What the real training loader of a family gives each rank."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from libreyolo import schema
from libreyolo.assembly import assembly_for
from libreyolo.assembly.parts import Seat
from libreyolo.data.class_shapes import make_class_shapes
from libreyolo.data.semantic_shapes import make_semantic_shapes
from libreyolo.data.shapes import make_shapes
from libreyolo.data.shapes_restore import make_shapes_restore

# Task -> (folder, pictures) -> data.yaml of a generated set.
DATASETS: dict[str, Callable[[Path, int], Path]] = {
    "classify": lambda folder, count: make_class_shapes(folder, num_train=count, num_val=2, size=64),
    "detect": lambda folder, count: make_shapes(folder, num_train=count, num_val=2, size=64),
    "point": lambda folder, count: make_shapes(folder, num_train=count, num_val=2, size=64),
    "semantic": lambda folder, count: make_semantic_shapes(folder, num_train=count, num_val=2, size=64),
    "restore": lambda folder, count: make_shapes_restore(folder, num_train=count, num_val=2, size=72),
}

Pictures = dict[int, tuple[int, float, bytes]]  # place in the epoch -> index, weight, pixels


def epoch_of(family_name: str, data: Path, epoch: int, *, batch: int, world_size: int, workers: int = 0) -> list[list[Pictures]]:
    """Return what each rank sees in each step of an epoch."""
    family = schema.family(family_name)
    size = next(iter(family.sizes))
    recipe = schema.resolve(family, size, {"data": str(data), "imgsz": max(64, 2 * family.input.stride), "batch": batch, "device": "cpu"})
    recipe = replace(recipe, workers=workers)
    assembly = assembly_for(family)(family, recipe, family.input, Path.cwd())
    found = []
    for rank in range(world_size):
        loader: Any = assembly.train_loader(Seat(rank, world_size, 1, torch.device("cpu")), batch)
        found.append([_pictures(b) for b in loader.epoch(epoch)])
        assert len(found[-1]) == loader.steps(epoch)
        loader.close()
    assembly.close()
    return found


def _pictures(batch: Any) -> Pictures:
    rows = zip(batch.key.tolist(), batch.index.tolist(), batch.weight.tolist(), batch.images, strict=True)
    return {place: (index, weight, image.numpy().tobytes()) for (_, place), index, weight, image in rows}


def faults(ranks: list[list[Pictures]], count: int, batch: int) -> list[str]:
    """Return what is wrong with an epoch of `count` pictures; nothing when it is shared out as promised."""
    found = []
    steps = -(-count // batch)
    if any(len(rank) != steps for rank in ranks):
        found.append(f"steps: {[len(rank) for rank in ranks]}, not {steps}")
    seen = [index for rank in ranks for step in rank for index, weight, _ in step.values() if weight]
    if sorted(seen) != list(range(count)):
        found.append(f"pictures of weight 1: {sorted(seen)}")
    if any(len({len(rank[step]) for rank in ranks if step < len(rank)}) > 1 for step in range(steps)):
        found.append("ranks differ in the pictures of a step")
    whole = [len(step) for rank in ranks for step in rank[:-1]]
    if any(n != batch // len(ranks) for n in whole):
        found.append(f"pictures per rank and step: {whole}, not {batch // len(ranks)}")
    places = [place for rank in ranks for step in rank for place in step]
    if len(set(places)) != len(places):
        found.append("two ranks share a place, and with it every draw")
    return found
