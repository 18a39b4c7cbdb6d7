"""Two norms whose maps are added and activated, against torch's own layers in float64; on the CPU the kernels run in Triton's interpreter."""

from __future__ import annotations

import copy

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tests import kernels

if not kernels.RUN:
    pytest.skip(kernels.REASON, allow_module_level=True)

from libreyolo.engine import fusion
from libreyolo.nn.conv import RepConv
from libreyolo.nn.fused import available
from libreyolo.nn.fused.norm_act import Running
from libreyolo.nn.fused.pair_act import Norm, pair_act, pair_plan_for
from libreyolo.nn.fused.scratch import ALONE, Ranks, Scratch
from tests.unit.nn.test_fused import DEVICE, PLAIN, maps, worst


def norm(channels: int, seed: int) -> Norm:
    draw = torch.Generator().manual_seed(seed)
    weight, bias = torch.rand(channels, generator=draw) + 0.5, torch.randn(channels, generator=draw)
    running = Running(torch.zeros(channels, device=DEVICE), torch.ones(channels, device=DEVICE), torch.tensor(4, device=DEVICE), 0.1)
    return Norm(weight.to(DEVICE).requires_grad_(), bias.to(DEVICE).requires_grad_(), running)


def pair(x: Tensor, z: Tensor, gradient: Tensor, act: int, ranks: Ranks = ALONE, scratch: Scratch | None = None) -> dict[str, Tensor]:
    x, z = (t.detach().requires_grad_() for t in (x, z))
    of_x, of_z = norm(x.shape[1], 9), norm(x.shape[1], 10)
    y = pair_act(x, z, of_x, of_z, eps=1e-3, act=act, ranks=ranks, scratch=scratch)
    y.backward(gradient)
    assert int(of_x.running.tracked) == int(of_z.running.tracked) == 5
    found = {"y": y.detach(), "x": x.grad, "z": z.grad}
    for name, own in (("x", of_x), ("z", of_z)):
        found |= {f"{name} weight": own.weight.grad, f"{name} bias": own.bias.grad, f"{name} mean": own.running.mean, f"{name} var": own.running.var}
    return found


def plain(x: Tensor, z: Tensor, gradient: Tensor, act: int) -> dict[str, Tensor]:
    x, z = (t.detach().double().requires_grad_() for t in (x, z))
    found: dict[str, Tensor] = {}
    total: Tensor | float = 0.0
    leaves = []
    for name, own, map_ in (("x", norm(x.shape[1], 9), x), ("z", norm(x.shape[1], 10), z)):
        weight, bias = (t.detach().double().requires_grad_() for t in (own.weight, own.bias))
        mean, var = own.running.mean.double(), own.running.var.double()
        total = total + F.batch_norm(map_, mean, var, weight, bias, True, 0.1, 1e-3)
        found |= {f"{name} mean": mean, f"{name} var": var}
        leaves += [(f"{name} weight", weight), (f"{name} bias", bias)]
    y = PLAIN[act](total)
    y.backward(gradient.double())
    return found | {"y": y.detach(), "x": x.grad, "z": z.grad} | {name: leaf.grad for name, leaf in leaves}


def three(shape: tuple[int, int, int, int], offset: float = 1.0) -> tuple[Tensor, Tensor, Tensor]:
    return maps(shape, offset=offset), maps(shape, offset=-2 * offset, seed=2), maps(shape, seed=1)


@pytest.mark.parametrize("act", [0, 1, 2])
@pytest.mark.parametrize("shape", [(2, 3, 4, 5), (3, 70, 9, 7), (1, 64, 8, 8)])
def test_outputs_gradients_and_running_statistics_are_those_of_two_norms_a_sum_and_an_activation(shape: tuple[int, int, int, int], act: int) -> None:
    x, z, gradient = three(shape)
    assert worst(pair(x, z, gradient, act), plain(x, z, gradient, act)) < 5e-6


def test_a_gradient_that_is_a_part_of_a_joined_map_s_is_taken_as_it_lies() -> None:
    x, z, _ = three((2, 6, 5, 4))
    part = maps((2, 20, 5, 4), seed=1)[:, 8:14]
    assert worst(pair(x, z, part, 1), plain(x, z, part, 1)) < 5e-6


def test_many_shares_in_memory_that_other_layers_used_before(monkeypatch: pytest.MonkeyPatch) -> None:
    from libreyolo.nn.fused import norm_act as module
    from libreyolo.nn.fused import pair_act as pairs

    monkeypatch.setattr(module, "TILE", 256)
    monkeypatch.setattr(module, "GRADIENT_TILE", 128)
    monkeypatch.setattr(module, "PARTS_TILE", 128)
    monkeypatch.setattr(module, "_multiprocessors", lambda device: 10)
    monkeypatch.setattr(pairs, "plan_for", module.plan_for.__wrapped__)
    monkeypatch.setattr(pairs, "pair_plan_for", pair_plan_for.__wrapped__)
    scratch, parts = Scratch(), []
    for shape in ((2, 70, 6, 7), (2, 24, 6, 6), (1, 3, 4, 5)):
        parts.append(pairs.pair_plan_for(shape[0] * shape[2] * shape[3], shape[1], 1, torch.device(DEVICE)).parts)
        x, z, gradient = three(shape)
        assert worst(pair(x, z, gradient, 1, scratch=scratch), plain(x, z, gradient, 1)) < 5e-6
    assert min(parts) >= 2
    (_, tickets), *others = scratch._kept.values()
    assert not others and not tickets.any()


@pytest.mark.slow
@pytest.mark.gpu
@pytest.mark.skipif(not kernels.ON_GPU, reason="on the CPU programs run one after the other")
def test_programs_that_run_at_once_give_the_same_numbers_in_every_run() -> None:
    scratch = Scratch()
    for shape in ((32, 64, 80, 80), (32, 200, 40, 40), (64, 16, 160, 160), (8, 512, 20, 20)):
        x, z, gradient = three(shape)
        first = pair(x, z, gradient, 1, scratch=scratch)
        assert worst(first, plain(x, z, gradient, 1)) < 1e-4
        for _ in range(30):
            again = pair(x, z, gradient, 1, scratch=scratch)
            assert all(torch.equal(again[name], value) for name, value in first.items())


def test_statistics_over_ranks_are_those_of_the_whole_batch() -> None:
    sizes = (2, 3)
    x, z, gradient = three((5, 6, 4, 4), offset=30.0)
    parts = list(zip(x.split(sizes), z.split(sizes), gradient.split(sizes), strict=True))
    rows: dict[tuple[int, int], Tensor] = {}
    sums: dict[int, Tensor] = {}
    results: list[dict[str, Tensor]] = []
    for _ in range(3):  # the first round finds the rows of the tables, the second the sums of the backward
        results = []
        for rank, own in enumerate(parts):
            asked: list[int] = []

            def gather(table: Tensor, rank: int = rank, asked: list[int] = asked) -> None:
                rows[len(asked), rank] = table[rank].clone()
                for other in range(len(table)):
                    table[other] = rows.get((len(asked), other), table[rank])
                asked.append(rank)

            def add(tensor: Tensor, rank: int = rank) -> None:
                sums[rank] = tensor.clone()
                tensor.copy_(torch.stack(list(sums.values())).sum(0))

            shared = Ranks(rank, len(sizes), gather, add)
            results.append(pair(*(t.contiguous(memory_format=torch.channels_last) for t in own), 1, shared))
    whole = plain(x, z, gradient, 1)
    of_rank = [name for name in whole if name.endswith(("mean", "var"))]
    both = {k: torch.cat([r[k] for r in results]) for k in ("y", "x", "z")}
    both |= {k: sum(r[k] for r in results) for k in whole if k.endswith(("weight", "bias"))}
    for result in results:
        assert worst(both | {k: result[k] for k in of_rank}, whole) < 5e-5


def test_a_layer_of_two_branches_trains_predicts_and_copies_as_before(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(available, "obstacle", lambda device: "")
    monkeypatch.setattr(available, "runs_on", lambda device: True)
    torch.manual_seed(0)
    net, twin = (nn.Sequential(RepConv(3, 8)).to(DEVICE).to(memory_format=torch.channels_last) for _ in range(2))
    twin.load_state_dict(net.state_dict())
    names = list(net.state_dict())
    fusion.fuse(net, over_ranks=False)
    assert list(net.state_dict()) == names
    called = []
    original = fusion.FusedNormAct.with_another
    monkeypatch.setattr(fusion.FusedNormAct, "with_another", lambda self, *given: called.append(self) or original(self, *given))
    x = maps((2, 3, 8, 8))
    for each in (net, twin):
        each(x).sin().sum().backward()
    assert called == [net[0].conv1.bn]
    for (name, a), b in zip(net.named_parameters(), twin.parameters(), strict=True):
        assert float((a.grad - b.grad).abs().max() / b.grad.abs().max()) < 1e-4, name
    for name, value in net.state_dict().items():
        assert torch.allclose(value.float(), twin.state_dict()[name].float(), rtol=1e-5, atol=1e-6), name
    copied = copy.deepcopy(net)
    with torch.no_grad():
        copied[0].conv1.bn.weight.zero_()
        copied[0].conv2.bn.weight.zero_()
        copied[0].conv1.bn.bias.fill_(2.0)
    assert torch.allclose(copied(x), F.silu(torch.tensor(2.0, device=DEVICE)) + torch.zeros_like(copied(x)))
    assert torch.allclose(net.eval()(x), twin.eval()(x), rtol=1e-5, atol=1e-6)
    hooked = []
    net[0].conv2.bn.register_forward_hook(lambda *_: hooked.append("norm"))
    net[0].act.register_forward_hook(lambda *_: hooked.append("activation"))
    net(x)
    assert hooked == ["norm", "activation"]
