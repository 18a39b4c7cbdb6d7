"""Pairs on their way to the network: cut and turned alike in training, whole in evaluation."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import torch

from libreyolo.data.augment.pair import PairSettings, draw_pair_plan, fill_up, shown_box, turn
from libreyolo.data.restore_loader import eval_loader, train_loader, whole_batch


class Numbered:
    """Pairs of sizes of their own whose pixels say where they come from: (row, column, place), in the target the bits turned over."""

    def __init__(self, *sizes: tuple[int, int]) -> None:
        self.sizes = sizes

    def __len__(self) -> int:
        return len(self.sizes)

    def path(self, index: int) -> Path:
        return Path(f"{index}.png")

    def size(self, index: int) -> tuple[int, int]:
        return self.sizes[index]

    def pair(self, index: int) -> tuple[np.ndarray, np.ndarray]:
        h, w = self.sizes[index]
        rows, columns = np.mgrid[:h, :w].astype(np.uint8)
        picture = np.stack([rows, columns, np.full_like(rows, index)], axis=2)
        return picture, 255 - picture

    def parts(self, index: int, box: tuple[int, int, int, int]) -> tuple[np.ndarray, np.ndarray]:
        top, left, bottom, right = box
        given, target = self.pair(index)
        return given[top:bottom, left:right], target[top:bottom, left:right]


def pixels(images: torch.Tensor) -> torch.Tensor:
    return (images * 255).round().to(torch.uint8)


SETTINGS = PairSettings((16, 16))
PAIRS = Numbered((40, 50), (16, 16), (64, 20), (30, 30), (17, 90))


def test_input_and_target_are_cut_and_turned_alike() -> None:
    for batch in train_loader(PAIRS, SETTINGS, batch=4, seed=3).epoch(1):
        assert batch.images.shape == batch.targets.shape == (4, 3, 16, 16)
        assert (pixels(batch.images) == 255 - pixels(batch.targets)).all()
        assert batch.images.is_contiguous()
        assert batch.input_hw.tolist() == batch.picture_hw.tolist() == [[16, 16]] * 4
        for image, index in zip(pixels(batch.images), batch.index.tolist(), strict=True):
            assert (image[2] == index).all()
            steps = {int(image[c].int().diff(dim=d).abs().max()) for c in (0, 1) for d in (0, 1)}
            assert steps == {0, 1}  # neighbours stay neighbours: nothing is interpolated


def test_all_eight_positions_are_reached_and_no_other() -> None:
    picture = torch.arange(9.0).reshape(1, 1, 3, 3).expand(8, 1, 3, 3)
    turns = torch.tensor([[bool(n & 1), bool(n & 2), bool(n & 4)] for n in range(8)])
    found = {tuple(t.flatten().tolist()) for t in turn(picture, turns)}
    square = picture[0, 0]
    expected = {tuple(torch.rot90(s, k).flatten().tolist()) for s in (square, square.flip(0)) for k in range(4)}
    assert found == expected
    assert len(found) == 8
    assert (turn(picture, torch.zeros(8, 3, dtype=torch.bool)) == picture).all()


def test_every_crop_that_fits_and_every_position_is_drawn_about_as_often() -> None:
    plans = [draw_pair_plan(SETTINGS, (18, 17), seed=0, epoch=0, place=place) for place in range(3000)]
    places = Counter((p.top, p.left) for p in plans)
    assert sorted(places) == [(t, x) for t in range(3) for x in range(2)]
    assert min(places.values()) > 400  # of 500; five standard deviations are 102
    positions = Counter((p.mirrored, p.upside_down, p.transposed) for p in plans)
    assert len(positions) == 8
    assert min(positions.values()) > 280  # of 375; five are 91


def test_probabilities_of_0_leave_crops_as_they_are() -> None:
    settings = PairSettings((16, 24), flip_prob=0.0, flipud=0.0, rot90=0.0)
    (batch,) = train_loader(Numbered((16, 24), (16, 24)), settings, batch=2).epoch(0)
    for image, index in zip(pixels(batch.images), batch.index.tolist(), strict=True):
        assert (image == torch.from_numpy(Numbered((16, 24)).pair(0)[0]).permute(2, 0, 1) + torch.tensor([0, 0, index])[:, None, None]).all()


def test_a_picture_smaller_than_the_crop_is_filled_up_with_its_mirror_image() -> None:
    plan = draw_pair_plan(PairSettings((8, 8)), (3, 20), seed=0, epoch=0, place=0)
    crop = fill_up(Numbered((3, 20)).parts(0, shown_box(plan, (3, 20), (8, 8)))[0], (8, 8))
    assert crop.shape == (8, 8, 3)
    assert crop[:, 0, 0].tolist() == [0, 1, 2, 1, 0, 1, 2, 1]
    assert crop[0, :, 1].tolist() == list(range(plan.left, plan.left + 8))


def test_any_workers_and_ranks_see_the_same_crops() -> None:
    def seen(workers: int, world_size: int) -> dict[int, bytes]:
        found = {}
        for rank in range(world_size):
            loader = train_loader(PAIRS, SETTINGS, batch=4, rank=rank, world_size=world_size, seed=5, workers=workers)
            for batch in loader.epoch(2):
                rows = zip(batch.key[:, 1].tolist(), batch.images, batch.targets, strict=True)
                found |= {place: a.numpy().tobytes() + b.numpy().tobytes() for place, a, b in rows}
            loader.close()
        return found

    alone = seen(0, 1)
    assert len(alone) == 8
    assert len(set(alone.values())) >= 7  # a picture of the crop's own size may come twice the same way
    assert seen(0, 2) == seen(1, 2) == alone


def test_evaluation_gives_whole_pictures_filled_up_to_the_stride() -> None:
    batches = list(eval_loader(PAIRS, stride=16, batch=2).epoch(0))
    assert [b.index.tolist() for b in batches] == [[0, 1], [2, 3], [4]]
    first = batches[0]
    assert first.images.shape == first.targets.shape == (2, 3, 48, 64)
    assert first.input_hw.tolist() == [[48, 64], [16, 16]]
    assert first.picture_hw.tolist() == [[40, 50], [16, 16]]
    given, target = (torch.from_numpy(p).permute(2, 0, 1) for p in PAIRS.pair(0))
    assert (pixels(first.images)[0, :, :40, :50] == given).all()
    assert (pixels(first.targets)[0, :, :40, :50] == target).all()
    assert pixels(first.images)[0, 0, 38:44, 0].tolist() == [38, 39, 38, 37, 36, 35]
    assert (first.images[1, :, 16:] == 0).all()
    assert torch.equal(whole_batch([PAIRS.pair(0)[0], PAIRS.pair(1)[0]], 16).images, first.images)


@pytest.mark.parametrize("hw", [(1, 1), (2, 5), (16, 16)])
def test_tiny_pictures_are_filled_up_too(hw: tuple[int, int]) -> None:
    filled = fill_up(Numbered(hw).pair(0)[0], (16, 16))
    assert filled.shape == (16, 16, 3)
    assert (filled[: hw[0], : hw[1]] == Numbered(hw).pair(0)[0]).all()
