"""What is done on the device that a tensor is on, not on the one that happens to be current; and what a device is asked for."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from libreyolo import build
from libreyolo.engine import host_copy
from libreyolo.engine.current_device import current
from libreyolo.recipe import Recipe


class FakeEvent:
    """An event; its `stream` is the one it was recorded on."""

    def record(self, stream: Any = "the current stream of the current device") -> None:
        self.stream = stream

    def synchronize(self) -> None: ...


def test_a_copy_to_the_host_is_waited_for_on_the_stream_of_its_own_device(monkeypatch: pytest.MonkeyPatch) -> None:
    values = SimpleNamespace(device=torch.device("cuda:1"), shape=(2,), dtype=torch.float32)
    copies: list[tuple[Any, bool]] = []
    pinned = SimpleNamespace(copy_=lambda source, non_blocking: copies.append((source, non_blocking)), tolist=lambda: [1.0, 2.0])
    cuda = SimpleNamespace(Event=FakeEvent, current_stream=lambda device: f"the stream of {device}")
    monkeypatch.setattr(host_copy, "torch", SimpleNamespace(cuda=cuda, empty=lambda shape, dtype, pin_memory: pinned))
    copy = host_copy.HostCopy(values)  # type: ignore[arg-type]
    assert copies == [(values, True)]
    assert copy._copied is not None
    assert copy._copied.stream == "the stream of cuda:1"  # type: ignore[attr-defined]
    assert copy.wait() == [1.0, 2.0]


def test_only_a_cuda_device_is_made_current(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "device", lambda device: f"current: {device}")
    assert str(current(torch.device("cuda:1"))) == "current: cuda:1"
    with current(torch.device("cpu")):
        pass


@pytest.mark.parametrize("capable", [True, False])
def test_bfloat16_is_taken_where_the_device_has_it_and_never_emulated(capable: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "device", lambda device: current(torch.device("cpu")))
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda including_emulation=True: including_emulation or capable)
    wanted = torch.bfloat16 if capable else torch.float16
    assert build.amp_dtype(Recipe(), torch.device("cuda:0")) == wanted
    assert build.amp_dtype(Recipe(), torch.device("cpu")) is None
