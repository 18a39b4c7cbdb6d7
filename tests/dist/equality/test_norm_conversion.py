"""When BatchNorm is synchronised, what stays of it, and when its absence is worth a warning."""

from __future__ import annotations

import inspect
import logging

import pytest
import torch
from torch import nn
from torch.nn.modules import _functions

import launch
from libreyolo.engine.batchnorm import CudaSyncBatchNorm, SyncBatchNorm, synchronise, warn_small_batch
from tests.dist.equality import norms


class Shared(nn.Module):
    """One BatchNorm in two places, beside a norm of another kind."""

    def __init__(self) -> None:
        super().__init__()
        self.first = self.second = nn.BatchNorm2d(3, eps=0.01, momentum=None)
        self.other = nn.GroupNorm(1, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.second(self.other(self.first(x)))


def test_conversion_keeps_names_tensors_mode_and_sharing() -> None:
    net = Shared()
    net.first.eval()
    names, weight = list(net.state_dict()), net.first.weight
    converted = synchronise(net)
    assert isinstance(converted.first, SyncBatchNorm)
    assert converted.second is converted.first
    assert converted.first.weight is weight
    assert list(converted.state_dict()) == names
    assert (converted.first.training, converted.first.eps, converted.first.momentum) == (False, 0.01, None)
    assert type(converted.other) is nn.GroupNorm


def test_on_one_rank_the_converted_norm_is_plain_batchnorm() -> None:
    plain, converted = nn.BatchNorm2d(3).double(), synchronise(nn.Sequential(nn.BatchNorm2d(3).double()))[0]
    x = torch.randn(4, 3, 2, 2, dtype=torch.float64)
    assert torch.equal(plain(x), converted(x))
    assert torch.equal(plain.running_var, converted.running_var)


@pytest.mark.parametrize(
    ("net", "per_rank", "world_size", "sync_bn", "warns"),
    [
        (nn.BatchNorm2d(1), 15, 2, False, True),
        (nn.BatchNorm2d(1), 16, 2, False, False),
        (nn.BatchNorm2d(1), 2, 1, False, False),
        (nn.BatchNorm2d(1), 2, 2, True, False),
        (nn.LayerNorm(1), 2, 2, False, False),
    ],
)
def test_small_shares_without_synchronisation_are_warned_of(
    net: nn.Module, per_rank: int, world_size: int, sync_bn: bool, warns: bool, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING, logger="libreyolo.engine.batchnorm"):
        warn_small_batch(net, per_rank, world_size, sync_bn)
    assert ("sync_bn=true" in caplog.text) == warns


def test_on_cuda_torch_s_norm_is_not_let_wait_for_the_device(monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[bool] = []

    def forward(self: nn.SyncBatchNorm, input: torch.Tensor) -> torch.Tensor:
        told.append(torch.cuda.is_current_stream_capturing())
        if len(told) == 2:
            raise RuntimeError("a collective that failed")
        return input

    # Where it waits: it looks for ranks without pictures, unless a graph is being captured.
    source = inspect.getsource(_functions.SyncBatchNorm.forward)
    assert "if not (torch.cuda.is_available() and torch.cuda.is_current_stream_capturing()):" in source
    assert source.count("[mask]") == 3
    before = torch.cuda.is_current_stream_capturing
    monkeypatch.setattr(nn.SyncBatchNorm, "forward", forward)
    norm, x = CudaSyncBatchNorm(3), torch.rand(2, 3, 4, 4)
    assert norm(x) is x
    with pytest.raises(RuntimeError, match="a collective"):
        norm(x)
    assert told == [True, True]
    assert torch.cuda.is_current_stream_capturing is before


@pytest.mark.slow
@pytest.mark.gpu
@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs")
def test_on_two_gpus_no_norm_waits_and_statistics_are_those_of_the_whole_batch() -> None:
    assert launch.spawn_ddp_train(norms.on_two_gpus, (), num_processes=2) < 1e-4
