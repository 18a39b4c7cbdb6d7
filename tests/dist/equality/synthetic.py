"""Pictures without files for every task, and the assembly that hands them to the real `build`.

A new task adds one function to FACTORIES; everything else here is the same for all.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import torch
from torch import Tensor

from libreyolo.assembly.parts import Seat
from libreyolo.data import sampler
from libreyolo.data.sampler import Item
from libreyolo.interfaces.batch import Batch, ClassifyBatch, DetectionBatch, RestoreBatch
from libreyolo.interfaces.family import Family
from libreyolo.recipe import Recipe
from libreyolo.recipe.checks import image_hw
from libreyolo.tasks.classification import ClassificationTask
from libreyolo.tasks.detection import DetectionTask
from libreyolo.tasks.point import PointTask
from libreyolo.tasks.restore import RestoreTask
from libreyolo.tasks.semantic import SemanticTask
from tests.family.batches import semantic_batch

NC = 3
NAMES = {i: f"class_{i}" for i in range(NC)}


@dataclass(frozen=True)
class Synthetic:
    """A task, all pictures of an epoch as one batch, and how a part of them looks when it is collated by itself."""

    task: Any
    pictures: Batch
    crop: Callable[[Any], Any]


def detect(family: Family, recipe: Recipe, objects: Sequence[int], dtype: torch.dtype) -> Synthetic:
    task = DetectionTask(
        criterion=family.loss.build(NC, **recipe.loss_options(), class_weights=None),
        detect=family.decode.detect,
        spec=family.input,
        names=NAMES,
    )
    return Synthetic(task, _boxed_pictures(recipe, objects, dtype), _crop_boxes)


def point(family: Family, recipe: Recipe, objects: Sequence[int], dtype: torch.dtype) -> Synthetic:
    """The pictures of `detect`, whose boxes stand for their centres."""
    task = PointTask(
        criterion=family.loss.build(NC, **recipe.loss_options()),
        locate=family.decode.locate,
        stride=family.decode.STRIDE,
        spec=family.input,
        names=NAMES,
        thresholds=[0.5],
        radii=[1],
    )
    return Synthetic(task, _boxed_pictures(recipe, objects, dtype), _crop_boxes)


def _boxed_pictures(recipe: Recipe, objects: Sequence[int], dtype: torch.dtype) -> DetectionBatch:
    """Noise with `objects[i]` boxes in picture i."""
    height, width = image_hw(recipe.imgsz)
    draw = torch.Generator().manual_seed(5)
    count, most = len(objects), max(1, *objects)
    num_boxes = torch.tensor(objects)
    valid = torch.arange(most)[None, :] < num_boxes[:, None]
    side = torch.tensor([width, height, width, height], dtype=dtype)
    # Large boxes: those of a fresh network are large, and counts of soft targets must rise above their floor of 1 to decide anything.
    start = torch.rand(count, most, 2, generator=draw, dtype=dtype) * 0.1
    size = 0.5 + torch.rand(count, most, 2, generator=draw, dtype=dtype) * 0.4
    boxes = torch.cat([start, start + size], dim=2) * side * valid.unsqueeze(2)
    return DetectionBatch(
        images=torch.rand(count, 3, height, width, generator=draw, dtype=dtype),
        weight=torch.ones(count),
        index=torch.arange(count),
        epoch=0,
        key=torch.zeros(count, 2, dtype=torch.int64),
        boxes=boxes,
        labels=torch.randint(NC, (count, most), generator=draw) * valid,
        valid=valid,
        num_boxes=num_boxes,
        original_hw=torch.tensor([[height, width]] * count),
        to_input=torch.tensor([[1.0, 1.0, 0.0, 0.0]] * count),
    )


def restore(family: Family, recipe: Recipe, objects: Sequence[int], dtype: torch.dtype) -> Synthetic:
    """Noise and other noise that it should become. `objects` only says how many pictures there are: every pixel counts."""
    height, width = image_hw(recipe.imgsz)
    draw = torch.Generator().manual_seed(5)
    count = len(objects)
    images, targets = torch.rand(2, count, 3, height, width, generator=draw, dtype=dtype)
    size = torch.tensor([[height, width]] * count)
    pictures = RestoreBatch(
        images=images,
        weight=torch.ones(count),
        index=torch.arange(count),
        epoch=0,
        key=torch.zeros(count, 2, dtype=torch.int64),
        targets=targets,
        input_hw=size,
        picture_hw=size,
    )
    task = RestoreTask(criterion=family.loss.build(**recipe.loss_options()), restore=family.decode.restore, spec=family.input)
    return Synthetic(task, pictures, lambda batch: batch)


def _crop_boxes(batch: DetectionBatch) -> DetectionBatch:
    most = max(1, int(batch.num_boxes.max()))
    return replace(batch, boxes=batch.boxes[:, :most], labels=batch.labels[:, :most], valid=batch.valid[:, :most])


def classify(family: Family, recipe: Recipe, objects: Sequence[int], dtype: torch.dtype) -> Synthetic:
    """Noise whose class follows `objects[i]`, every third picture mixed with another class. The normaliser counts pictures."""
    height, width = image_hw(recipe.imgsz)
    draw = torch.Generator().manual_seed(5)
    count = len(objects)
    own = torch.tensor(objects) % NC
    share = 1.0 - 0.3 * (torch.arange(count) % 3 == 0)
    pictures = ClassifyBatch(
        images=torch.rand(count, 3, height, width, generator=draw, dtype=dtype),
        weight=torch.ones(count),
        index=torch.arange(count),
        epoch=0,
        key=torch.zeros(count, 2, dtype=torch.int64),
        labels=torch.stack([own, (own + 1) % NC], dim=1),
        shares=torch.stack([share, 1.0 - share], dim=1),
    )
    task = ClassificationTask(
        criterion=family.loss.build(NC, **recipe.loss_options(), class_weights=torch.tensor([0.5, 1.0, 1.5])),
        classify=family.decode.classify,
        spec=family.input,
        names={i: f"class_{i}" for i in range(NC)},
    )
    return Synthetic(task, pictures, lambda batch: batch)


def semantic(family: Family, recipe: Recipe, objects: Sequence[int], dtype: torch.dtype) -> Synthetic:
    """Noise of which the first `objects[i]` eighths of the rows of picture i have a class and the rest is ignored."""
    height, width = image_hw(recipe.imgsz)
    draw = torch.Generator().manual_seed(5)
    count = len(objects)
    images = torch.rand(count, 3, height, width, generator=draw, dtype=dtype)
    masks = torch.randint(NC, (count, height, width), generator=draw)
    labelled = torch.arange(height)[None, :] < torch.tensor(objects)[:, None] * height // 8
    masks = torch.where(labelled[:, :, None], masks, 255)
    criterion = family.loss.build(NC, **recipe.loss_options())
    task = SemanticTask(criterion=criterion, class_logits=family.decode.class_logits, spec=family.input, names=NAMES)
    return Synthetic(task, semantic_batch(images, masks), lambda batch: batch)


def rows_of(batch: Batch, rows: Sequence[int]) -> Batch:
    """Return some pictures of a batch of any task."""
    chosen: dict[str, Any] = {f.name: getattr(batch, f.name)[list(rows)] for f in fields(batch) if isinstance(getattr(batch, f.name), Tensor)}
    return replace(batch, **chosen)


# Task -> (family, recipe, objects per picture, dtype) -> its pictures. A picture's "objects" are what its normaliser counts.
FACTORIES: dict[str, Callable[[Family, Recipe, Sequence[int], torch.dtype], Synthetic]] = {
    "classify": classify,
    "detect": detect,
    "point": point,
    "restore": restore,
    "semantic": semantic,
}


class SyntheticLoader:
    """Cuts the pictures as the project's own sampler says, without shuffling."""

    waiting_seconds = 0.0

    def __init__(self, made: Synthetic, seat: Seat, batch: int) -> None:
        self.made = made
        count = len(made.pictures.weight)
        self.sampler = sampler.EpochSampler(count, batch=batch, rank=seat.rank, world_size=seat.world_size, seed=0, shuffle=False)

    def start(self, epoch: int, start_step: int = 0, until: int | None = None) -> None:
        """Nothing is read ahead."""

    def epoch(self, epoch: int, start_step: int = 0, until: int | None = None) -> Iterator[Batch]:
        for items in self.sampler.batches(epoch, start_step):
            yield self._collate(items)

    def _collate(self, items: list[Item]) -> Batch:
        batch = rows_of(self.made.pictures, [item.index for item in items])
        weight = torch.tensor([item.weight for item in items])
        key = torch.tensor([(item.epoch, item.place) for item in items])
        return self.made.crop(replace(batch, weight=weight, key=key, epoch=items[0].epoch))

    def steps(self, epoch: int) -> int:
        return self.sampler.steps(epoch)

    def real_pictures(self, epoch: int, step: int) -> int:
        return self.sampler.real_pictures(epoch, step)

    def pictures_of(self, batch: Batch) -> Callable[[], list[str]]:
        return lambda: [str(index) for index in batch.index.tolist()]

    def reset_waiting(self) -> None:
        """Nobody waits here."""

    def close(self) -> None:
        """Nothing to end."""


class SyntheticAssembly:
    """What `build.training` asks of an assembly."""

    def __init__(self, made: Synthetic) -> None:
        self.made = made

    def task(self, split: str = "val", **evaluation: Any) -> Any:
        return self.made.task

    def train_loader(self, seat: Seat, batch: int) -> SyntheticLoader:
        return SyntheticLoader(self.made, seat, batch)

    def val_loader(self, seat: Seat, batch: int, split: str = "val") -> None:
        return None
