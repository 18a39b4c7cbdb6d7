"""Loaders of pictures with masks, for training (zoomed, cropped) and for evaluation (whole).

B pictures of a batch, T source pictures of a batch, H W the network input, h w the largest original picture.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from libreyolo.data.augment.compose import PlanBatch, compose, stack_plans
from libreyolo.data.augment.letterbox import letterbox, letterbox_geometry
from libreyolo.data.augment.paint_masks import paint_masks
from libreyolo.data.augment.rescale_crop import Crop, CropSettings, draw_crop
from libreyolo.data.loader import Loader
from libreyolo.data.masks import shrink_mask
from libreyolo.data.sampler import EpochSampler, EvaluationSampler, Item
from libreyolo.data.samples import OnePicture, as_images, batch_facts, top_left
from libreyolo.interfaces.batch import SemanticBatch
from libreyolo.interfaces.input import InputSpec
from libreyolo.interfaces.transfer import Transferable
from libreyolo.ops.pixels import IGNORED


class MaskedPictures(Protocol):
    """A set of pictures with masks. Picklable: it goes to the workers."""

    def __len__(self) -> int:
        """Return how many pictures there are."""

    def path(self, index: int) -> Path:
        """Return the picture's file, for messages."""

    def size(self, index: int) -> tuple[int, int]:
        """Return (height, width) of the original picture."""

    def image(self, index: int, max_hw: tuple[int, int] | None = None) -> np.ndarray:
        """Return uint8 [h, w, 3] RGB, shrunk (aspect kept) to fit max_hw where it is larger."""

    def mask(self, index: int) -> np.ndarray:
        """Return uint8 [h, w] class ids at the original size; 255 is ignored."""


def train_loader(
    pictures: MaskedPictures,
    settings: CropSettings,
    spec: InputSpec,
    *,
    batch: int,
    rank: int = 0,
    world_size: int = 1,
    seed: int = 0,
    workers: int = 0,
    device: torch.device | str = "cpu",
    min_samples: int = 0,
) -> Loader[SemanticBatch]:
    """Return the loader of augmented batches, RGB in [0, 1]; arguments as in `detection_loader.train_loader`.

    What a picture becomes depends on (seed, epoch, place) alone: not on rank, world_size, workers or where an epoch is entered.
    """
    sampler = EpochSampler(len(pictures), batch=batch, rank=rank, world_size=world_size, seed=seed, min_samples=min_samples)
    dataset = TrainMasked(pictures, settings, spec, seed)
    prepare = partial(_prepare_train, settings.imgsz)
    return Loader(dataset, sampler, collate=collate_train, prepare=prepare, workers=workers, device=device, seed=seed, rank=rank)


def eval_loader(
    pictures: MaskedPictures,
    *,
    imgsz: tuple[int, int],
    spec: InputSpec,
    batch: int,
    rank: int = 0,
    world_size: int = 1,
    workers: int = 0,
    device: torch.device | str = "cpu",
) -> Loader[SemanticBatch]:
    """Return the loader of whole pictures, RGB in [0, 1]; arguments as in `detection_loader.eval_loader`."""
    sampler = EvaluationSampler(len(pictures), batch=batch, rank=rank, world_size=world_size)
    dataset = EvalMasked(pictures, imgsz, spec)
    return Loader(dataset, sampler, collate=collate_eval, prepare=_prepare_eval, workers=workers, device=device, rank=rank, persistent=False)


@dataclass(frozen=True)
class TrainSample:
    """One planned picture with its mask."""

    item: Item
    crop: Crop
    original_hw: tuple[int, int]


@dataclass(frozen=True)
class EvalSample:
    """One whole picture in the network's input, uint8 [H, W, 3], its mask there [H, W] and at its original size [h, w] ([0, 0] where it has none)."""

    item: Item
    image: np.ndarray
    mask: np.ndarray
    truth: np.ndarray
    original_hw: tuple[int, int]
    content: tuple[int, int, int, int]


@dataclass
class HostBatch(Transferable):
    """What crosses from a worker: a SemanticBatch still without what the device makes, and what that is made from.

    pixels: uint8 [T, h, w, 3], the sources (training), or [B, H, W, 3], the pictures themselves (evaluation: plans is None).
    masks: uint8 [T, h, w] beside the sources; in evaluation those of the batch are ready.
    """

    pixels: Tensor
    masks: Tensor
    plans: PlanBatch | None
    batch: SemanticBatch


class TrainMasked(OnePicture[MaskedPictures]):
    """Reads a picture with its mask and plans its crop; the pixels are put together on the device."""

    def __init__(self, pictures: MaskedPictures, settings: CropSettings, spec: InputSpec, seed: int) -> None:
        self.pictures, self.settings, self.spec, self.seed = pictures, settings, spec, seed

    def __getitem__(self, item: Item) -> TrainSample:
        hw = self.pictures.size(item.index)
        image = self.pictures.image(item.index, self.settings.enough_hw)
        mask = self.pictures.mask(item.index)
        crop = draw_crop(self.settings, self.spec, hw, image, mask, seed=self.seed, epoch=item.epoch, place=item.place)
        return TrainSample(item, crop, hw)


class EvalMasked(OnePicture[MaskedPictures]):
    """Reads a picture with its mask at its original size and puts both into the network's input."""

    def __init__(self, pictures: MaskedPictures, imgsz: tuple[int, int], spec: InputSpec) -> None:
        self.pictures, self.imgsz, self.spec = pictures, imgsz, spec

    def __getitem__(self, item: Item) -> EvalSample:
        return eval_sample(self.pictures.image(item.index, None), self.pictures.mask(item.index), item, self.imgsz, self.spec)


def eval_sample(image: np.ndarray, truth: np.ndarray | None, item: Item, imgsz: tuple[int, int], spec: InputSpec) -> EvalSample:
    """Return the sample of a picture uint8 [h, w, 3] with its mask uint8 [h, w] (None: there is none)."""
    hw = (image.shape[0], image.shape[1])
    canvas, _ = letterbox(image, imgsz, spec)
    inner, (_, _, tx, ty) = letterbox_geometry(hw, imgsz, spec)
    top, left = int(ty), int(tx)
    content = (top, left, top + inner[0], left + inner[1])
    mask = np.full(imgsz, IGNORED, np.uint8)
    if truth is not None:
        mask[content[0] : content[2], content[1] : content[3]] = shrink_mask(truth, inner)
    return EvalSample(item, canvas, mask, np.zeros((0, 0), np.uint8) if truth is None else truth, hw, content)


def whole_pictures(pictures: Sequence[np.ndarray], imgsz: tuple[int, int], spec: InputSpec) -> SemanticBatch:
    """Return pictures uint8 [h, w, 3] RGB without masks as an evaluation batch on the CPU: exactly what a loader makes of them."""
    samples = [eval_sample(picture, None, Item(i, i, 0, 1.0), imgsz, spec) for i, picture in enumerate(pictures)]
    return _prepare_eval(collate_eval(samples), torch.device("cpu"))


def collate_train(samples: list[TrainSample]) -> HostBatch:
    """Return the host batch: the sources in the top left of a common buffer, their masks beside them, and all plans as arrays."""
    crops = [sample.crop for sample in samples]
    sizes = np.array([crop.mask.shape for crop in crops], np.int64)
    # Every sample shows its own source, even where the same picture comes twice: each is shrunk for its own zoom.
    plans = [replace(crop.plan, slots=tuple(replace(slot, picture=row) for slot in crop.plan.slots)) for row, crop in enumerate(crops)]
    stacked = stack_plans(plans, {row: row for row in range(len(crops))}, sizes)
    whole = np.zeros((len(samples), 4), np.int64)
    no_truth = torch.zeros((len(samples), 0, 0), dtype=torch.uint8)
    batch = _without_pictures([s.item for s in samples], torch.empty(0), [s.original_hw for s in samples], whole, no_truth)
    return HostBatch(top_left([crop.image for crop in crops]), top_left([crop.mask for crop in crops], IGNORED), stacked, batch)


def collate_eval(samples: list[EvalSample]) -> HostBatch:
    """Return the host batch of whole pictures."""
    truth = top_left([s.truth for s in samples], IGNORED)
    masks = top_left([s.mask for s in samples])
    content = np.array([s.content for s in samples], np.int64)
    batch = _without_pictures([s.item for s in samples], masks, [s.original_hw for s in samples], content, truth)
    return HostBatch(top_left([s.image for s in samples]), torch.empty(0, dtype=torch.uint8), None, batch)


def _without_pictures(
    items: Sequence[Item], masks: Tensor, original_hw: Sequence[tuple[int, int]], content: np.ndarray, truth: Tensor
) -> SemanticBatch:
    return SemanticBatch(
        **batch_facts(items),
        masks=masks,
        original_hw=torch.tensor(list(original_hw), dtype=torch.int64),
        content=torch.from_numpy(content),
        truth=truth,
    )


def _prepare_train(imgsz: tuple[int, int], host: HostBatch, device: torch.device) -> SemanticBatch:
    assert host.plans is not None
    batch, plans = host.batch.to(device), host.plans.to(device)
    with torch.no_grad():
        images = compose(host.pixels.to(device, non_blocking=True), plans, imgsz)
        return replace(batch, images=images, masks=paint_masks(host.masks.to(device, non_blocking=True), plans, imgsz))


def _prepare_eval(host: HostBatch, device: torch.device) -> SemanticBatch:
    return replace(host.batch.to(device), images=as_images(host.pixels.to(device, non_blocking=True)))
