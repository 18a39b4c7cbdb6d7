"""What the terms of every loss over anchors must do, whatever the family: they are sums over pictures."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import pytest
import torch
from torch import Tensor, nn

from libreyolo.interfaces.term import Term
from tests.family.parity.fill import CROWDED, TARGETS, fill, pictures

SIDE = 96
N = TypeVar("N", bound=nn.Module)
TermsOf = Callable[..., dict[str, Term]]  # (net, images, targets, weight=None) -> the family's terms


def trained_without_statistics(net: N) -> N:
    """Return the network filled with known numbers, in float64 and training except for BatchNorm: a picture's output depends on no other picture."""
    fill(net)
    net.train()
    for module in net.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.eval()
    return net.double()


def number(value: Tensor) -> float:
    return float(value.detach())


def total_of(terms: dict[str, Term], stats: dict[str, Tensor]) -> Tensor:
    return sum((term.total * term.scale(stats[name]) for name, term in terms.items()), torch.zeros(()))


def gradients(value: Tensor, net: nn.Module) -> Tensor:
    return torch.cat([grad.flatten() for grad in torch.autograd.grad(value, list(net.parameters()), retain_graph=True)])


def assert_a_batch_is_the_sum_of_its_pictures(net: nn.Module, terms_of: TermsOf, names: set[str]) -> None:
    images = pictures(SIDE, SIDE, count=3).double()
    whole = terms_of(net, images, CROWDED)
    parts = [terms_of(net, images[i : i + 1], CROWDED[i : i + 1]) for i in range(3)]
    assert set(whole) == names
    for name, term in whole.items():
        assert number(term.total) == pytest.approx(sum(number(part[name].total) for part in parts), rel=1e-6)
        assert number(term.stats) == pytest.approx(sum(number(part[name].stats) for part in parts), rel=1e-6)
        assert not term.stats.requires_grad


def assert_two_ranks_have_the_gradient_of_one_process(net: nn.Module, terms_of: TermsOf) -> None:
    """Rank 0 sees three boxes, rank 1 one box: per-rank means would differ, sums scaled by the global stats don't."""
    images = pictures(SIDE, SIDE).double()
    one = terms_of(net, images, TARGETS)
    expected = gradients(total_of(one, {name: term.stats for name, term in one.items()}), net)
    ranks = [terms_of(net, images[i : i + 1], TARGETS[i : i + 1]) for i in range(2)]
    summed = {name: ranks[0][name].stats + ranks[1][name].stats for name in one}
    found = sum(gradients(total_of(rank, summed), net) for rank in ranks)
    assert isinstance(found, Tensor)
    assert float((found - expected).norm() / expected.norm()) < 1e-6
    means = sum(gradients(total_of(rank, {name: rank[name].stats for name in one}), net) for rank in ranks)
    assert float((means / 2 - expected).norm() / expected.norm()) > 1e-2, "the case is too easy to tell sums from means"


def assert_a_padded_repeat_counts_in_no_sum(net: nn.Module, terms_of: TermsOf) -> None:
    images = pictures(SIDE, SIDE).double()
    real = terms_of(net, images[:1], TARGETS[:1])
    padded = terms_of(net, images, TARGETS, weight=[1.0, 0.0])
    for name, term in real.items():
        assert number(padded[name].total) == pytest.approx(number(term.total), rel=1e-9)
        assert number(padded[name].stats) == pytest.approx(number(term.stats), rel=1e-9)
    nothing = terms_of(net, images, TARGETS, weight=[0.0, 0.0])
    assert all(number(term.total) == 0 and number(term.stats) == 0 for term in nothing.values())
