"""Where Triton's kernels would not run, plain layers do, and the log says why."""

from __future__ import annotations

import importlib.util
import logging
import shutil
from collections.abc import Callable

import pytest
import torch
from torch import nn

from libreyolo.engine.fusion import fuse
from libreyolo.nn.conv import ConvBNAct
from libreyolo.nn.fused import available


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> torch.device:
    """A GPU on which they run, on a machine that has what they need."""
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (9, 0))
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: object())
    monkeypatch.setattr(shutil, "which", lambda name: "/usr/bin/gcc" if name == "gcc" else None)
    monkeypatch.setattr(available.Path, "exists", lambda self: True)
    monkeypatch.delenv("CC", raising=False)
    return torch.device("cuda", 0)


def test_on_a_gpu_with_triton_a_compiler_and_python_s_headers_they_run(gpu: torch.device) -> None:
    assert available.obstacle.__wrapped__(gpu) == ""
    assert available.obstacle.__wrapped__(torch.device("cpu")) == "the kernels for both are for GPUs"


@pytest.mark.parametrize(
    ("lack", "words"),
    [
        (lambda m: m.setattr(importlib.util, "find_spec", lambda name: None), "not installed"),
        (lambda m: m.setattr(torch.cuda, "get_device_capability", lambda device: (7, 5)), "8.0"),
        (lambda m: m.setattr(shutil, "which", lambda name: None), "C compiler"),
        (lambda m: m.setattr(available.Path, "exists", lambda self: False), "Python.h"),
    ],
)
def test_whatever_is_missing_is_named(
    lack: Callable[[pytest.MonkeyPatch], None], words: str, gpu: torch.device, monkeypatch: pytest.MonkeyPatch
) -> None:
    lack(monkeypatch)
    assert words in available.obstacle.__wrapped__(gpu)


def test_layers_then_stay_as_they_are_and_the_log_says_why(caplog: pytest.LogCaptureFixture) -> None:
    net = nn.Sequential(ConvBNAct(3, 4))
    with caplog.at_level(logging.INFO, logger="libreyolo.engine.fusion"):
        fuse(net, over_ranks=False)
    assert type(net[0].bn) is nn.BatchNorm2d and type(net[0].act) is nn.SiLU
    assert "BatchNorm and the activation behind it run apart: the kernels for both are for GPUs." in caplog.text
