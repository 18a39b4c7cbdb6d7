"""The process group: its backend, and that it is left in every case."""

from __future__ import annotations

import socket
from datetime import timedelta

import pytest
from torch import distributed as dist

from launch.environment import RankEnvironment
from launch.errors import LaunchError
from launch.group import TIMEOUT, choose_backend, process_group


@pytest.fixture
def alone() -> RankEnvironment:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    return RankEnvironment(0, 0, 1, 1, "127.0.0.1", port, "slurm")


@pytest.mark.parametrize(("device", "has_nccl", "backend"), [("cuda:1", True, "nccl"), ("cuda:1", False, "gloo"), ("cpu", True, "gloo")])
def test_nccl_where_cuda_and_nccl_are_else_gloo(monkeypatch, device, has_nccl, backend):
    monkeypatch.setattr(dist, "is_nccl_available", lambda: has_nccl)
    assert choose_backend(device) == backend


def test_an_override_is_honoured_where_it_fits(monkeypatch):
    monkeypatch.setattr(dist, "is_nccl_available", lambda: True)
    assert choose_backend("cuda:0", "gloo") == "gloo"
    with pytest.raises(LaunchError, match="device=cpu is not a CUDA device"):
        choose_backend("cpu", "nccl")
    with pytest.raises(LaunchError, match="'mpi' is unknown"):
        choose_backend("cpu", "mpi")
    monkeypatch.setattr(dist, "is_nccl_available", lambda: False)
    with pytest.raises(LaunchError, match="no NCCL"):
        choose_backend("cuda:0", "nccl")


def test_the_time_out_is_three_hours_and_a_setting(monkeypatch, alone):
    given = []
    real = dist.init_process_group
    monkeypatch.setattr(dist, "init_process_group", lambda **arguments: given.append(arguments["timeout"]) or real(**arguments))
    with process_group(alone, device="cpu"):
        pass
    with process_group(alone, device="cpu", timeout=timedelta(seconds=9)):
        pass
    assert given == [TIMEOUT, timedelta(seconds=9)] == [timedelta(hours=3), timedelta(seconds=9)]


def test_one_process_has_no_group():
    with process_group(None, device="cpu") as backend:
        assert backend is None and not dist.is_initialized()


def test_the_group_is_named_in_the_log_and_left_at_the_end(alone, caplog):
    with caplog.at_level("INFO"), process_group(alone, device="cpu") as backend:
        assert backend == "gloo" and dist.is_initialized()
    assert not dist.is_initialized()
    assert "backend gloo" in caplog.text


def test_the_group_is_left_after_an_error_which_stays_the_error(alone):
    with pytest.raises(KeyError, match="mine"), process_group(alone, device="cpu"):
        raise KeyError("mine")
    assert not dist.is_initialized()
    with pytest.raises(KeyError, match="mine"), process_group(alone, device="cpu"):
        dist.destroy_process_group()
        raise KeyError("mine")


def test_an_error_while_leaving_hides_nothing(alone, monkeypatch):
    real = dist.destroy_process_group

    def broken() -> None:
        real()
        raise RuntimeError("another rank is gone")

    monkeypatch.setattr(dist, "destroy_process_group", broken)
    with pytest.raises(KeyError, match="mine"), process_group(alone, device="cpu"):
        raise KeyError("mine")


def test_a_group_inside_a_group_is_refused(alone):
    with process_group(alone, device="cpu"), pytest.raises(LaunchError, match="exists already"), process_group(alone, device="cpu"):
        pass
    assert not dist.is_initialized()
