"""PSNR and SSIM against hand values and SciPy; the metric against the order and the sharing of its pictures."""

from __future__ import annotations

import logging
import pickle
from dataclasses import replace

import numpy as np
import pytest
import torch
from scipy.ndimage import gaussian_filter

from libreyolo.interfaces.batch import RestoreBatch, Restored
from libreyolo.metrics.restore import RestoreMetric
from libreyolo.metrics.similarity import psnr, ssim


def noise(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.from_numpy(np.random.default_rng(seed).random(shape))


def test_psnr_is_ten_logarithms_of_one_over_the_mean_square() -> None:
    black = torch.zeros(3, 4, 5, dtype=torch.float64)
    assert psnr(black, black + 0.1) == pytest.approx(20.0)
    lone = black.clone()
    lone[0, 0, 0] = 1.0  # one of 60 values wrong by all of the range
    assert psnr(black, lone) == pytest.approx(10 * np.log10(60))
    assert psnr(black, black) == 100.0


@pytest.mark.parametrize("shape", [(3, 24, 31), (3, 5, 40), (1, 1, 1)])
def test_ssim_is_that_of_gaussian_windows(shape: tuple[int, ...]) -> None:
    one, other = noise(*shape), noise(*shape, seed=1) * 0.5 + 0.3

    def blurred(x: torch.Tensor) -> np.ndarray:
        return np.stack([gaussian_filter(channel, 1.5, mode="constant", radius=5) for channel in x.numpy()])

    m1, m2 = blurred(one), blurred(other)
    v1, v2, cov = blurred(one * one) - m1 * m1, blurred(other * other) - m2 * m2, blurred(one * other) - m1 * m2
    expected = (2 * m1 * m2 + 0.0001) * (2 * cov + 0.0009) / ((m1**2 + m2**2 + 0.0001) * (v1 + v2 + 0.0009))
    assert ssim(one, other) == pytest.approx(float(expected.mean()), abs=1e-9)
    assert ssim(one, one) == pytest.approx(1.0)
    assert ssim(one, other) == ssim(other, one)


def test_ssim_falls_with_blur_more_than_with_a_brighter_picture() -> None:
    """What it is for, and what PSNR does not see."""
    one = noise(3, 32, 32)
    blurred = torch.from_numpy(np.stack([gaussian_filter(c, 1.0) for c in one.numpy()]))
    brighter = one + float((blurred - one).square().mean().sqrt())
    assert psnr(one, brighter) == pytest.approx(psnr(one, blurred))
    assert ssim(one, blurred) < 0.7 < ssim(one, brighter)


def batch_of(*indices: int, hw: tuple[int, int] = (16, 20), weight: float = 1.0) -> tuple[RestoreBatch, list[Restored]]:
    """Pictures that are a function of their index, in the corner of a larger input, and restored ones."""
    images = torch.full((len(indices), 3, 32, 32), 9.0)
    targets, restored = images.clone(), []
    for row, index in enumerate(indices):
        images[row, :, : hw[0], : hw[1]] = noise(3, *hw, seed=index).float()
        targets[row, :, : hw[0], : hw[1]] = noise(3, *hw, seed=100 + index).float()
        restored.append(
            Restored(noise(3, *hw, seed=200 + index).float() * 0.1 * (index + 1) + targets[row, :, : hw[0], : hw[1]] * (0.9 - 0.1 * index))
        )
    count = len(indices)
    batch = RestoreBatch(
        images=images,
        weight=torch.full((count,), weight),
        index=torch.tensor(indices),
        epoch=0,
        key=torch.zeros(count, 2, dtype=torch.int64),
        targets=targets,
        input_hw=torch.tensor([[16, 32]] * count),
        picture_hw=torch.tensor([hw] * count),
    )
    return batch, restored


def collected(*parts: tuple[int, ...], keep_worst: int = 2) -> RestoreMetric:
    metric = RestoreMetric(keep_worst=keep_worst)
    for indices in parts:
        metric.update(*batch_of(*indices))
    return metric


def test_each_picture_is_judged_at_its_own_size_and_counts_once() -> None:
    metric = collected((0,), (1, 0))
    metric.update(*batch_of(2, weight=0.0))
    assert metric.curves()["pictures"].tolist() == [0, 1]
    figures = []
    for index in (0, 1):
        batch, (restored,) = batch_of(index)
        target = batch.targets[0, :, :16, :20].double()
        figures.append((psnr(restored.pixels.double(), target), ssim(restored.pixels.double(), target)))
        assert metric.curves()["input_psnr"][index] == psnr(batch.images[0, :, :16, :20].double(), target)
    mean = np.mean(figures, axis=0)
    assert metric.compute() == {"metrics/PSNR": mean[0], "metrics/SSIM": mean[1], "metrics/fitness": mean[0]}


def test_the_merged_state_is_the_same_to_the_bit_however_pictures_are_shared() -> None:
    alone = collected((0, 1, 2, 3, 4, 5, 6))
    for parts in ([(0, 2, 4, 6), (1, 3, 5)], [(6, 5), (), (0, 1, 2, 3, 4, 5)]):
        states = [pickle.loads(pickle.dumps(collected(part).state())) for part in parts]
        merged = RestoreMetric(keep_worst=2)
        merged.merge(states)
        assert merged.compute() == alone.compute()
        assert all((merged.curves()[k] == alone.curves()[k]).all() for k in alone.curves())
        assert merged.worst(5) == alone.worst(5) == [6, 5]
        for index in (6, 5):
            samples = [m.sample(index, np.zeros((16, 20, 3), np.uint8), np.zeros((16, 20, 3), np.uint8)) for m in (merged, alone)]
            assert (samples[0].restored == samples[1].restored).all()
            assert replace(samples[0], given=0, target=0, restored=0) == replace(samples[1], given=0, target=0, restored=0)  # type: ignore[arg-type]


def test_only_the_worst_pictures_are_kept() -> None:
    assert len(collected((0, 1), (2, 3, 4)).state()["kept"]) == 2
    assert collected((0, 1, 2), keep_worst=0).worst(3) == []


def test_no_picture_at_all_is_defined() -> None:
    merged = RestoreMetric()
    merged.merge([RestoreMetric().state(), RestoreMetric().state()])
    assert merged.compute() == {"metrics/PSNR": 0.0, "metrics/SSIM": 0.0, "metrics/fitness": 0.0}
    assert len(merged.curves()["psnr"]) == 0


def test_values_that_are_not_finite_count_as_0_and_are_warned_of(caplog: pytest.LogCaptureFixture) -> None:
    batch, (restored,) = batch_of(0)
    metric = RestoreMetric(keep_worst=1)
    with caplog.at_level(logging.WARNING):
        metric.update(batch, [Restored(torch.full_like(restored.pixels, float("nan")))])
    target = batch.targets[0, :, :16, :20].double()
    assert metric.compute()["metrics/PSNR"] == psnr(torch.zeros_like(target), target)
    assert "not finite (picture 0)" in caplog.text
