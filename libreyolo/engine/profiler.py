"""`profile=true`: where the time of a step goes. A window of real steps is recorded, summed up by phase, and left as a Chrome trace."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.autograd.profiler import record_function
from torch.profiler import ProfilerActivity, profile, schedule

from libreyolo.interfaces.phases import AVERAGE, BACKWARD, FORWARD, LOSS, OPTIMISER, PREPARE, WAIT

log = logging.getLogger(__name__)

TRACE, TABLE = "trace.json", "profile.txt"
AUTOGRAD = "autograd::engine::evaluate_function: "  # how torch's profiler calls a backward, before the operator's name


class StepProfiler:
    """Records `steps` optimiser steps after `warmup` others, then writes profile.txt and trace.json into `folder` and tells the table.

    Call `step()` after every optimiser step and `close()` at the end, also of a run that was too short: what was recorded by then is told.
    """

    def __init__(self, folder: Path, device: torch.device, *, warmup: int, steps: int, trace: bool = True) -> None:
        self.folder, self.device, self.num_steps, self.trace = folder, device, steps, trace
        self._recorded = 0
        self._left = warmup
        activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if device.type == "cuda" else [])]
        window = schedule(wait=max(warmup - 1, 0), warmup=min(warmup, 1), active=steps + 1)
        self._profile: profile | None = profile(activities=activities, schedule=window)
        self._profile.start()

    @property
    def done(self) -> bool:
        """Whether the window is over."""
        return self._profile is None

    def step(self) -> None:
        """Count an optimiser step; at the window's end write what was found."""
        if self._profile is None:
            return
        if self._left > 0:
            self._left -= 1
        else:
            self._recorded += 1
            if self._recorded == self.num_steps:
                self.close()
                return
        self._profile.step()

    def close(self) -> None:
        """End the window, if it is still open."""
        if self._profile is None:
            return
        found, self._profile = self._profile, None
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
        found.stop()
        if self._recorded == 0:
            log.warning("profile=true: the run ended before a step could be recorded; lower profile_warmup or train longer.")
            return
        table = phase_table(_phases(found), self._recorded)
        self.folder.mkdir(parents=True, exist_ok=True)
        (self.folder / TABLE).write_text(table + "\n", encoding="utf-8")
        for line in table.splitlines():
            log.info("%s", line)
        if self.trace:
            found.export_chrome_trace(str(self.folder / TRACE))
            log.info("Trace of %d steps: %s (open it in chrome://tracing or ui.perfetto.dev).", self._recorded, self.folder / TRACE)


class MarkedNetwork(nn.Module):
    """Stands before the network in a training that is profiled, and marks its forward.

    Hooks of the network itself would break the graphs of torch.compile, and would not run where a CUDA graph is replayed.
    """

    def __init__(self, net: nn.Module) -> None:
        super().__init__()
        self.net = net

    def forward(self, *inputs: Any) -> Any:
        with record_function(FORWARD):
            return self.net(*inputs)


def _phases(found: profile) -> dict[str, tuple[float, float]]:
    """Return by phase the host's and the device's microseconds over the window; copies to the device among them.

    On a GPU autograd calls the backward of every operator from a thread of its own, whose kernels no mark on the training's thread holds.
    """
    totals: dict[str, tuple[float, float]] = {}
    copies, gradients = 0.0, 0.0
    for event in found.key_averages():
        device_time = float(getattr(event, "device_time_total", 0.0) or 0.0)
        if event.key.startswith("step: ") and event.cpu_time_total:
            totals[event.key] = (float(event.cpu_time_total), device_time)
        elif "memcpy htod" in event.key.lower():
            copies += device_time
        elif event.key.startswith(AUTOGRAD):
            gradients += device_time
    host, device = totals.get(BACKWARD, (0.0, 0.0))
    totals[BACKWARD] = (host, device + gradients)
    totals["copy to device"] = (0.0, copies)
    return totals


def phase_table(phases: Mapping[str, tuple[float, float]], steps: int) -> str:
    """Return lines that show where a step's time went: by phase the host's and the device's milliseconds, and the share of the host's time."""

    def of(name: str) -> tuple[float, float]:
        host, device = phases.get(name, (0.0, 0.0))
        return host / steps / 1000, device / steps / 1000

    forward, both = of(FORWARD), of(LOSS)
    copy, prepare = of("copy to device"), of(PREPARE)
    rows = {
        "waiting for data": of(WAIT),
        "copy to device": copy,
        "augmentation": (prepare[0], max(prepare[1] - copy[1], 0.0)),
        "forward": forward,
        "loss": (max(both[0] - forward[0], 0.0), max(both[1] - forward[1], 0.0)),
        "backward": of(BACKWARD),
        "optimiser": of(OPTIMISER),
        "average of weights": of(AVERAGE),
    }
    total = sum(host for host, _ in rows.values())
    lines = [f"Where the time went, mean of {steps} steps:", f"{'phase':<20}{'host ms':>10}{'device ms':>11}{'share':>8}"]
    lines += [f"{name:<20}{host:>10.2f}{device:>11.2f}{host / total if total else 0:>8.1%}" for name, (host, device) in rows.items()]
    lines.append(f"{'step':<20}{total:>10.2f}{sum(device for _, device in rows.values()):>11.2f}")
    return "\n".join(lines)
