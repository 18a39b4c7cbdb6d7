"""SyncBatchNorm beside plain BatchNorm on the concatenated batch."""

from __future__ import annotations

import copy
import os
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import launch
from libreyolo.engine import collectives, fusion
from libreyolo.engine.batchnorm import SyncBatchNorm, synchronise
from libreyolo.engine.fusion import ACTIVATIONS, FusedNormAct
from libreyolo.engine.kernel_norm import KernelBatchNorm
from libreyolo.nn.conv import RepConv
from libreyolo.nn.fused import available
from libreyolo.nn.fused.exchange import Exchange
from libreyolo.nn.fused.scratch import Scratch


@dataclass(frozen=True)
class Norm:
    """One comparison. sizes: pictures of each rank."""

    sizes: tuple[int, ...] = (3, 5)
    momentum: float | None = 0.1
    affine: bool = True
    track: bool = True
    training: bool = True
    flat: bool = False  # [B, C] instead of [B, C, H, W]
    offset: float = 2.0  # how far the mean is from 0
    dtype: torch.dtype = torch.float64
    fused: bool = False  # with its activation (none), on maps that the kernels don't take
    kernels: bool = False  # as on a GPU, in Triton's interpreter
    meet: bool = False  # kernels that tell each other their sums, without collectives


def gaps(case: Norm) -> dict[str, float]:
    """Return the largest absolute difference of forward, input gradient, parameter gradients and buffers, over ranks and two steps."""
    own_norm = _norm(case)
    if case.fused or case.kernels:
        assert isinstance(own_norm, nn.BatchNorm2d)
        own_norm = FusedNormAct(own_norm, nn.Identity(), over_ranks=True, scratch=Scratch(_exchange() if case.meet else None))
    whole_norm, shared_norm = _norm(case), synchronise(nn.Sequential(own_norm))[0]
    assert isinstance(shared_norm, SyncBatchNorm)
    assert list(shared_norm.state_dict()) == list(whole_norm.state_dict())
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(available, "runs_on", lambda device: case.kernels)
        if case.meet:
            _refuse_collectives(patched)
        found = _gaps(case, whole_norm, shared_norm)
    return _largest_over_ranks(found)


def pair_gaps() -> dict[str, float]:
    """Return what `gaps` returns of two norms whose sum is activated, by kernels that meet once for both, beside plain layers on the whole batch."""
    torch.manual_seed(1)
    whole_net = RepConv(3, 6).to(memory_format=torch.channels_last)
    shared_net = copy.deepcopy(whole_net)
    sizes, found = (3, 2), dict[str, float]()
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(available, "runs_on", lambda device: True)
        patched.setattr(available, "obstacle", lambda device: "")
        _refuse_collectives(patched)
        fusion.fuse(shared_net, over_ranks=True, scratch=Scratch(_exchange()))
        for step in range(2):
            x, pull = (torch.randn(5, c, 6, 6, generator=torch.Generator().manual_seed(step)) + 2.0 for c in (3, 6))
            own = x.split(sizes)[collectives.rank()].contiguous(memory_format=torch.channels_last).requires_grad_()
            whole = x.contiguous(memory_format=torch.channels_last).requires_grad_()
            expected, result = whole_net(whole), shared_net(own)
            (expected * pull).sum().backward()
            (result * pull.split(sizes)[collectives.rank()]).sum().backward()
            assert whole.grad is not None and own.grad is not None
            pairs = {"forward": (result, expected.split(sizes)[collectives.rank()])}
            pairs["input gradient"] = (own.grad, whole.grad.split(sizes)[collectives.rank()])
            for (name, mine), theirs in zip(shared_net.named_parameters(), whole_net.parameters(), strict=True):
                assert mine.grad is not None and theirs.grad is not None
                pairs[f"{name} gradient"] = (collectives.sum_(mine.grad.clone()), theirs.grad)
            for (name, mine), theirs in zip(shared_net.named_buffers(), whole_net.buffers(), strict=True):
                pairs[name] = (mine, theirs)
            for name, (mine, theirs) in pairs.items():
                scale = max(float(theirs.detach().abs().max()), 1e-6)
                found[name] = max(found.get(name, 0.0), float((mine - theirs).detach().abs().max()) / scale)
            shared_net.zero_grad(), whole_net.zero_grad()
    return _largest_over_ranks(found)


def _exchange() -> Exchange:
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(Exchange, "register", lambda self, device: True)
        found = collectives.exchange(torch.device("cuda", 0))
    assert found is not None and not found.path.exists()
    return found


def _refuse_collectives(patched: pytest.MonkeyPatch) -> None:
    """Refuse every collective of a norm."""
    alone = collectives.ranks()

    def refused(tensor: Tensor) -> None:
        raise AssertionError("a collective")

    patched.setattr(collectives, "ranks", lambda: alone._replace(gather=refused, add=refused))


def _gaps(case: Norm, whole_norm: nn.Module, shared_norm: nn.Module) -> dict[str, float]:
    found: dict[str, float] = {}
    rank, world_size = collectives.rank(), collectives.world_size()
    for step in range(2):
        x, pull = _inputs(case, step)
        sizes = list(case.sizes[:world_size]) if world_size > 1 else [len(x)]
        own = x.split(sizes)[rank].clone().requires_grad_()
        whole = x.clone().requires_grad_()
        (whole_norm(whole) * pull).sum().backward()
        result = shared_norm(own)
        (result * pull.split(sizes)[rank]).sum().backward()
        assert whole.grad is not None and own.grad is not None
        with torch.no_grad():
            expected = _norm_of(whole_norm, x, case)
            pairs: dict[str, tuple[Tensor, Tensor]] = {
                "forward": (result, expected.split(sizes)[rank]),
                "input gradient": (own.grad, whole.grad.split(sizes)[rank]),
            }
            for (name, mine), (_, theirs) in zip(shared_norm.named_parameters(), whole_norm.named_parameters(), strict=True):
                pairs[f"{name} gradient"] = (collectives.sum_(mine.grad.clone()), theirs.grad)  # what DDP adds up
            for (name, mine), (_, theirs) in zip(shared_norm.named_buffers(), whole_norm.named_buffers(), strict=True):
                pairs[name] = (mine, theirs)
        for name, (mine, theirs) in pairs.items():
            found[name] = max(found.get(name, 0.0), float((mine - theirs).detach().abs().max()))
        shared_norm.zero_grad(), whole_norm.zero_grad()
    return found


class TwoNorms(nn.Module):
    """Two norms of one map, their sum, SiLU; of the kernels that meet once for both where the norms are `FusedNormAct`."""

    def __init__(self, first: nn.Module, second: nn.Module) -> None:
        super().__init__()
        self.first, self.second = first, second

    def forward(self, x: Tensor) -> Tensor:
        z = x.square()
        if isinstance(self.first, FusedNormAct) and isinstance(self.second, FusedNormAct):
            return self.first.with_another(x, self.second, z, ACTIVATIONS[nn.SiLU])
        return nn.functional.silu(self.first(x) + self.second(z))


def on_two_gpus() -> float:
    """Return the largest relative difference between synchronised norms on two GPUs and plain ones on the whole batch.

    Torch's function, kernels, torch's kernels with little between them, fused with SiLU, and two at once; where kernels of both meet, and where
    collectives bring their numbers. Raises where torch sees the host wait for the device.
    """
    rank = int(os.environ["LOCAL_RANK"])
    device = torch.device("cuda", rank)
    found = 0.0
    with launch.process_group(launch.detect(os.environ), device=str(device)):
        exchange = collectives.exchange(device)
        assert exchange is not None
        for way in ("torch's", "kernels", "torch's kernels", "fused", "kernels that meet", "fused that meet", "pair that meets"):
            scratch = Scratch(exchange if "meet" in way else None)
            plain = nn.Sequential(nn.BatchNorm2d(80), nn.SiLU()).to(device)
            own: Any = nn.BatchNorm2d(80).to(device)
            if "pair" in way:
                plain = nn.Sequential(TwoNorms(nn.BatchNorm2d(80), nn.BatchNorm2d(80))).to(device)
                fused = [FusedNormAct(nn.BatchNorm2d(80).to(device), nn.Identity(), over_ranks=True, scratch=scratch) for _ in range(2)]
                shared = nn.Sequential(TwoNorms(*fused))
            elif "fused" in way:
                shared = nn.Sequential(FusedNormAct(own, nn.SiLU(), over_ranks=True, scratch=scratch))
            else:
                norm = own if way == "torch's" else KernelBatchNorm(80, scratch=scratch).to(device)
                shared = synchronise(nn.Sequential(norm, nn.SiLU()))
            x = torch.randn(6, 80, 64, 64, generator=torch.Generator().manual_seed(0)).to(device, memory_format=torch.channels_last) * 3 + 2
            part = slice(0, 2) if rank == 0 else slice(2, 6)
            for mode in ("default", "error"):  # kernels and the communicator are made the first time
                whole, mine = x.clone().requires_grad_(), x[part].clone(memory_format=torch.channels_last).requires_grad_()
                expected = plain(whole)
                expected.sin().sum().backward()
                torch.cuda.set_sync_debug_mode(mode)
                with pytest.MonkeyPatch.context() as patched:
                    if way == "torch's kernels":
                        patched.setattr(available, "runs_on", lambda device: False)
                    result = shared(mine)
                result.sin().sum().backward()
                torch.cuda.set_sync_debug_mode("default")
            assert whole.grad is not None and mine.grad is not None
            pairs = [(result, expected[part]), (mine.grad, whole.grad[part])]
            norm, twin = (net[0].second if "pair" in way else net[0] for net in (shared, plain))
            pairs += [(norm.running_mean, twin.running_mean), (norm.running_var, twin.running_var)]
            found = max(found, *(float((a - b).detach().abs().max() / b.detach().abs().max()) for a, b in pairs))
            if "meet" in way:
                _repeat(shared, x[part], mine.grad)
    return found


def _repeat(norm: nn.Module, part: Tensor, expected: Tensor) -> None:
    """Let the ranks meet hundreds of times, while one and then the other is late; the gradient is the same each time."""
    for time in range(200):
        if time // 20 % 2 == collectives.rank():
            torch.cuda._sleep(100_000)
        again = part.clone(memory_format=torch.channels_last).requires_grad_()
        norm(again).sin().sum().backward()
        assert again.grad is not None and torch.equal(again.grad, expected), time


def _norm(case: Norm) -> nn.Module:
    kind = nn.BatchNorm1d if case.flat else nn.BatchNorm2d
    norm = kind(4, momentum=case.momentum, affine=case.affine, track_running_stats=case.track).to(case.dtype)
    if case.affine:
        with torch.no_grad():
            norm.weight.copy_(torch.tensor([0.5, 1.0, 2.0, -1.0]))
            norm.bias.copy_(torch.tensor([0.0, 1.0, -1.0, 0.3]))
    return norm.train(case.training)


def _norm_of(norm: nn.Module, x: Tensor, case: Norm) -> Tensor:
    """Return the forward of plain BatchNorm without another update of its statistics."""
    use_running = not case.training and case.track
    mean, var = (norm.running_mean, norm.running_var) if use_running else (None, None)
    return nn.functional.batch_norm(x, mean, var, norm.weight, norm.bias, training=not use_running, eps=norm.eps)


def _inputs(case: Norm, step: int) -> tuple[Tensor, Tensor]:
    draw = torch.Generator().manual_seed(step)
    shape = (sum(case.sizes), 4) if case.flat else (sum(case.sizes), 4, 3, 2)
    channel = torch.arange(4, dtype=torch.float64).reshape(1, 4, *[1] * (len(shape) - 2))
    x = torch.randn(shape, generator=draw, dtype=torch.float64) * (1 + channel) + case.offset * (1 + channel)
    pull = torch.randn(shape, generator=draw, dtype=torch.float64)
    layout = torch.channels_last if case.kernels else torch.contiguous_format
    return x.to(case.dtype, memory_format=layout), pull.to(case.dtype, memory_format=layout)


def _largest_over_ranks(found: dict[str, float]) -> dict[str, float]:
    table = collectives.gather_objects(found)
    return {name: max(f[name] for f in table) for name in found} if table else {}


def averaged_buffers() -> list[tuple[dict[str, Tensor], dict[str, Tensor]]] | None:
    """Return every rank's buffers before and after averaging, for a net that saw dark pictures on rank 0 and bright ones on rank 1."""
    net = nn.Sequential(nn.Conv2d(1, 2, 1), nn.BatchNorm2d(2))
    with torch.no_grad():
        net[0].weight.fill_(1.0), net[0].bias.fill_(0.0)
    net(torch.full((4, 1, 3, 3), float(10 * collectives.rank())) + torch.linspace(0, 1, 9).reshape(1, 1, 3, 3))
    before: Any = {n: b.clone() for n, b in net.named_buffers()}
    collectives.average_buffers([net])
    after = {n: b.clone() for n, b in net.named_buffers()}
    return collectives.gather_objects((before, after))
