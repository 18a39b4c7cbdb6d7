"""Synchronised BatchNorm of a GPU, on the CPU: by kernels in Triton's interpreter; by torch's kernels, in whose place stand their formulas."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import Tensor, nn

from libreyolo.engine import collectives, fusion, kernel_norm
from libreyolo.engine.batchnorm import _convert
from libreyolo.engine.kernel_norm import KernelBatchNorm
from libreyolo.nn.conv import ConvBNAct
from libreyolo.nn.fused import available
from libreyolo.nn.fused.exchange import Exchange
from libreyolo.nn.fused.scratch import Ranks, Scratch
from tests import kernels

SIZES = (1, 3, 2)


def by_channel(x: Tensor, values: Tensor) -> Tensor:
    return values.reshape(1, -1, *[1] * (x.dim() - 2))


def dims(x: Tensor) -> list[int]:
    return [0, *range(2, x.dim())]


def stats(x: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    return x.mean(dims(x)), (x.var(dims(x), correction=0) + eps).rsqrt()


def gathered(
    x: Tensor, means: Tensor, rstds: Tensor, running_mean: Tensor, running_var: Tensor, momentum: float, eps: float, counts: Tensor
) -> tuple[Tensor, Tensor]:
    assert means.shape == rstds.shape == (len(SIZES), x.shape[1]) and counts.shape == (len(SIZES),) and counts.dtype == running_mean.dtype
    total = counts.sum()
    mean = (counts[:, None] * means).sum(0) / total
    var = (counts[:, None] * (rstds**-2 - eps + (means - mean) ** 2)).sum(0) / total
    running_mean.lerp_(mean, momentum)
    running_var.lerp_(var * total / (total - 1), momentum)
    return mean, (var + eps).rsqrt()


def elemt(x: Tensor, weight: Tensor, bias: Tensor, mean: Tensor, rstd: Tensor, eps: float) -> Tensor:
    return (x - by_channel(x, mean)) * by_channel(x, rstd * weight) + by_channel(x, bias)


def backward_reduce(g: Tensor, x: Tensor, mean: Tensor, rstd: Tensor, weight: Tensor, *wanted: bool) -> tuple[Tensor, ...]:
    first, second = g.sum(dims(x)), (g * (x - by_channel(x, mean))).sum(dims(x))
    return first, second, second * rstd, first


def backward_elemt(g: Tensor, x: Tensor, mean: Tensor, rstd: Tensor, weight: Tensor, first: Tensor, second: Tensor, counts: Tensor) -> Tensor:
    assert counts.dtype == torch.int32
    total = counts.sum()
    inner = g - by_channel(x, first) / total - (x - by_channel(x, mean)) * by_channel(x, rstd**2 * second) / total
    return inner * by_channel(x, rstd * weight)


@pytest.fixture
def torch_s_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, formula in {
        "stats": stats,
        "gather_stats_with_counts": gathered,
        "elemt": elemt,
        "backward_reduce": backward_reduce,
        "backward_elemt": backward_elemt,
    }.items():
        monkeypatch.setattr(torch, f"batch_norm_{name}", formula)
    monkeypatch.setattr(kernel_norm, "torch_s_run_on", lambda device: True)


def filled(norm: nn.Module) -> nn.Module:
    with torch.no_grad():
        norm.weight.copy_(torch.tensor([0.5, 1.0, 2.0, -1.0]))
        norm.bias.copy_(torch.tensor([0.0, 1.0, -1.0, 0.3]))
    return norm


@pytest.mark.usefixtures("torch_s_kernels")
@pytest.mark.parametrize(
    ("shape", "by_kernels"),
    [
        ((4, 5, 3), False),
        pytest.param((4, 5, 3), True, marks=pytest.mark.skipif(not kernels.INTERPRETED, reason=kernels.REASON)),
        ((4,), True),  # rows without a map: torch's
    ],
)
def test_ranks_of_different_size_get_what_one_gets_on_all_pictures(shape: tuple[int, ...], by_kernels: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(available, "runs_on", lambda device: by_kernels)
    kind = nn.BatchNorm2d if len(shape) == 3 else nn.BatchNorm1d
    whole = filled(kind(4))
    norms = [_convert(copy.deepcopy(whole), lambda *a: KernelBatchNorm(*a, scratch=Scratch()), {}) for _ in SIZES]
    draw = torch.Generator().manual_seed(0)
    x, pull = (torch.randn((sum(SIZES), *shape), generator=draw) * 2 + 3 for _ in range(2))
    if len(shape) == 3:
        x, pull = (t.contiguous(memory_format=torch.channels_last) for t in (x, pull))
    rows: dict[int, Tensor] = {}
    sums: dict[int, Tensor] = {}
    before = copy.deepcopy([norm.state_dict() for norm in norms])
    for _ in range(3):  # the first round finds the rows of the table, the second the sums of the backward
        results = []
        for rank, (norm, own, mine) in enumerate(zip(norms, x.split(SIZES), pull.split(SIZES), strict=True)):
            norm.load_state_dict(before[rank])
            norm.zero_grad()

            def gather(table: Tensor, rank: int = rank) -> None:
                rows[rank] = table[rank].clone()
                for other in range(len(table)):
                    table[other] = rows.get(other, rows[rank])

            def add(tensor: Tensor, rank: int = rank) -> None:
                sums[rank] = tensor.clone()
                tensor.copy_(torch.stack(list(sums.values())).sum(0))

            monkeypatch.setattr(collectives, "ranks", lambda rank=rank, gather=gather, add=add: Ranks(rank, len(SIZES), gather, add))
            leaf = own.detach().requires_grad_()
            y = norm(leaf)
            (y.sin() * mine).sum().backward()
            results.append((y.detach(), leaf.grad))
    leaf = x.clone().requires_grad_()
    expected = whole(leaf)
    (expected.sin() * pull).sum().backward()
    assert torch.allclose(torch.cat([y for y, _ in results]), expected, atol=2e-6)
    assert torch.allclose(torch.cat([g for _, g in results]), leaf.grad, atol=1e-5)
    for name, parameter in whole.named_parameters():
        assert torch.allclose(sum(dict(norm.named_parameters())[name].grad for norm in norms), parameter.grad, atol=2e-5), name
    for norm in norms:
        assert int(norm.num_batches_tracked) == 1
        assert torch.allclose(norm.running_mean, whole.running_mean, atol=1e-6) and torch.allclose(norm.running_var, whole.running_var, atol=1e-6)


@pytest.mark.parametrize("case", [{"momentum": None}, {"affine": False}, {"track_running_stats": False}])
def test_what_neither_kernels_take_is_left_to_plain_operators(case: dict[str, object], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(available, "runs_on", lambda device: True)
    monkeypatch.setattr(collectives, "ranks", lambda: Ranks(0, 2, pytest.fail, pytest.fail))
    norm, x = KernelBatchNorm(4, **case, scratch=Scratch()), torch.rand(2, 4, 3, 3)
    assert torch.allclose(norm(x), nn.BatchNorm2d(4, **case)(x), atol=1e-6)


def test_alone_and_in_evaluation_it_is_plain_batchnorm(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(available, "runs_on", lambda device: True)
    norm, plain, x = KernelBatchNorm(4, scratch=Scratch()), nn.BatchNorm2d(4), torch.rand(2, 4, 3, 3)
    assert torch.equal(norm(x), plain(x))
    monkeypatch.setattr(collectives, "ranks", lambda: Ranks(0, 2, pytest.fail, pytest.fail))
    assert torch.equal(norm.eval()(x), plain.eval()(x))


def test_a_copy_of_the_network_shares_no_memory_of_the_kernels() -> None:
    scratch = Scratch()
    net = nn.Sequential(KernelBatchNorm(2, scratch=scratch), KernelBatchNorm(2, scratch=scratch))
    twin = copy.deepcopy(net)
    assert twin[0].scratch is twin[1].scratch is not scratch


class TwoKinds(nn.Module):
    """A layer whose norm has an activation behind it, and a norm by itself."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.norm = ConvBNAct(3, 4), nn.BatchNorm2d(4)


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Kernels run here, ranks can meet where they are able to, and this says whether they were."""
    told: list[bool] = []
    exchange = Exchange.create(1)
    assert exchange is not None
    exchange.leave_no_name()

    def given(device: torch.device, *, able: bool) -> Exchange | None:
        told.append(able)
        return exchange if able else None

    monkeypatch.setattr(collectives, "exchange", given)
    monkeypatch.setattr(available, "obstacle", lambda device: "")
    return told


def test_where_ranks_can_meet_every_norm_of_theirs_does_so_in_one_place(asked: list[bool]) -> None:
    names = list(TwoKinds().state_dict())
    net = fusion.with_norms(TwoKinds(), fused=None, over_ranks=True, compiled=False)
    norms = [net.layer.bn, net.norm]
    assert [type(norm).__name__ for norm in norms] == ["FusedNormAct", "KernelBatchNorm"] and type(net.layer.act) is nn.Identity
    assert norms[0].scratch is norms[1].scratch and norms[0].scratch.exchange is not None and norms[0].over_ranks
    assert list(net.state_dict()) == names
    assert asked == [True]
    assert copy.deepcopy(net).norm.scratch.exchange is None  # an average does not train


@pytest.mark.parametrize(
    ("options", "layers", "able"),
    [
        ({"fused": None, "over_ranks": True, "compiled": True}, ["SyncBatchNorm", "SyncBatchNorm"], [False]),
        ({"fused": False, "over_ranks": True, "compiled": True}, ["SyncBatchNorm", "SyncBatchNorm"], [False]),
        ({"fused": False, "over_ranks": True, "compiled": False}, ["SyncBatchNorm", "SyncBatchNorm"], [False]),
        ({"fused": False, "over_ranks": False, "compiled": False}, ["BatchNorm2d", "BatchNorm2d"], []),
        ({"fused": None, "over_ranks": False, "compiled": True}, ["BatchNorm2d", "BatchNorm2d"], []),
        ({"fused": None, "over_ranks": False, "compiled": False}, ["FusedNormAct", "BatchNorm2d"], []),
        ({"fused": True, "over_ranks": False, "compiled": False}, ["FusedNormAct", "BatchNorm2d"], []),
    ],
)
def test_norms_of_one_rank_compiled_ones_and_those_kept_apart_do_not_meet(
    options: dict[str, bool | None], layers: list[str], able: list[bool], asked: list[bool]
) -> None:
    net = fusion.with_norms(TwoKinds(), **options)
    assert [type(net.layer.bn).__name__, type(net.norm).__name__] == layers
    assert asked == able
