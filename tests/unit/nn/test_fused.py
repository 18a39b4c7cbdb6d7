"""BatchNorm and activation as one function against torch's own layers in float64; on the CPU the kernels run in Triton's interpreter."""

from __future__ import annotations

import copy
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tests import kernels

if not kernels.RUN:
    pytest.skip(kernels.REASON, allow_module_level=True)

from libreyolo.engine import fusion
from libreyolo.engine.batchnorm import synchronise
from libreyolo.nn.conv import ConvBNAct
from libreyolo.nn.fused import available
from libreyolo.nn.fused import norm_act as norm_act_module
from libreyolo.nn.fused.norm_act import Running, norm_act
from libreyolo.nn.fused.scratch import ALONE, Ranks, Scratch

DEVICE = "cuda" if kernels.ON_GPU else "cpu"
PLAIN = {0: lambda z: z, 1: F.silu, 2: F.relu}


def maps(shape: tuple[int, int, int, int], offset: float = 0.0, seed: int = 0) -> Tensor:
    drawn = torch.randn(shape, generator=torch.Generator().manual_seed(seed)) * 2 + offset
    return drawn.to(DEVICE).contiguous(memory_format=torch.channels_last)


def affine(channels: int) -> tuple[Tensor, Tensor]:
    draw = torch.Generator().manual_seed(9)
    return torch.rand(channels, generator=draw).to(DEVICE) + 0.5, torch.randn(channels, generator=draw).to(DEVICE)


def fused(x: Tensor, gradient: Tensor, act: int, ranks: Ranks = ALONE, scratch: Scratch | None = None) -> dict[str, Tensor]:
    x = x.detach().requires_grad_()
    weight, bias = (t.requires_grad_() for t in affine(x.shape[1]))
    running = Running(torch.zeros(x.shape[1], device=DEVICE), torch.ones(x.shape[1], device=DEVICE), torch.tensor(4, device=DEVICE), 0.1)
    y = norm_act(x, weight, bias, running, eps=1e-3, act=act, ranks=ranks, scratch=scratch)
    y.backward(gradient)
    assert int(running.tracked) == 5
    return {"y": y.detach(), "x": x.grad, "weight": weight.grad, "bias": bias.grad, "mean": running.mean, "var": running.var}


def plain(x: Tensor, gradient: Tensor, act: int) -> dict[str, Tensor]:
    x = x.detach().double().requires_grad_()
    weight, bias = (t.double().requires_grad_() for t in affine(x.shape[1]))
    mean, var = torch.zeros(x.shape[1], device=DEVICE).double(), torch.ones(x.shape[1], device=DEVICE).double()
    y = PLAIN[act](F.batch_norm(x, mean, var, weight, bias, True, 0.1, 1e-3))
    y.backward(gradient.double())
    return {"y": y.detach(), "x": x.grad, "weight": weight.grad, "bias": bias.grad, "mean": mean, "var": var}


def worst(found: dict[str, Tensor], expected: dict[str, Tensor]) -> float:
    return max(float((found[k].double() - expected[k]).abs().max() / expected[k].abs().max()) for k in expected)


@pytest.mark.parametrize("act", [0, 1, 2])
@pytest.mark.parametrize("shape", [(2, 3, 4, 5), (3, 70, 9, 7), (1, 64, 8, 8), (1, 5, 1, 1)])
def test_outputs_gradients_and_running_statistics_are_those_of_two_layers(shape: tuple[int, int, int, int], act: int) -> None:
    x, gradient = maps(shape, offset=1.0), maps(shape, seed=1)  # means of 0 have no digits to compare
    if shape == (1, 5, 1, 1):  # a single row: its normalised value is 0, and torch refuses it
        found = fused(x, gradient, act)
        assert torch.allclose(found["y"].reshape(-1), PLAIN[act](affine(5)[1]))
        assert all(bool(torch.isfinite(value).all()) for value in found.values())
        return
    assert worst(fused(x, gradient, act), plain(x, gradient, act)) < 3e-6


def test_a_gradient_that_is_a_part_of_a_joined_map_s_is_taken_as_it_lies_and_one_that_lies_otherwise_is_copied() -> None:
    x, joined = maps((2, 6, 5, 4), offset=1.0), maps((2, 20, 5, 4), seed=1)
    part = joined[:, 8:14]
    assert norm_act_module.in_rows(part)[0] is part and norm_act_module.in_rows(part)[1] == 20
    expected = plain(x, part, 1)
    others = (part.contiguous(), part.contiguous(memory_format=torch.channels_last), maps((2, 6, 4, 5)).mT.copy_(part))
    assert [norm_act_module.in_rows(other)[0] is other for other in others] == [False, True, False]
    for gradient in (part, *others):
        assert worst(fused(x, gradient, 1), expected) < 3e-6
    repeated = maps((1, 6, 5, 4), seed=2).expand(2, 6, 5, 4)
    assert worst(fused(x, repeated, 1), plain(x, repeated, 1)) < 3e-6


@pytest.mark.slow
def test_every_kernel_compiles_for_a_gpu(tmp_path: Path) -> None:
    # The interpreter runs what Triton's compiler refuses: a name of another module in a kernel's signature, say.
    environment = {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"} | {"TRITON_CACHE_DIR": str(tmp_path)}
    ended = subprocess.run(
        [sys.executable, "-m", "tests.unit.nn.compile_kernels"], env=environment, capture_output=True, text=True, timeout=300, check=False
    )
    assert ended.returncode == 0, ended.stderr[-2000:]
    assert ended.stdout == "compiled 10\nlaunched 4\n"


def test_more_shares_than_are_added_up_at_once_in_one_piece_of_memory_for_layers_of_any_size(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(norm_act_module, "TILE", 256)
    monkeypatch.setattr(norm_act_module, "GRADIENT_TILE", 128)
    monkeypatch.setattr(norm_act_module, "PARTS_TILE", 128)
    monkeypatch.setattr(norm_act_module, "_multiprocessors", lambda device: 10)
    plan_for = norm_act_module.plan_for.__wrapped__
    monkeypatch.setattr(norm_act_module, "plan_for", plan_for)
    scratch, shares = Scratch(), []
    for shape in ((2, 70, 6, 7), (2, 24, 6, 6), (1, 3, 4, 5)):
        plan = plan_for(shape[0] * shape[2] * shape[3], shape[1], 1, torch.device(DEVICE))
        shares.append((plan.parts, plan.gradient_parts, plan.sums[0]["BP"]))
        x, gradient = maps(shape, offset=1.0), maps(shape, seed=1)
        assert worst(fused(x, gradient, 1, scratch=scratch), plain(x, gradient, 1)) < 3e-6
    assert shares[0] == (6, 6, 4) and shares[-1][0] == 2
    (_, tickets), *others = scratch._kept.values()
    assert not others and not tickets.any()


def test_a_gradient_of_the_gradient_is_refused() -> None:
    x = maps((2, 4, 3, 3)).requires_grad_()
    running = Running(torch.zeros(4, device=DEVICE), torch.ones(4, device=DEVICE), torch.tensor(0, device=DEVICE), 0.1)
    y = norm_act(x, *affine(4), running, eps=1e-3, act=1)
    with pytest.raises(RuntimeError, match="differentiable once"):
        torch.autograd.grad(y.sum(), x, create_graph=True)


def test_a_channel_with_a_large_mean_keeps_its_digits() -> None:
    x, gradient = maps((2, 6, 8, 8), offset=300.0), maps((2, 6, 8, 8), seed=1)
    assert worst(fused(x, gradient, 1), plain(x, gradient, 1)) < 2e-5


def test_bfloat16_maps_are_summed_in_float32() -> None:
    x, gradient = maps((4, 8, 16, 16)).bfloat16(), maps((4, 8, 16, 16), seed=1).bfloat16()
    found, expected = fused(x, gradient, 1), plain(x, gradient, 1)
    assert found["y"].dtype == torch.bfloat16
    assert worst({k: found[k] for k in ("mean", "var", "bias", "weight")}, {k: expected[k] for k in ("mean", "var", "bias", "weight")}) < 1e-5
    assert worst(found, expected) < 1e-2


@pytest.mark.slow
@pytest.mark.gpu
@pytest.mark.skipif(not kernels.ON_GPU, reason="on the CPU programs run one after the other")
def test_programs_that_run_at_once_give_the_same_numbers_in_every_run() -> None:
    scratch = Scratch()
    for shape in ((32, 64, 80, 80), (32, 200, 40, 40), (64, 16, 160, 160), (8, 512, 20, 20)):
        x, gradient = maps(shape, offset=1.0), maps(shape, seed=1)
        first = fused(x, gradient, 1, scratch=scratch)
        assert worst(first, plain(x, gradient, 1)) < 1e-4
        for _ in range(30):
            again = fused(x, gradient, 1, scratch=scratch)
            assert all(torch.equal(again[name], value) for name, value in first.items())


@pytest.mark.parametrize("sizes", [(2, 3), (1, 3, 1)])
def test_statistics_over_ranks_are_those_of_the_whole_batch(sizes: tuple[int, ...]) -> None:
    x, gradient = maps((5, 6, 4, 4), offset=30.0), maps((5, 6, 4, 4), seed=1)
    parts = list(zip(x.split(sizes), gradient.split(sizes), strict=True))  # ranks of different size
    rows: dict[int, Tensor] = {}
    sums: dict[int, Tensor] = {}
    results: list[dict[str, Tensor]] = []
    for _ in range(3):  # the first round finds the rows of the table, the second the sums of the backward
        results = []
        for rank, (own, pull) in enumerate(parts):

            def gather(table: Tensor, rank: int = rank) -> None:
                rows[rank] = table[rank].clone()
                for other in range(len(table)):
                    table[other] = rows.get(other, rows[rank])

            def add(tensor: Tensor, rank: int = rank) -> None:
                sums[rank] = tensor.clone()
                tensor.copy_(torch.stack(list(sums.values())).sum(0))

            shared = Ranks(rank, len(sizes), gather, add)
            results.append(fused(*(t.contiguous(memory_format=torch.channels_last) for t in (own, pull)), 1, shared))
    whole = plain(x, gradient, 1)
    both = {k: torch.cat([r[k] for r in results]) for k in ("y", "x")} | {k: sum(r[k] for r in results) for k in ("weight", "bias")}
    for result in results:
        assert worst(both | {k: result[k] for k in ("mean", "var")}, whole) < 2e-5


def test_a_layer_keeps_its_names_and_trains_and_predicts_as_before(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(available, "obstacle", lambda device: "")
    torch.manual_seed(0)
    net, twin = (nn.Sequential(ConvBNAct(3, 8, 3), ConvBNAct(8, 4, 1, act=False)).to(DEVICE).to(memory_format=torch.channels_last) for _ in range(2))
    twin.load_state_dict(net.state_dict())
    names = list(net.state_dict())
    fusion.fuse(net, over_ranks=False)
    assert list(net.state_dict()) == names
    assert [type(layer.bn).__name__ for layer in net] == ["FusedNormAct", "FusedNormAct"]  # the second has no activation
    for step in range(2):
        x = maps((2, 3, 8, 8), seed=step)
        for each in (net, twin):
            each.zero_grad()
            each(x).sin().sum().backward()
    for (name, a), b in zip(net.named_parameters(), twin.parameters(), strict=True):
        assert float((a.grad - b.grad).abs().max() / b.grad.abs().max()) < 1e-4, name  # float32 over two BatchNorms
    for name, value in net.state_dict().items():
        assert torch.allclose(value.float(), twin.state_dict()[name].float(), rtol=1e-5, atol=1e-6), name
    assert torch.allclose(net.eval()(x), twin.eval()(x), rtol=1e-5, atol=1e-6)
    assert type(synchronise(fusion.fuse(twin, over_ranks=True))[0].bn).__name__ == "FusedNormAct"


def test_a_layer_in_a_row_copies_as_itself_and_its_parts_hooks_are_called(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(available, "obstacle", lambda device: "")
    net = nn.Sequential(ConvBNAct(3, 4, 3)).to(DEVICE).to(memory_format=torch.channels_last)
    fusion.fuse(net, over_ranks=False)
    x = maps((2, 3, 6, 6))
    before = net(x).detach()
    twin = copy.deepcopy(net)
    with torch.no_grad():
        twin[0].conv.weight.zero_()
        twin[0].bn.bias.fill_(2.0)
    assert torch.allclose(twin(x), F.silu(torch.tensor(2.0, device=DEVICE)))  # nothing is left of the picture, and the original is what it was
    assert torch.allclose(net(x), before)
    called: list[str] = []
    net[0].conv.register_forward_hook(lambda *_: called.append("convolution"))
    net[0].bn.register_forward_pre_hook(lambda *_: called.append("norm"))
    assert torch.allclose(net(x), before)
    assert called == ["convolution", "norm"]


def test_statistics_that_are_recomputed_are_a_mean_over_all_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(available, "obstacle", lambda device: "")
    layer = fusion.fuse(nn.Sequential(ConvBNAct(3, 4)), over_ranks=False)[0].to(DEVICE)
    twin = nn.BatchNorm2d(4, momentum=None).to(DEVICE)
    layer.bn.momentum = None  # as `precise_bn` does it
    for step in range(3):
        x = maps((2, 4, 5, 5), offset=float(step), seed=step)
        assert torch.allclose(layer.bn(x), F.silu(twin(x)), atol=1e-3)
    assert torch.allclose(layer.bn.running_mean, twin.running_mean) and torch.allclose(layer.bn.running_var, twin.running_var)
