"""Loaders of pictures with boxes, for training (augmented) and for evaluation (letterboxed).

B pictures of a batch, N most boxes of any, T source pictures of a batch, H W the network input.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from libreyolo.data.augment.boxes import place_boxes
from libreyolo.data.augment.compose import PlanBatch, compose, stack_plans
from libreyolo.data.augment.letterbox import letterbox
from libreyolo.data.augment.plan import Plan, draw_plan
from libreyolo.data.augment.settings import AugmentSettings
from libreyolo.data.loader import Loader
from libreyolo.data.sampler import EpochSampler, EvaluationSampler, Item, repeat_factors
from libreyolo.data.samples import OnePicture, as_images, batch_facts, top_left
from libreyolo.interfaces.batch import DetectionBatch
from libreyolo.interfaces.input import InputSpec
from libreyolo.interfaces.transfer import Transferable

ROWS = 16  # boxes of a batch are padded to a multiple of this


class Pictures(Protocol):
    """A set of pictures with boxes. Picklable: it goes to the workers."""

    def __len__(self) -> int:
        """Return how many pictures there are."""

    def path(self, index: int) -> Path:
        """Return the picture's file, for messages."""

    def size(self, index: int) -> tuple[int, int]:
        """Return (height, width) of the original picture."""

    def image(self, index: int, max_hw: tuple[int, int] | None = None) -> np.ndarray:
        """Return uint8 [h, w, 3] RGB, shrunk (aspect kept) to fit max_hw where it is larger."""

    def boxes(self, index: int) -> tuple[np.ndarray, np.ndarray]:
        """Return float32 [k, 4] xyxy normalised to the original picture and int64 [k] class ids."""


def train_loader(
    pictures: Pictures,
    settings: AugmentSettings,
    *,
    batch: int,
    rank: int = 0,
    world_size: int = 1,
    seed: int = 0,
    workers: int = 0,
    device: torch.device | str = "cpu",
    class_balanced: bool = False,
    min_samples: int = 0,
) -> Loader[DetectionBatch]:
    """Return the loader of augmented batches, RGB in [0, 1].

    batch: pictures per step over all ranks; each rank yields batch // world_size of them.
    class_balanced: pictures of rare classes come more often (`repeat_factors`).
    min_samples: an epoch has at least so many pictures, by whole repeats of the set.
    What a picture becomes depends on (seed, epoch, place) alone: not on rank, world_size, workers or where an epoch is entered.
    """
    sampler = EpochSampler(
        len(pictures),
        batch=batch,
        rank=rank,
        world_size=world_size,
        seed=seed,
        repeats=_class_repeats(pictures) if class_balanced else None,
        min_samples=min_samples,
    )
    dataset = TrainPictures(pictures, settings, seed)
    prepare = partial(_prepare_train, settings.imgsz)
    return Loader(dataset, sampler, collate=collate_train, prepare=prepare, workers=workers, device=device, seed=seed, rank=rank)


def eval_loader(
    pictures: Pictures,
    *,
    imgsz: tuple[int, int],
    spec: InputSpec,
    batch: int,
    rank: int = 0,
    world_size: int = 1,
    workers: int = 0,
    device: torch.device | str = "cpu",
) -> Loader[DetectionBatch]:
    """Return the loader of evaluation batches, RGB in [0, 1]: rank r has pictures r::world_size in order, each once.

    batch: pictures per step on this rank; the last batch may be shorter, and a rank without pictures yields none.
    Its workers live for one pass: between evaluations the CPUs are the training's.
    """
    sampler = EvaluationSampler(len(pictures), batch=batch, rank=rank, world_size=world_size)
    dataset = EvalPictures(pictures, imgsz, spec)
    return Loader(dataset, sampler, collate=collate_eval, prepare=_prepare_eval, workers=workers, device=device, rank=rank, persistent=False)


@dataclass(frozen=True)
class TrainSample:
    """One planned picture: its plan, the decoded sources that the plan shows (by dataset index), and where its boxes end up."""

    item: Item
    plan: Plan
    sources: dict[int, np.ndarray]
    boxes: np.ndarray
    labels: np.ndarray
    original_hw: tuple[int, int]


@dataclass(frozen=True)
class EvalSample:
    """One letterboxed picture, uint8 [H, W, 3], with its boxes in input pixels."""

    item: Item
    image: np.ndarray
    boxes: np.ndarray
    labels: np.ndarray
    original_hw: tuple[int, int]
    to_input: tuple[float, float, float, float]


@dataclass
class HostBatch(Transferable):
    """What crosses from a worker: a DetectionBatch still without pictures, and what they are made from.

    pixels: uint8 [T, h, w, 3], the sources (training), or [B, H, W, 3], the pictures themselves (evaluation: plans is None).
    """

    pixels: Tensor
    plans: PlanBatch | None
    batch: DetectionBatch


class TrainPictures:
    """Plans a picture, decodes what the plan shows and moves the boxes; the pixels are put together on the device."""

    def __init__(self, pictures: Pictures, settings: AugmentSettings, seed: int) -> None:
        self.pictures = pictures
        self.settings = settings
        self.seed = seed

    def __getitem__(self, item: Item) -> TrainSample:
        pictures, settings = self.pictures, self.settings
        plan = self._plan(item)
        shown = {slot.picture for slot in plan.slots}
        sources = {i: pictures.image(i, settings.enough_for(pictures.size(i))) for i in sorted(shown)}
        boxes, labels = place_boxes(plan, pictures.boxes, settings.imgsz, settings.max_labels)
        return TrainSample(item, plan, sources, boxes, labels, pictures.size(item.index))

    def describe(self, index: int) -> str:
        """Return the picture's path."""
        return str(self.pictures.path(index))

    def shown(self, item: Item) -> list[int]:
        """Return the picture and those that mosaic and mixup put beside it."""
        return list(dict.fromkeys([item.index, *(slot.picture for slot in self._plan(item).slots)]))

    def _plan(self, item: Item) -> Plan:
        pictures = self.pictures
        return draw_plan(self.settings, pictures.size, len(pictures), seed=self.seed, index=item.index, epoch=item.epoch, place=item.place)


class EvalPictures(OnePicture[Pictures]):
    """Decodes a picture at its original size and puts it into the network's input as the family was evaluated."""

    def __init__(self, pictures: Pictures, imgsz: tuple[int, int], spec: InputSpec) -> None:
        self.pictures = pictures
        self.imgsz = imgsz
        self.spec = spec

    def __getitem__(self, item: Item) -> EvalSample:
        original = self.pictures.image(item.index, None)
        boxes, labels = self.pictures.boxes(item.index)
        return eval_sample(original, boxes, labels, item, self.imgsz, self.spec)


def eval_sample(image: np.ndarray, boxes: np.ndarray, labels: np.ndarray, item: Item, imgsz: tuple[int, int], spec: InputSpec) -> EvalSample:
    """Return the sample of a picture uint8 [h, w, 3] with boxes float [k, 4] xyxy normalised to it."""
    height, width = image.shape[:2]
    canvas, to_input = letterbox(image, imgsz, spec)
    sx, sy, tx, ty = to_input
    unit_to_input = np.array([sx * width, sy * height, sx * width, sy * height])
    in_input = boxes.reshape(-1, 4) * unit_to_input + np.array([tx, ty, tx, ty])
    return EvalSample(item, canvas, in_input.astype(np.float32), labels, (height, width), to_input)


def letterbox_batch(pictures: Sequence[np.ndarray], imgsz: tuple[int, int], spec: InputSpec) -> DetectionBatch:
    """Return pictures uint8 [h, w, 3] RGB without boxes as an evaluation batch on the CPU: exactly what a loader makes of them."""
    nothing, no_labels = np.zeros((0, 4), np.float32), np.zeros(0, np.int64)
    samples = [eval_sample(p, nothing, no_labels, Item(i, i, 0, 1.0), imgsz, spec) for i, p in enumerate(pictures)]
    return _prepare_eval(collate_eval(samples), torch.device("cpu"))


def collate_train(samples: list[TrainSample]) -> HostBatch:
    """Return the host batch: every source once, in the top left of a common buffer, and all plans as arrays."""
    sources: dict[int, np.ndarray] = {}
    for sample in samples:
        for index, image in sample.sources.items():
            sources[index] = image
    sizes = np.array([image.shape[:2] for image in sources.values()], np.int64).reshape(-1, 2)
    pixels = top_left(list(sources.values()) or [np.zeros((1, 1, 3), np.uint8)])
    tile_of = {index: place for place, index in enumerate(sources)}
    plans = stack_plans([s.plan for s in samples], tile_of, sizes)
    # The pictures of a training batch have no single map from the original; the identity stands in.
    batch = _without_pictures(samples, np.tile(np.array([1, 1, 0, 0], np.float32), (len(samples), 1)))
    return HostBatch(pixels, plans, batch)


def collate_eval(samples: list[EvalSample]) -> HostBatch:
    """Return the host batch of letterboxed pictures."""
    pixels = top_left([s.image for s in samples])
    return HostBatch(pixels, None, _without_pictures(samples, np.array([s.to_input for s in samples], np.float32)))


def _without_pictures(samples: Sequence[TrainSample | EvalSample], to_input: np.ndarray) -> DetectionBatch:
    counts = [len(s.boxes) for s in samples]
    # Rounded up: with a handful of shapes instead of one per batch, a CUDA device's memory is used again instead of growing.
    num_rows = math.ceil(max(1, *counts) / ROWS) * ROWS
    boxes = np.zeros((len(samples), num_rows, 4), np.float32)
    labels = np.zeros((len(samples), num_rows), np.int64)
    for row, sample in enumerate(samples):
        boxes[row, : counts[row]] = sample.boxes
        labels[row, : counts[row]] = sample.labels
    num_boxes = torch.tensor(counts, dtype=torch.int64)
    return DetectionBatch(
        **batch_facts([s.item for s in samples]),
        boxes=torch.from_numpy(boxes),
        labels=torch.from_numpy(labels),
        valid=torch.arange(num_rows)[None, :] < num_boxes[:, None],
        num_boxes=num_boxes,
        original_hw=torch.tensor([s.original_hw for s in samples], dtype=torch.int64),
        to_input=torch.from_numpy(to_input),
    )


def _prepare_train(imgsz: tuple[int, int], host: HostBatch, device: torch.device) -> DetectionBatch:
    assert host.plans is not None
    with torch.no_grad():
        images = compose(host.pixels.to(device, non_blocking=True), host.plans.to(device), imgsz)
    return replace(host.batch, images=images).to(device)


def _prepare_eval(host: HostBatch, device: torch.device) -> DetectionBatch:
    return replace(host.batch, images=as_images(host.pixels.to(device, non_blocking=True))).to(device)


def _class_repeats(pictures: Pictures) -> np.ndarray:
    labels = [pictures.boxes(i)[1] for i in range(len(pictures))]
    offsets = np.concatenate([[0], np.cumsum([len(row) for row in labels])])
    return repeat_factors(offsets, np.concatenate(labels) if labels else np.zeros(0, np.int64), len(pictures))
