"""Means over windows against sums written out."""

from __future__ import annotations

import pytest
import torch

from libreyolo.nn.local_mean import LocalMean, running_mean


@pytest.mark.parametrize(("length", "window"), [(9, 4), (9, 5), (9, 8), (5, 4), (7, 1)])
def test_each_place_has_the_mean_of_the_whole_window_nearest_to_it(length: int, window: int) -> None:
    x = torch.randn(2, 3, length, 2, dtype=torch.float64)
    found = running_mean(x, 2, window)
    for place in range(length):
        start = min(max(place - (window - 1) // 2, 0), length - window)
        assert torch.allclose(found[:, :, place], x[:, :, start : start + window].mean(2))


def test_an_axis_within_the_window_has_one_mean() -> None:
    x = torch.randn(1, 2, 4, 9)
    found = LocalMean(4).eval()(x)
    assert found.shape == (1, 2, 1, 9)
    assert torch.allclose(LocalMean(9).eval()(x), x.mean((2, 3), keepdim=True))


def test_training_takes_the_mean_of_the_whole_map() -> None:
    x = torch.randn(1, 2, 8, 9)
    layer = LocalMean(4)
    assert torch.allclose(layer.train()(x), x.mean((2, 3), keepdim=True))
    assert not torch.allclose(layer.eval()(x), x.mean((2, 3), keepdim=True).expand_as(layer(x)))


def test_long_maps_keep_their_precision() -> None:
    """Running sums grow with the map; a mean of values near 1 must not lose digits to them."""
    x = 1 + 0.001 * torch.randn(1, 1, 4000, 1)
    assert (running_mean(x, 2, 384) - running_mean(x.double(), 2, 384)).abs().max() < 1e-5
