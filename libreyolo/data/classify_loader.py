"""Loaders of pictures with one class each, for training (cropped, changed, mixed) and for evaluation (the middle).

B pictures of a batch, M of them with a partner, H W the network input.

Deviation from published trainers, which blend a whole batch with itself, turned by one place, at one weight: here every picture draws for itself
whether it is mixed, at which weight, and with which picture of the whole set, so that any number of ranks sees the same.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from libreyolo.data.augment.crop import centre_crop, draw_part, mirror, show_part
from libreyolo.data.augment.mixing import NOTHING, PLAIN, Box, Mix, draw_cutmix, draw_erased, draw_mixup, erase, mix
from libreyolo.data.augment.policy import apply_policy
from libreyolo.data.image_set import ImageSet
from libreyolo.data.loader import Loader
from libreyolo.data.sampler import EpochSampler, EvaluationSampler, Item, repeat_factors
from libreyolo.data.samples import OnePicture, as_images, batch_facts, top_left
from libreyolo.interfaces.batch import ClassifyBatch
from libreyolo.interfaces.input import InputSpec
from libreyolo.interfaces.transfer import Transferable
from libreyolo.ops.keyed import derive, generator


@dataclass(frozen=True)
class ClassifySettings:
    """How training pictures are changed; named as the training arguments.

    imgsz: (height, width) of the network input. source_hw: the size within which pictures are decoded. epochs, no_aug_epochs: the last
    `no_aug_epochs` of `epochs` run without auto_augment, erasing, mixup and cutmix; crops and flips stay.
    """

    imgsz: tuple[int, int]
    source_hw: tuple[int, int]
    scale: tuple[float, float] = (0.5, 1.0)
    flip_prob: float = 0.5
    flipud: float = 0.0
    auto_augment: str | None = None
    erasing: float = 0.0
    mixup: float = 0.0
    cutmix: float = 0.0
    epochs: int = 1
    no_aug_epochs: int = 0

    def strong(self, epoch: int) -> bool:
        """Whether the zero-based `epoch` still runs what is more than crops and flips."""
        return epoch < self.epochs - self.no_aug_epochs


def train_loader(
    pictures: ImageSet,
    settings: ClassifySettings,
    spec: InputSpec,
    *,
    batch: int,
    rank: int = 0,
    world_size: int = 1,
    seed: int = 0,
    workers: int = 0,
    device: torch.device | str = "cpu",
    class_balanced: bool = False,
    min_samples: int = 0,
) -> Loader[ClassifyBatch]:
    """Return the loader of training batches, RGB in [0, 1].

    pictures: each has exactly one label. batch: pictures per step over all ranks. class_balanced: pictures of rare classes come more often.
    min_samples: an epoch has at least so many pictures, by whole repeats of the set.
    What a picture becomes, partner and all, depends on (seed, epoch, place) alone: not on rank, world_size, workers or where an epoch is entered.
    """
    repeats = repeat_factors(pictures.offsets, pictures.label_rows, len(pictures)) if class_balanced else None
    sampler = EpochSampler(len(pictures), batch=batch, rank=rank, world_size=world_size, seed=seed, repeats=repeats, min_samples=min_samples)
    dataset = TrainPictures(pictures, settings, spec, seed)
    prepare = partial(_prepare, spec.mean)
    return Loader(dataset, sampler, collate=collate, prepare=prepare, workers=workers, device=device, seed=seed, rank=rank)


def eval_loader(
    pictures: ImageSet,
    *,
    imgsz: tuple[int, int],
    spec: InputSpec,
    batch: int,
    rank: int = 0,
    world_size: int = 1,
    workers: int = 0,
    device: torch.device | str = "cpu",
) -> Loader[ClassifyBatch]:
    """Return the loader of evaluation batches, RGB in [0, 1]: rank r has pictures r::world_size in order, each once.

    batch: pictures per step on this rank; the last batch may be shorter, and a rank without pictures yields none.
    """
    sampler = EvaluationSampler(len(pictures), batch=batch, rank=rank, world_size=world_size)
    dataset = EvalPictures(pictures, imgsz, spec)
    prepare = partial(_prepare, spec.mean)
    return Loader(dataset, sampler, collate=collate, prepare=prepare, workers=workers, device=device, rank=rank, persistent=False)


@dataclass(frozen=True)
class View:
    """A picture as it is shown: uint8 [H, W, 3], its class, and what is erased from it."""

    image: np.ndarray
    label: int
    erased: Box = NOTHING


@dataclass(frozen=True)
class Sample:
    """One picture of one step; `partner` is what `mix` puts into it, None where nothing is mixed."""

    item: Item
    view: View
    partner: View | None = None
    mix: Mix = PLAIN


class TrainPictures:
    """Reads a picture, crops, flips and changes it by a policy; erasing and mixing happen on the device."""

    def __init__(self, pictures: ImageSet, settings: ClassifySettings, spec: InputSpec, seed: int) -> None:
        self.pictures, self.settings, self.spec, self.seed = pictures, settings, spec, seed

    def __getitem__(self, item: Item) -> Sample:
        own, (partner, drawn) = self._view(item.index, item, "picture"), self._partner(item)
        return Sample(item, own) if partner is None else Sample(item, own, self._view(partner, item, "partner"), drawn)

    def describe(self, index: int) -> str:
        """Return the picture's path."""
        return str(self.pictures.path(index))

    def shown(self, item: Item) -> list[int]:
        """Return the picture and the one that is mixed into it."""
        partner, _ = self._partner(item)
        return [item.index] if partner is None else list(dict.fromkeys([item.index, partner]))

    def _partner(self, item: Item) -> tuple[int | None, Mix]:
        """Draw which picture is mixed in, and how; None where none is."""
        settings = self.settings
        rng = generator(self.seed, "mix", item.epoch, item.place)
        kind, partner = float(rng.random()), int(rng.integers(len(self.pictures)))
        if not settings.strong(item.epoch) or kind >= settings.mixup + settings.cutmix:
            return None, PLAIN
        return partner, draw_mixup(rng) if kind < settings.mixup else draw_cutmix(rng, settings.imgsz)

    def _view(self, index: int, item: Item, role: str) -> View:
        """Every decision is drawn whether it is used or not: the last epochs keep the crops and flips that they would have had."""
        settings = self.settings
        rng = generator(self.seed, role, item.epoch, item.place)
        left_right, upside_down, erasing = rng.random(3)
        part = draw_part(rng, self.pictures.size(index), settings.imgsz, settings.scale)
        erased = draw_erased(rng, settings.imgsz)
        shown = show_part(self.pictures.image(index, settings.source_hw), part, settings.imgsz, self.spec)
        shown = mirror(shown, left_right=left_right < settings.flip_prob, upside_down=upside_down < settings.flipud)
        strong = settings.strong(item.epoch)
        if strong and settings.auto_augment is not None:
            shown = np.asarray(apply_policy(settings.auto_augment, Image.fromarray(shown), derive(self.seed, "policy", role, item.epoch, item.place)))
        label = int(self.pictures.label_rows[index])
        return View(shown, label, erased if strong and erasing < settings.erasing else NOTHING)


class EvalPictures(OnePicture[ImageSet]):
    """Decodes a picture at its original size and shows its middle, as the family was evaluated."""

    def __init__(self, pictures: ImageSet, imgsz: tuple[int, int], spec: InputSpec) -> None:
        self.pictures, self.imgsz, self.spec = pictures, imgsz, spec

    def __getitem__(self, item: Item) -> Sample:
        shown = centre_crop(self.pictures.image(item.index, None), self.imgsz, self.spec)
        return Sample(item, View(shown, int(self.pictures.label_rows[item.index])))


def centre_batch(pictures: Sequence[np.ndarray], imgsz: tuple[int, int], spec: InputSpec) -> ClassifyBatch:
    """Return pictures uint8 [h, w, 3] RGB of unknown class as an evaluation batch on the CPU: exactly what a loader makes of them."""
    samples = [Sample(Item(i, i, 0, 1.0), View(centre_crop(p, imgsz, spec), 0)) for i, p in enumerate(pictures)]
    return _prepare(spec.mean, collate(samples), torch.device("cpu"))


@dataclass
class HostBatch(Transferable):
    """What crosses from a worker: a ClassifyBatch still without pictures, and what they are made from.

    pixels: uint8 [B, H, W, 3]. erased: float32 [B, 4], None where no picture loses anything.
    partners: uint8 [M, H, W, 3], None where nothing is mixed; partner_of: int64 [B], each picture's place among them (0 for one without: its blend
    is 1 and its box empty). partners_erased: float32 [M, 4]. blend: float32 [B]. pasted: float32 [B, 4].
    """

    batch: ClassifyBatch
    pixels: Tensor
    erased: Tensor | None = None
    partners: Tensor | None = None
    partners_erased: Tensor | None = None
    partner_of: Tensor | None = None
    blend: Tensor | None = None
    pasted: Tensor | None = None


def collate(samples: list[Sample]) -> HostBatch:
    """Return the host batch of samples, mixed or plain."""
    views = [s.view for s in samples]
    mixed = [s for s in samples if s.partner is not None]
    partners = [s.partner for s in samples if s.partner is not None]
    labels = [(s.view.label, (s.partner or s.view).label) for s in samples]
    batch = ClassifyBatch(
        **batch_facts([s.item for s in samples]),
        labels=torch.tensor(labels, dtype=torch.int64),
        shares=torch.tensor([(s.mix.share, 1.0 - s.mix.share) for s in samples], dtype=torch.float32),
    )
    host = HostBatch(batch, top_left([v.image for v in views]), _boxes([v.erased for v in views]))
    if not mixed:
        return host
    place = {id(s): i for i, s in enumerate(mixed)}
    return replace(
        host,
        partners=top_left([p.image for p in partners]),
        partners_erased=_boxes([p.erased for p in partners]),
        partner_of=torch.tensor([place.get(id(s), 0) for s in samples]),
        blend=torch.tensor([s.mix.blend for s in samples], dtype=torch.float32),
        pasted=torch.tensor([s.mix.pasted for s in samples], dtype=torch.float32),
    )


def _boxes(boxes: list[Box]) -> Tensor | None:
    return torch.tensor(boxes, dtype=torch.float32) if any(box != NOTHING for box in boxes) else None


def _prepare(mean: tuple[float, float, float], host: HostBatch, device: torch.device) -> ClassifyBatch:
    """Erase and mix. What is erased takes the mean colour, which the network's input convention turns into 0."""
    host = host.to(device)
    with torch.no_grad():
        images = _floating(host.pixels, host.erased, mean)
        if host.partners is not None:
            assert host.partner_of is not None and host.blend is not None and host.pasted is not None
            partners = _floating(host.partners, host.partners_erased, mean)
            images = mix(images, partners[host.partner_of], host.blend, host.pasted)
    return replace(host.batch, images=images)


def _floating(pixels: Tensor, erased: Tensor | None, mean: tuple[float, float, float]) -> Tensor:
    images = as_images(pixels)
    return images if erased is None else erase(images, erased, mean)
