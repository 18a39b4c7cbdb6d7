"""What is done on the device that a tensor is on, not on the one that happens to be current; and what a device is asked for."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from libreyolo import build
from libreyolo.engine import host_copy
from libreyolo.engine.current_device import current
from libreyolo.engine.optimizer import build_optimizer, parameter_groups
from libreyolo.engine.step import TrainStep
from libreyolo.recipe import Recipe
from tests.unit.engine.toy import ToyTask, toy_batches, toy_net


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


@pytest.mark.gpu
@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs a second GPU")
def test_a_copy_from_a_device_that_is_not_current_is_the_value_and_not_what_was_there_before() -> None:
    x = torch.rand(4096, 4096, device="cuda:1")
    for _ in range(50):
        x = (x @ x).clamp(0, 1)
        assert host_copy.HostCopy(x.sum().reshape(1) * 0 + 7.0).wait() == [7.0]


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA")
@pytest.mark.parametrize("name", ["sgd", "adamw"])
def test_a_gpu_takes_and_refuses_the_steps_that_the_cpu_takes_and_refuses(name: str) -> None:
    found = []
    for device in (torch.device("cpu"), torch.device("cuda:0")):
        net, task = toy_net().to(device), ToyTask()
        # Its gradient in front of a BatchNorm is 0; what rounding leaves of it differs between devices, and AdamW would make full steps of that.
        net[0].bias.requires_grad_(False)
        optimizer = build_optimizer(parameter_groups(net, 0.01), name=name, lr=0.05, momentum=0.9, device=device)
        step = TrainStep(net, task, optimizer, device=device, amp_dtype=None, clip_max_norm=1.0)
        verdicts = []
        for number, (x, y) in enumerate(toy_batches(5)):
            batch = (x * float("nan") if number in (0, 3) else x).to(device), y.to(device)
            step.backward([batch], [4])
            verdicts.append(step.move())
        assert [verdict.wait()[0] for verdict in verdicts] == [1.0, 0.0, 0.0, 1.0, 0.0]
        found.append({key: value.cpu() for key, value in net.state_dict().items()})
    for key, value in found[0].items():
        assert torch.allclose(value.double(), found[1][key].double(), rtol=1e-4, atol=1e-5), key
