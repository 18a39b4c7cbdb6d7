"""profile=true: a table of a step's phases and a trace in the run directory."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn
from torch.autograd.profiler import record_function

from libreyolo import LibreYOLO
from libreyolo.engine.compilation import compiled
from libreyolo.engine.fusion import fuse
from libreyolo.engine.profiler import AUTOGRAD, TABLE, MarkedNetwork, StepProfiler, _phases, phase_table
from libreyolo.interfaces.phases import BACKWARD, FORWARD, LOSS
from libreyolo.nn.conv import ConvBNAct
from tests.run.conftest import QUICK


def test_the_table_shares_out_the_host_s_time_and_takes_nested_phases_out_of_their_parents() -> None:
    phases = {
        "step: wait for data": (2000.0, 0.0),
        "step: prepare batch": (4000.0, 3000.0),
        "copy to device": (0.0, 1000.0),
        "step: forward and loss": (20_000.0, 9000.0),
        "step: forward": (12_000.0, 8000.0),
        "step: backward": (10_000.0, 16_000.0),
        "step: optimiser": (4000.0, 2000.0),
    }
    lines = phase_table(phases, steps=2).splitlines()
    rows = {line[:20].strip(): line[20:].split() for line in lines[2:]}
    assert rows["waiting for data"] == ["1.00", "0.00", "5.0%"]
    assert rows["copy to device"] == ["0.00", "0.50", "0.0%"]
    assert rows["augmentation"] == ["2.00", "1.00", "10.0%"]
    assert rows["forward"] == ["6.00", "4.00", "30.0%"]
    assert rows["loss"] == ["4.00", "0.50", "20.0%"]
    assert rows["average of weights"] == ["0.00", "0.00", "0.0%"]
    assert rows["step"] == ["20.00", "15.00"]


class Recorded:
    """What torch's profiler tells of a window on a GPU: the operators of a backward are not below its mark, but on a thread of their own."""

    def key_averages(self) -> list[Any]:
        rows = [
            ("step: forward and loss", 900.0, 700.0),
            ("step: forward and loss", 0.0, 750.0),  # the same mark on the device's side
            ("step: backward", 800.0, 5.0),
            ("autograd::engine::evaluate_function: ConvolutionBackward0", 300.0, 600.0),
            ("autograd::engine::evaluate_function: torch::autograd::AccumulateGrad", 100.0, 50.0),
            ("aten::convolution_backward", 250.0, 600.0),  # within the first of them
            ("Memcpy HtoD (Pinned -> Device)", 0.0, 40.0),
        ]
        return [SimpleNamespace(key=key, cpu_time_total=host, device_time_total=device) for key, host, device in rows]


class RecordedCompiled:
    """The same of a compiled network: its kernels are below one function forward, and below one of autograd's backward."""

    def key_averages(self) -> list[Any]:
        rows = [
            ("step: forward and loss", 900.0, 700.0),
            ("step: forward", 700.0, 500.0),
            ("step: forward", 0.0, 520.0),  # the same mark on the device's side
            ("Torch-Compiled Region: 0/0", 650.0, 500.0),
            ("CompiledFunction", 600.0, 500.0),
            ("## Call CompiledFxGraph fay ##", 580.0, 500.0),
            ("triton_poi_fused_silu_0", 20.0, 90.0),
            ("step: backward", 800.0, 5.0),
            ("autograd::engine::evaluate_function: CompiledFunctionBackward", 700.0, 900.0),
            ("CompiledFunctionBackward", 690.0, 900.0),  # within it, as the next ones
            ("## Call CompiledFxGraph fwu ##", 680.0, 900.0),
            ("aten::convolution_backward", 250.0, 600.0),
            ("autograd::engine::evaluate_function: torch::autograd::AccumulateGrad", 10.0, 0.0),
        ]
        return [SimpleNamespace(key=key, cpu_time_total=host, device_time_total=device) for key, host, device in rows]


def test_the_device_s_time_of_a_backward_is_that_of_autograd_s_own_thread() -> None:
    found: Any = Recorded()
    assert _phases(found) == {"step: forward and loss": (900.0, 700.0), "step: backward": (800.0, 655.0), "copy to device": (0.0, 40.0)}
    compiled_found: Any = RecordedCompiled()
    phases = _phases(compiled_found)
    assert (phases["step: forward"], phases["step: backward"]) == ((700.0, 500.0), (800.0, 905.0))


class Small(nn.Module):
    """A network of its own class: torch 2.6 compiles no nn.Sequential in place."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(3, 4), nn.SiLU(), nn.Linear(4, 1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = self.layers(x)
        return found


def test_the_parts_of_a_compiled_network_are_called_as_the_table_reads_them() -> None:
    bare = Small()
    bare.compile(backend="aot_eager")
    net = MarkedNetwork(bare)
    net(torch.rand(2, 3)).sum().backward()  # compiles both
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as found:
        loss = net(torch.rand(2, 3)).sum()
        with record_function(BACKWARD):
            loss.backward()
    rows = {event.key: event for event in found.key_averages()}
    assert rows[AUTOGRAD + "CompiledFunctionBackward"].count == rows["CompiledFunction"].count == 1
    assert 0 < rows["CompiledFunction"].cpu_time_total < rows[FORWARD].cpu_time_total  # the mark is around it, not compiled away
    phases = _phases(found)
    assert phases[FORWARD][0] > 0 and phases[BACKWARD][0] > rows[AUTOGRAD + "CompiledFunctionBackward"].cpu_time_total


def test_a_marked_network_is_the_network_without_hooks_that_would_break_its_graph() -> None:
    torch.manual_seed(0)
    bare = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4))
    net, x = MarkedNetwork(bare), torch.rand(5, 3)
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as found:
        assert torch.equal(net.eval()(x), bare(x))
        net(x)
    assert {e.key: e.count for e in found.key_averages()}["step: forward"] == 2
    assert not bare.training and not bare._forward_hooks


@pytest.mark.slow
def test_a_profiled_run_leaves_its_table_and_trace_and_trains_as_any_other(tiny: Path, tmp_path: Path) -> None:
    keys = {**QUICK, "data": str(tiny), "project": str(tmp_path), "val": False}
    plain = LibreYOLO("yolo9t").train(**keys, report=False)
    found = LibreYOLO("yolo9t").train(**keys, profile=True, profile_warmup=1, profile_steps=2)
    assert found["epoch_losses"] == plain["epoch_losses"]
    run_dir = Path(found["save_dir"])
    table = (run_dir / "profile.txt").read_text()
    rows = {line[:20].strip(): line[20:].split() for line in table.splitlines()[2:]}
    assert "mean of 2 steps" in table
    for phase in ("waiting for data", "augmentation", "forward", "loss", "backward", "optimiser", "average of weights"):
        assert float(rows[phase][0]) > 0, table
    names = [event.get("name") for event in json.loads((run_dir / "trace.json").read_text())["traceEvents"]]
    assert names.count("step: backward") == 2
    assert table.splitlines()[0] in (run_dir / "train.log").read_text()
    assert "<td>waiting for data</td>" in (run_dir / "report.html").read_text()
    assert not (Path(plain["save_dir"]) / "report.html").exists()


@pytest.mark.slow
@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="times a GPU")
@pytest.mark.parametrize("more", [{}, {"cuda_graph": True}], ids=str)
def test_on_a_gpu_forward_and_backward_have_device_time_and_a_backward_has_more(tiny: Path, tmp_path: Path, more: dict[str, Any]) -> None:
    keys = {**QUICK, "data": str(tiny), "project": str(tmp_path), "val": False, "report": False, "device": 0, "epochs": 4, "imgsz": 320, **more}
    found = LibreYOLO("yolo9t").train(**keys, profile=True, profile_warmup=5, profile_steps=2)
    table = (Path(found["save_dir"]) / TABLE).read_text()
    device = device_ms(table)
    assert device["backward"] > device["forward"] > 0, table
    assert device["augmentation"] > 0 and device["optimiser"] > 0, table


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="times a GPU")
@pytest.mark.parametrize("how", ["plain", "fused", "compiled"])
def test_on_a_gpu_a_network_of_other_kernels_has_device_time_too(how: str, tmp_path: Path) -> None:
    # Two layers of one width: Triton and torch.compile take minutes for a whole network.
    device = torch.device("cuda:0")
    bare = nn.Sequential(ConvBNAct(32, 32, 3), ConvBNAct(32, 32, 3)).to(device, memory_format=torch.channels_last)
    bare = fuse(bare, over_ranks=False) if how == "fused" else bare
    net, x = MarkedNetwork(bare), torch.rand(8, 32, 64, 64, device=device).to(memory_format=torch.channels_last)
    profiler = StepProfiler(tmp_path, device, warmup=2, steps=2, trace=False)
    with compiled(bare, how == "compiled"):
        for _ in range(4):
            with record_function(LOSS):
                loss = net(x).square().mean()
            with record_function(BACKWARD):
                loss.backward()
            del loss
            profiler.step()
    assert profiler.done
    table = (tmp_path / TABLE).read_text()
    assert device_ms(table)["backward"] > device_ms(table)["forward"] > 0, table


def device_ms(table: str) -> dict[str, float]:
    return {line[:20].strip(): float(line[20:].split()[1]) for line in table.splitlines()[2:]}
