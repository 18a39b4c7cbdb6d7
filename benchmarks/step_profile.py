"""Where a training step's time goes on one GPU: host and device time of the parts, and the kernels that cost most.

python benchmarks/step_profile.py --data bccd/data.yaml --model yolo9s --batch 16 64
python benchmarks/step_profile.py --data bccd/data.yaml --model yolo9s --batch 64 --keys aux_weight=0.0 cuda_graph=true --cudnn-benchmark
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
import yaml
from torch.profiler import ProfilerActivity, profile

from libreyolo import build, schema
from libreyolo.assembly import assembly_for
from libreyolo.assembly.parts import Seat
from libreyolo.engine.progress import Progress

PROFILED, SHOWN = 3, 28  # steps under the profiler; lines of each list
MARK = "step: "  # how the phases of a step are named, which the profiler shows beside their kernels


def prepared(model: str, data: Path, batch: int, workers: int, keys: Mapping[str, Any]) -> build.Training:
    """Return a training that is ready to step."""
    family, size = schema.model_names()[model]
    recipe = schema.resolve(family, size, {"data": str(data), "batch": batch, "workers": workers, "cache": "ram", "val": False, **keys})
    assembly = assembly_for(family)(family, recipe, family.input, Path.cwd())
    net = build.training_network(family, recipe, len(assembly.names), build.Start(None, {}, "random weights"))
    seat = Seat(0, 1, 1, torch.device("cuda:0"))
    nothing = Progress()
    return build.training(family, recipe, assembly, net, seat, progress=nothing, save=lambda summary: None, tell=lambda name, event: None)


def measure(model: str, data: Path, batch: int, workers: int, steps: int, keys: Mapping[str, Any]) -> str:
    """Return one paragraph: milliseconds with the loader and without it, and the profile's tables."""
    training = prepared(model, data, batch, workers, keys)
    trainer = training.trainer
    step, loader = trainer.step, trainer.train_loader
    trainer.net.train()
    batches = []
    for held in loader.epoch(0):
        batches.append(held)
        if len(batches) == 4:
            break

    def one(index: int) -> None:
        step.backward([batches[index % len(batches)]], [batch])
        step.move()
        if training.ema:
            training.ema.update(training.bare)

    for index in range(8):
        one(index)
    torch.cuda.synchronize()
    started = time.perf_counter()
    for index in range(steps):
        one(index)
    issued = time.perf_counter() - started
    torch.cuda.synchronize()
    alone = time.perf_counter() - started
    seen, started = 0, time.perf_counter()
    loader.reset_waiting()
    for epoch in range(1, 50):
        for held in loader.epoch(epoch):
            step.backward([held], [batch])
            step.move()
            seen += 1
            if seen == steps:
                break
        if seen >= steps:
            break
    torch.cuda.synchronize()
    whole = time.perf_counter() - started
    waited = loader.waiting_seconds
    with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as prof:
        for index in range(PROFILED):
            one(index)
        torch.cuda.synchronize()
    averages = prof.key_averages()
    on_device = [e for e in averages if e.device_type == torch.autograd.DeviceType.CUDA and not e.key.startswith(MARK)]
    kernels = sum(e.count for e in on_device) / PROFILED
    busy = sum(e.self_device_time_total for e in on_device) / PROFILED / 1e3
    training.close()
    lines = [
        f"## {model}, batch {batch} {dict(keys) or ''}",
        f"step alone {1e3 * alone / steps:.1f} ms ({batch * steps / alone:.0f} images/s), host needs {1e3 * issued / steps:.1f} ms to issue it",
        f"with the loader {1e3 * whole / steps:.1f} ms ({batch * steps / whole:.0f} images/s), of it waiting {1e3 * waited / steps:.1f} ms",
        f"{kernels:.0f} kernels a step, device busy {busy:.1f} ms, peak memory {torch.cuda.max_memory_reserved() / 1e9:.1f} GB",
        *most([(e.key, e.count, e.self_device_time_total) for e in on_device], "the device"),
        *most(
            [(e.key, e.count, e.self_cpu_time_total) for e in averages if e.device_type == torch.autograd.DeviceType.CPU],
            "the host, under the profiler",
        ),
    ]
    return "\n".join(lines)


def most(found: Sequence[tuple[str, int, float]], whose: str) -> list[str]:
    """Return lines of what took most of a step, of (name, calls, microseconds) in the profiled steps."""
    ordered = sorted(found, key=lambda one: one[2], reverse=True)[:SHOWN]
    return [f"ms a step of {whose}, calls, name"] + [
        f"{us / 1e3 / PROFILED:8.2f} {calls / PROFILED:6.0f}  {name[:90]}" for name, calls, us in ordered
    ]


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--model", default="yolo9s")
    parser.add_argument("--batch", type=int, nargs="+", default=[16, 64])
    parser.add_argument("--workers", type=int, default=8)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--keys", nargs="*", default=[], help="recipe keys, like aux_weight=0.0 cuda_graph=true")
    parser.add_argument("--cudnn-benchmark", action="store_true", help="let cuDNN try its algorithms")
    chosen = parser.parse_args(arguments)
    torch.backends.cudnn.benchmark = chosen.cudnn_benchmark
    keys = {name: yaml.safe_load(value) for name, _, value in (word.partition("=") for word in chosen.keys)}
    for batch in chosen.batch:
        print(measure(chosen.model, chosen.data, batch, chosen.workers, chosen.steps, keys), flush=True)
        torch.cuda.reset_peak_memory_stats()


if __name__ == "__main__":
    main()
