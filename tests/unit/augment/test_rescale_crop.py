"""A training picture and its mask are zoomed, cropped and mirrored as one."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from libreyolo.data.augment.rescale_crop import CropSettings
from libreyolo.data.sampler import Item
from libreyolo.data.semantic_loader import TrainMasked, _prepare_train, collate_eval, collate_train, eval_loader, eval_sample, train_loader
from libreyolo.interfaces.batch import SemanticBatch
from libreyolo.interfaces.input import InputSpec

STRETCH, LETTERBOX = InputSpec(resize="stretch"), InputSpec(resize="letterbox")
PLAIN = CropSettings((32, 48), (32, 48), rescale=(1.0, 1.0), cat_max_ratio=1.0, flip_prob=0.0, flipud=0.0, hsv_prob=0.0)
GREY = 114 / 255


class Patches:
    """Pictures whose colour is their class: in each 8x8 patch red is 20 times the class, which is drawn at random among 0..9."""

    def __init__(self, sizes: list[tuple[int, int]]) -> None:
        self.sizes = sizes

    def __len__(self) -> int:
        return len(self.sizes)

    def path(self, index: int) -> Path:
        return Path(f"{index}.png")

    def size(self, index: int) -> tuple[int, int]:
        return self.sizes[index]

    def mask(self, index: int) -> np.ndarray:
        h, w = self.sizes[index]
        patches = np.random.default_rng(index).integers(0, 10, (h // 8 + 1, w // 8 + 1)).astype(np.uint8)
        return patches.repeat(8, axis=0).repeat(8, axis=1)[:h, :w]

    def image(self, index: int, max_hw: tuple[int, int] | None = None) -> np.ndarray:
        return np.repeat((20 * self.mask(index))[:, :, None], 3, axis=2)


def batch_of(pictures: Patches, settings: CropSettings, spec: InputSpec, items: list[Item]) -> SemanticBatch:
    dataset = TrainMasked(pictures, settings, spec, seed=3)
    return _prepare_train(settings.imgsz, collate_train([dataset[item] for item in items]), torch.device("cpu"))


def items_at(places: range, num: int) -> list[Item]:
    return [Item(place % num, place, 0, 1.0) for place in places]


def disagreement(batch: SemanticBatch) -> float:
    """Return the share of labelled pixels inside one class whose colour is not that of their class."""
    masks, red = batch.masks.numpy(), batch.images[:, 0].numpy() * 255 / 20
    inner = np.zeros(masks.shape, bool)
    inner[:, 2:-2, 2:-2] = True
    for dy, dx in ((0, 2), (0, -2), (2, 0), (-2, 0), (2, 2), (-2, -2), (2, -2), (-2, 2)):
        inner &= np.roll(masks, (dy, dx), (1, 2)) == masks
    inner &= masks != 255
    assert inner.mean() > 0.05
    return float((np.abs(red - masks)[inner] > 0.2).mean())


@pytest.mark.parametrize("spec", [STRETCH, LETTERBOX], ids=["stretch", "letterbox"])
def test_a_zoom_of_1_shows_the_picture_as_it_is_bit_for_bit(spec: InputSpec) -> None:
    pictures = Patches([(32, 48)])
    batch = batch_of(pictures, PLAIN, spec, items_at(range(1), 1))
    assert np.array_equal(batch.masks[0].numpy(), pictures.mask(0))
    assert np.allclose(batch.images[0].permute(1, 2, 0).numpy() * 255, pictures.image(0), atol=1e-3)


@pytest.mark.parametrize("spec", [STRETCH, LETTERBOX], ids=["stretch", "letterbox"])
@pytest.mark.parametrize("canvas", [(32, 48), (64, 80)])
def test_colours_and_classes_stay_together_under_any_draw(spec: InputSpec, canvas: tuple[int, int]) -> None:
    pictures = Patches([(40, 64), (70, 50), (33, 90)])
    settings = replace(PLAIN, canvas=canvas, rescale=(0.5, 2.0), flip_prob=0.5, flipud=0.5)
    batch = batch_of(pictures, settings, spec, items_at(range(24), 3))
    assert disagreement(batch) < 0.01
    moved = replace(batch, masks=batch.masks.roll(3, dims=2))
    assert disagreement(moved) > 0.1  # the check sees three pixels


def test_flips_mirror_picture_and_mask() -> None:
    pictures = Patches([(32, 48)])
    item = items_at(range(1), 1)
    plain = batch_of(pictures, PLAIN, STRETCH, item)
    for keys, dims in (({"flip_prob": 1.0}, (2,)), ({"flipud": 1.0}, (1,)), ({"flip_prob": 1.0, "flipud": 1.0}, (1, 2))):
        mirrored = batch_of(pictures, replace(PLAIN, **keys), STRETCH, item)
        assert torch.equal(mirrored.masks[0], plain.masks[0].flip([d - 1 for d in dims]))
        assert torch.allclose(mirrored.images[0], plain.images[0].flip(dims), atol=1e-5)


def test_where_the_crop_is_larger_grey_and_ignored_pixels_lie_right_and_below() -> None:
    settings = replace(PLAIN, rescale=(0.5, 0.5), flip_prob=1.0, flipud=1.0)
    batch = batch_of(Patches([(32, 48)]), settings, STRETCH, items_at(range(1), 1))
    assert (batch.masks[0, :16, :24] != 255).all()
    assert (batch.masks[0, 16:] == 255).all()
    assert (batch.masks[0, :, 24:] == 255).all()
    assert torch.allclose(batch.images[0, :, 17:], torch.full((3, 15, 48), GREY), atol=1e-4)


def test_a_zoom_of_2_shows_things_twice_as_large() -> None:
    settings = replace(PLAIN, rescale=(2.0, 2.0))
    masks = batch_of(Patches([(32, 48)]), settings, STRETCH, items_at(range(20), 1)).masks.numpy()
    runs = [np.diff(np.flatnonzero(np.diff(row.astype(int)))) for mask in masks for row in mask]
    lengths = np.concatenate(runs)
    assert (lengths % 16 == 0).all()


def test_the_zoom_is_relative_to_the_canvas_of_the_evaluation() -> None:
    """A picture of 16x24 judged at 64x96 and cropped to 32x48: a zoom of 1 shows half of each side."""
    settings = replace(PLAIN, canvas=(64, 96))
    mask = batch_of(Patches([(16, 24)]), settings, STRETCH, items_at(range(1), 1)).masks[0].numpy()
    assert (mask != 255).all()
    patches = Patches([(16, 24)]).mask(0)[::8, ::8]
    assert set(np.unique(mask)) <= set(np.unique(patches))
    edges = np.flatnonzero((np.diff(mask.astype(int), axis=1) != 0).any(axis=0))
    assert len(edges) <= 2  # patches of 8 are 32 wide now


def test_a_crop_that_one_class_fills_is_drawn_again() -> None:
    """Class 1 is a strip at the right end of a wide picture."""

    class Strip(Patches):
        def mask(self, index: int) -> np.ndarray:
            mask = np.zeros(self.sizes[index], np.uint8)
            mask[:, -40:] = 1
            return mask

    pictures = Strip([(32, 400)])
    settings = replace(PLAIN, imgsz=(32, 80), canvas=(32, 400))

    def share_with_both(cat_max_ratio: float) -> float:
        masks = batch_of(pictures, replace(settings, cat_max_ratio=cat_max_ratio), STRETCH, items_at(range(60), 1)).masks
        return float(((masks == 0).any(dim=2).any(dim=1) & (masks == 1).any(dim=2).any(dim=1)).float().mean())

    # Uniform places: the strip is in a crop's last 40 of 321 places, and a share of at most 3/4 needs 20 of its columns.
    assert share_with_both(1.0) < 0.3
    assert share_with_both(0.75) > 0.4


def test_what_a_picture_becomes_depends_on_its_place_alone() -> None:
    pictures = Patches([(40, 64), (70, 50), (33, 90)])
    settings = replace(PLAIN, rescale=(0.5, 2.0), flip_prob=0.5, hsv_prob=1.0)
    items = items_at(range(6), 3)
    whole = batch_of(pictures, settings, STRETCH, items)
    for row, item in enumerate(items):
        alone = batch_of(pictures, settings, STRETCH, [item])
        assert torch.equal(alone.images[0], whole.images[row])
        assert torch.equal(alone.masks[0], whole.masks[row])
    assert not torch.equal(whole.masks[0], whole.masks[3])  # one picture at two places


def test_every_rank_and_any_entry_gives_the_same_masks() -> None:
    pictures = Patches([(40, 64)] * 5)
    settings = replace(PLAIN, rescale=(0.5, 2.0), flip_prob=0.5)

    def seen(rank: int, world_size: int, start: int = 0) -> dict[tuple[int, int], bytes]:
        loader = train_loader(pictures, settings, STRETCH, batch=4, rank=rank, world_size=world_size, seed=1)
        return {tuple(k): m.numpy().tobytes() for b in loader.epoch(2, start_step=start) for k, m in zip(b.key.tolist(), b.masks, strict=True)}

    alone = seen(0, 1)
    assert len(alone) == 8
    assert {**seen(0, 2), **seen(1, 2)} == alone
    assert seen(0, 1, 1) == {k: v for k, v in alone.items() if k[1] >= 4}


def test_a_letterboxed_picture_knows_where_it_lies_and_its_truth_is_untouched() -> None:
    spec = InputSpec(resize="letterbox", pad_position="center")
    mask = Patches([(20, 64)]).mask(0)
    sample = eval_sample(Patches([(20, 64)]).image(0), mask, Item(0, 0, 0, 1.0), (32, 32), spec)
    assert sample.content == (11, 0, 21, 32)
    assert (sample.mask[:11] == 255).all()
    assert (sample.mask[11:21] != 255).all()
    assert sample.truth is mask


def test_evaluation_batches_hold_truth_of_any_size_beside_each_other() -> None:
    pictures = Patches([(20, 30), (40, 16)])
    loader = eval_loader(pictures, imgsz=(32, 48), spec=STRETCH, batch=2)
    [batch] = list(loader.epoch(0))
    assert batch.truth.shape == (2, 40, 30)
    for i in (0, 1):
        h, w = pictures.size(i)
        assert np.array_equal(batch.truth[i, :h, :w].numpy(), pictures.mask(i))
        assert (batch.truth[i, h:] == 255).all() and (batch.truth[i, :, w:] == 255).all()
    assert batch.masks.shape == batch.images.shape[:1] + batch.images.shape[2:]


def test_pictures_without_masks_make_a_batch_of_ignored_pixels() -> None:
    batch = collate_eval([eval_sample(Patches([(20, 30)]).image(0), None, Item(0, 0, 0, 1.0), (32, 48), STRETCH)]).batch
    assert (batch.masks == 255).all()
    assert batch.truth.shape == (1, 0, 0)
