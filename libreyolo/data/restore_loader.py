"""Loaders of pairs, for training (cut, turned, mirrored) and for evaluation (whole, at their own sizes).

B pairs of a batch, H W the crop, or the largest input of a batch.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from libreyolo.data.augment.pair import PairPlan, PairSettings, draw_pair_plan, fill_up, shown_box, turn
from libreyolo.data.decode import Box
from libreyolo.data.loader import Loader
from libreyolo.data.sampler import EpochSampler, EvaluationSampler, Item
from libreyolo.data.samples import OnePicture, as_images, batch_facts, top_left
from libreyolo.interfaces.batch import RestoreBatch
from libreyolo.interfaces.transfer import Transferable


class Pairs(Protocol):
    """A set of pairs. Picklable: it goes to the workers."""

    def __len__(self) -> int:
        """Return how many pairs there are."""

    def path(self, index: int) -> Path:
        """Return the input's file, for messages."""

    def size(self, index: int) -> tuple[int, int]:
        """Return (height, width) of both pictures."""

    def pair(self, index: int) -> tuple[np.ndarray, np.ndarray]:
        """Return input and target, each uint8 [h, w, 3] RGB."""

    def parts(self, index: int, box: Box) -> tuple[np.ndarray, np.ndarray]:
        """Return the same part of both."""


def train_loader(
    pairs: Pairs,
    settings: PairSettings,
    *,
    batch: int,
    rank: int = 0,
    world_size: int = 1,
    seed: int = 0,
    workers: int = 0,
    device: torch.device | str = "cpu",
    min_samples: int = 0,
) -> Loader[RestoreBatch]:
    """Return the loader of crops, RGB in [0, 1].

    batch: pairs per step over all ranks; each rank yields batch // world_size of them. min_samples: an epoch has at least so many pairs, by whole
    repeats of the set. What a pair becomes depends on (seed, epoch, place) alone: not on rank, world_size, workers or where an epoch is entered.
    """
    sampler = EpochSampler(len(pairs), batch=batch, rank=rank, world_size=world_size, seed=seed, min_samples=min_samples)
    dataset = TrainPairs(pairs, settings, seed)
    return Loader(dataset, sampler, collate=collate_train, prepare=_prepare, workers=workers, device=device, seed=seed, rank=rank)


def eval_loader(
    pairs: Pairs, *, stride: int, batch: int, rank: int = 0, world_size: int = 1, workers: int = 0, device: torch.device | str = "cpu"
) -> Loader[RestoreBatch]:
    """Return the loader of whole pairs, RGB in [0, 1]: rank r has pairs r::world_size in order, each once.

    batch: pairs per step on this rank; the last batch may be shorter, and a rank without pairs yields none. Pictures are filled up to a multiple of
    `stride` each way. Its workers live for one pass: between evaluations the CPUs are the training's.
    """
    sampler = EvaluationSampler(len(pairs), batch=batch, rank=rank, world_size=world_size)
    dataset = EvalPairs(pairs, stride)
    return Loader(dataset, sampler, collate=collate_eval, prepare=_prepare, workers=workers, device=device, rank=rank, persistent=False)


@dataclass(frozen=True)
class TrainSample:
    """A pair cut out, uint8 [H, W, 3] each, still to be turned."""

    item: Item
    given: np.ndarray
    target: np.ndarray
    plan: PairPlan


@dataclass(frozen=True)
class EvalSample:
    """A whole picture, filled up, uint8 [H, W, 3], its target (None in prediction), and its own (height, width)."""

    item: Item
    given: np.ndarray
    target: np.ndarray | None
    picture_hw: tuple[int, int]


@dataclass
class HostBatch(Transferable):
    """What crosses from a worker: a RestoreBatch still without pictures, and what they are made from.

    given, target: uint8 [B, H, W, 3]; target is [B, 0, 0, 3] where there is none. turns: bool [B, 3] (see `turn`), None in evaluation.
    """

    given: Tensor
    target: Tensor
    turns: Tensor | None
    batch: RestoreBatch


class TrainPairs(OnePicture[Pairs]):
    """Decodes what a crop shows of a pair: whole pictures need not cross to the device."""

    def __init__(self, pairs: Pairs, settings: PairSettings, seed: int) -> None:
        self.pictures, self.settings, self.seed = pairs, settings, seed

    def __getitem__(self, item: Item) -> TrainSample:
        hw, crop = self.pictures.size(item.index), self.settings.crop
        plan = draw_pair_plan(self.settings, hw, seed=self.seed, epoch=item.epoch, place=item.place)
        given, target = (fill_up(part, crop) for part in self.pictures.parts(item.index, shown_box(plan, hw, crop)))
        return TrainSample(item, given, target, plan)


class EvalPairs(OnePicture[Pairs]):
    """Decodes a pair at its own size."""

    def __init__(self, pairs: Pairs, stride: int) -> None:
        self.pictures, self.stride = pairs, stride

    def __getitem__(self, item: Item) -> EvalSample:
        given, target = self.pictures.pair(item.index)
        return eval_sample(given, target, item, self.stride)


def eval_sample(given: np.ndarray, target: np.ndarray | None, item: Item, stride: int) -> EvalSample:
    """Return the sample of a picture uint8 [h, w, 3], filled up to a multiple of `stride` each way."""
    height, width = given.shape[:2]
    hw = (height + -height % stride, width + -width % stride)
    return EvalSample(item, fill_up(given, hw), target, (height, width))


def whole_batch(pictures: Sequence[np.ndarray], stride: int) -> RestoreBatch:
    """Return pictures uint8 [h, w, 3] RGB without targets as an evaluation batch on the CPU: exactly what a loader makes of them."""
    samples = [eval_sample(picture, None, Item(i, i, 0, 1.0), stride) for i, picture in enumerate(pictures)]
    return _prepare(collate_eval(samples), torch.device("cpu"))


def collate_train(samples: list[TrainSample]) -> HostBatch:
    """Return the host batch of crops."""
    turns = torch.tensor([(s.plan.mirrored, s.plan.upside_down, s.plan.transposed) for s in samples])
    batch = _without_pictures(samples, [s.given.shape[:2] for s in samples])
    return HostBatch(top_left([s.given for s in samples]), top_left([s.target for s in samples]), turns, batch)


def collate_eval(samples: list[EvalSample]) -> HostBatch:
    """Return the host batch of whole pictures, each in the top left corner."""
    given = top_left([s.given for s in samples])
    nothing = np.zeros((0, 0, 3), np.uint8)
    targets = [nothing if s.target is None else fill_up(s.target, s.given.shape[:2]) for s in samples]
    return HostBatch(given, top_left(targets), None, _without_pictures(samples, [s.picture_hw for s in samples]))


def _without_pictures(samples: Sequence[TrainSample | EvalSample], picture_hw: Sequence[tuple[int, ...]]) -> RestoreBatch:
    return RestoreBatch(
        **batch_facts([s.item for s in samples]),
        targets=torch.empty(0),
        input_hw=torch.tensor([s.given.shape[:2] for s in samples], dtype=torch.int64),
        picture_hw=torch.tensor([tuple(hw) for hw in picture_hw], dtype=torch.int64),
    )


def _prepare(host: HostBatch, device: torch.device) -> RestoreBatch:
    batch = host.batch.to(device)
    given, target = (as_images(pixels.to(device, non_blocking=True)) for pixels in (host.given, host.target))
    if host.turns is not None:
        turns = host.turns.to(device, non_blocking=True)
        given, target = turn(given, turns), turn(target, turns)
    return replace(batch, images=given, targets=target)
