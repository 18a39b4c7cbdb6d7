import numpy as np
import pytest
import torch

from libreyolo.data.augment.compose import PAD, compose, stack_plans
from libreyolo.data.augment.plan import Plan, Slot, draw_plan
from libreyolo.data.augment.settings import AugmentSettings
from tests.unit.augment.pictures import DrawnPictures, noisy_pictures, render


def plan_of(settings, pictures, *, place=0, index=0):
    return draw_plan(settings, pictures.size, len(pictures), seed=0, index=index, epoch=0, place=place)


def many(settings, pictures, number):
    plans = [plan_of(settings, pictures, place=p, index=p % len(pictures)) for p in range(number)]
    sources = [pictures.image(i, settings.imgsz) for i in range(len(pictures))]
    sizes = np.array([s.shape[:2] for s in sources])
    tiles = torch.full((len(sources), *sizes.max(axis=0), 3), 200, dtype=torch.uint8)  # what lies beyond a tile must never be seen
    for tile, source in zip(tiles, sources, strict=True):
        tile[: source.shape[0], : source.shape[1]] = torch.from_numpy(source.copy())
    return plans, tiles, stack_plans(plans, {i: i for i in range(len(pictures))}, sizes)


def test_a_picture_of_the_inputs_size_comes_out_as_it_is():
    pictures = noisy_pictures(1)
    settings = AugmentSettings(imgsz=pictures.size(0), mosaic_prob=0, hsv_prob=0, flip_prob=0)
    expected = torch.from_numpy(pictures.image(0)).permute(2, 0, 1) / 255
    torch.testing.assert_close(render(plan_of(settings, pictures), pictures, settings.imgsz), expected, atol=1e-4, rtol=0)


def test_a_fitted_picture_is_in_the_top_left_and_grey_lies_beyond():
    pictures = DrawnPictures([(32, 64)], [(0, 0, 64, 32)])
    settings = AugmentSettings(imgsz=(64, 64), mosaic_prob=0, hsv_prob=0, flip_prob=0)
    out = render(plan_of(settings, pictures), pictures, (64, 64))
    torch.testing.assert_close(out[:, :32], torch.ones(3, 32, 64), atol=1e-5, rtol=0)
    torch.testing.assert_close(out[:, 32:], torch.full((3, 32, 64), PAD), atol=1e-6, rtol=0)


def test_enlarging_by_two_is_bilinear_with_half_pixel_centres():
    # One row 0, 255 enlarged twofold: centres at 0.25, 0.75, 1.25, 1.75 of the source, whose own are at 0.5 and 1.5.
    tiles = torch.tensor([[[[0] * 3, [255] * 3], [[0] * 3, [255] * 3]]], dtype=torch.uint8)
    slot = Slot(0, 0, np.diag([4.0, 4.0, 1.0]), (0.0, 0.0, 1.0, 1.0), (0, 0, 4, 4), (4.0, 4.0))
    out = compose(tiles, stack_plans([Plan((slot,), None, 0.0, False)], {0: 0}, np.array([[2, 2]])), (4, 4))
    torch.testing.assert_close(out[0, 0, 1], torch.tensor([0.0, 0.25, 0.75, 1.0]), atol=1e-6, rtol=0)


@pytest.mark.parametrize(("name", "axis"), [("flip_prob", 2), ("flipud", 1)])
def test_a_flipped_picture_is_the_mirror_image(name, axis):
    pictures = noisy_pictures(1)
    common = {"imgsz": (64, 64), "mosaic_prob": 0, "hsv_prob": 0}
    straight = render(plan_of(AugmentSettings(**common, flip_prob=0), pictures), pictures, (64, 64))
    flipped = render(plan_of(AugmentSettings(**(common | {"flip_prob": 0} | {name: 1.0})), pictures), pictures, (64, 64))
    torch.testing.assert_close(flipped, straight.flip(axis), atol=1e-4, rtol=0)


def test_tiles_that_share_an_edge_meet_without_a_seam():
    # All white, so that any grey between tiles would be seen; the canvas is magnified until no border shows.
    pictures = DrawnPictures([(64, 64)] * 4, [(0, 0, 64, 64)] * 4)
    settings = AugmentSettings(imgsz=(64, 64), hsv_prob=0, degrees=30, mosaic_scale=(2.0, 2.0), translate=0)
    for place in range(10):
        plan = plan_of(settings, pictures, place=place)
        out = render(plan, pictures, (64, 64))
        assert len(plan.slots) >= 1
        assert out.max() <= 1 + 1e-5
        inner = out[:, 16:48, 16:48]
        if len(plan.slots) == 4:
            torch.testing.assert_close(inner, torch.ones_like(inner), atol=1e-4, rtol=0)


def test_mixup_is_the_mean_of_both_layers():
    pictures = noisy_pictures(6)
    settings = AugmentSettings(imgsz=(64, 64), mixup_prob=1.0, hsv_prob=0)
    plan = plan_of(settings, pictures)
    layers = [
        render(
            Plan(tuple(Slot(s.picture, 0, s.to_output, s.shown, s.window, s.edge_scale) for s in plan.slots if s.layer == n), None, 0, True),
            pictures,
            (64, 64),
        )
        for n in (0, 1)
    ]
    torch.testing.assert_close(render(plan, pictures, (64, 64)), (layers[0] + layers[1]) / 2, atol=1e-5, rtol=0)


def test_a_picture_does_not_depend_on_the_rest_of_its_batch():
    pictures = noisy_pictures(8)
    settings = AugmentSettings(imgsz=(64, 48), mosaic_prob=0.7, mixup_prob=0.5, hsv_prob=0.5, degrees=15, perspective=0.0003)
    plans, tiles, batch = many(settings, pictures, 12)
    together = compose(tiles, batch, (64, 48))
    for row in (0, 5, 11):
        torch.testing.assert_close(together[row], render(plans[row], pictures, (64, 48)), atol=0, rtol=0)


def test_values_stay_in_zero_to_one():
    pictures = noisy_pictures(8)
    settings = AugmentSettings(imgsz=(64, 48), mixup_prob=0.5, degrees=30, shear=20, perspective=0.0005, hsv_gain=(0.5, 1.0, 1.0))
    _, tiles, batch = many(settings, pictures, 12)
    out = compose(tiles, batch, (64, 48))
    assert out.min() >= 0
    assert out.max() <= 1 + 1e-5


def test_many_at_once_equal_one_by_one(monkeypatch):
    # The path of an accelerator, run on a device type that only says it is another: slots of all pictures in one pass.
    import libreyolo.data.augment.compose as module

    pictures = noisy_pictures(8)
    settings = AugmentSettings(imgsz=(64, 48), mosaic_prob=0.7, mixup_prob=0.5, hsv_prob=0.5, degrees=15, shear=5)
    _, tiles, batch = many(settings, pictures, 12)
    one_by_one = compose(tiles, batch, (64, 48))
    monkeypatch.setattr(module, "one_by_one", lambda device: False)
    torch.testing.assert_close(compose(tiles, batch, (64, 48)), one_by_one, atol=1e-4, rtol=0)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA")
def test_the_gpu_gives_the_same_pictures_without_waiting_for_the_host():
    pictures = noisy_pictures(8)
    settings = AugmentSettings(imgsz=(64, 48), mosaic_prob=0.7, mixup_prob=0.5, degrees=15, shear=5, perspective=0.0003)
    _, tiles, batch = many(settings, pictures, 12)
    device = torch.device("cuda")
    moved, plans = tiles.to(device), batch.to(device)
    torch.cuda.set_sync_debug_mode("error")
    try:
        out = compose(moved, plans, (64, 48))
    finally:
        torch.cuda.set_sync_debug_mode("default")
    torch.testing.assert_close(out.cpu(), compose(tiles, batch, (64, 48)), atol=1e-4, rtol=0)
