"""2x2 means against torch's own in float64: plain operators, and the kernel, which on the CPU runs in Triton's interpreter."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from libreyolo.nn.fused import available
from libreyolo.nn.neighbour_mean import Means, NeighbourMean
from tests import kernels

DEVICE = "cuda" if kernels.ON_GPU else "cpu"


@pytest.fixture(params=[False, pytest.param(True, marks=pytest.mark.skipif(not kernels.RUN, reason=kernels.REASON))])
def by_kernel(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> bool:
    monkeypatch.setattr(available, "runs_on", lambda device: request.param)
    return bool(request.param)


def drawn(shape: tuple[int, ...], seed: int = 0) -> Tensor:
    found = torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).float().to(DEVICE)
    return found.contiguous(memory_format=torch.channels_last)


# The last one is wider than a block of the kernel, and its rows are no multiple of what a program takes.
@pytest.mark.parametrize("shape", [(2, 3, 2, 2), (1, 5, 4, 3), (3, 8, 5, 7), (1, 200, 7, 11)])
def test_means_and_gradients_of_two_orders_are_torch_s(shape: tuple[int, int, int, int], by_kernel: bool) -> None:
    x, pull = drawn(shape).requires_grad_(), drawn((*shape[:2], shape[2] - 1, shape[3] - 1), seed=1)
    twin = x.detach().double().requires_grad_()
    y, expected = Means.apply(x, 0), F.avg_pool2d(twin, 2, 1)
    assert torch.allclose(y.double(), expected, atol=1e-6)
    (gradient,) = torch.autograd.grad((y**2 * pull).sum(), x, create_graph=True)
    (wanted,) = torch.autograd.grad((expected**2 * pull.double()).sum(), twin, create_graph=True)
    assert torch.allclose(gradient.double(), wanted, atol=1e-6)
    (second,), (wanted_second,) = torch.autograd.grad((gradient**2).sum(), x), torch.autograd.grad((wanted**2).sum(), twin)
    assert torch.allclose(second.double(), wanted_second, atol=1e-5)
    if by_kernel:
        assert y.is_contiguous(memory_format=torch.channels_last) and gradient.is_contiguous(memory_format=torch.channels_last)


@pytest.mark.usefixtures("by_kernel")
def test_bfloat16_is_added_up_in_float32_and_rounded_once() -> None:
    x = drawn((2, 8, 5, 6)).bfloat16()
    for padding in (0, 1):
        exact = F.avg_pool2d(x.double(), 2, 1, padding)
        # One step of bfloat16: the interpreter cuts digits off where a GPU rounds. Sums in bfloat16 are off by far more where they cancel.
        assert bool(((Means.apply(x, padding).double() - exact).abs() <= exact.abs() * 2**-7).all())


@pytest.mark.usefixtures("by_kernel")
def test_maps_that_the_kernel_does_not_take_go_through_torch() -> None:
    for x in (drawn((2, 4, 5, 6)).contiguous(), drawn((2, 4, 5, 6)).double(), drawn((2, 4, 5, 6))[:0]):
        assert torch.equal(Means.apply(x, 0), F.avg_pool2d(x, 2, 1))
    with pytest.raises(RuntimeError, match="too small"):
        Means.apply(drawn((1, 4, 1, 6)), 0)


@pytest.mark.usefixtures("by_kernel")
def test_on_the_cpu_it_is_torch_s_operator() -> None:
    x = torch.rand(2, 3, 4, 4, requires_grad=True)
    y = NeighbourMean()(x)
    assert torch.equal(y, F.avg_pool2d(x, 2, 1)) and type(y.grad_fn).__name__ == "AvgPool2DBackward0"
