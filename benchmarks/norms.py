"""What BatchNorm with SiLU and the 2x2 mean cost the host and the GPU, by implementation: python -m benchmarks.norms --out FOLDER [--gpus 2].

Forward and backward in bfloat16 on channels_last maps of yolo9s at 640 pixels and batch 64. Writes FOLDER/norms.md after every row: host time of one
layer (on a map so small that the GPU never is the slower one), the GPU's time in kernels, and the bytes that the fused layer must move over that time
as a share of what a copy moves. With two GPUs also the synchronised norms; their kernels' time includes waiting for the other GPU.
`--sweep` adds the kernels' own times for other sizes of their tiles: what `nn/fused/norm_act.py` should say on this GPU. Both take under a minute.
"""

from __future__ import annotations

import argparse
import itertools
import os
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import NamedTuple
from unittest import mock

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.profiler import ProfilerActivity, profile

import launch
from libreyolo.engine import collectives
from libreyolo.engine.batchnorm import CudaSyncBatchNorm
from libreyolo.engine.fusion import FusedNormAct
from libreyolo.engine.kernel_norm import KernelBatchNorm
from libreyolo.nn.fused import available
from libreyolo.nn.fused.exchange import Exchange
from libreyolo.nn.fused.scratch import Scratch
from libreyolo.nn.neighbour_mean import NeighbourMean


class Way(NamedTuple):
    """An implementation, and whether our kernels may run in it."""

    call: Callable[[Tensor], Tensor]
    kernels: bool = True

    def context(self) -> AbstractContextManager[object]:
        return nullcontext() if self.kernels else mock.patch.object(available, "runs_on", lambda device: False)


# (channels, height) of square maps; how much of yolo9s they are: stem, first stage, the 3x3 convolutions inside the blocks.
NORMS = ((32, 320), (64, 160), (32, 160), (64, 80), (192, 40), (128, 20))
POOLED = ((64, 160), (128, 80), (192, 40))
LEAST = (64, 10)  # of one picture: what is left is the host's time
# A fused layer reads a map twice and writes one forward, reads two twice and writes one backward; a 2x2 mean reads and writes one in each direction.
NORM_PASSES, POOL_PASSES = 8, 4
BF16 = 2  # bytes


def norm_ways(channels: int, device: torch.device, world_size: int, exchange: Exchange | None = None) -> dict[str, Way]:
    """Return every implementation of BatchNorm and SiLU that this number of GPUs can run, and two without SiLU. exchange: where kernels meet."""

    def norm() -> nn.BatchNorm2d:
        return nn.BatchNorm2d(channels, device=device)

    def fused(act: nn.Module, *, over_ranks: bool, exchange: Exchange | None = None) -> nn.Module:
        return FusedNormAct(norm(), act, over_ranks=over_ranks, scratch=Scratch(exchange))

    ways: dict[str, Way] = {
        "BatchNorm, SiLU": Way(nn.Sequential(norm(), nn.SiLU())),
        "fused": Way(fused(nn.SiLU(), over_ranks=False)),
        "BatchNorm alone": Way(norm()),
        "fused, no activation": Way(fused(nn.Identity(), over_ranks=False)),
    }
    if world_size == 1:
        return ways
    ours = KernelBatchNorm(channels, scratch=Scratch()).to(device)
    return ways | {
        "torch's SyncBatchNorm, SiLU": Way(nn.Sequential(CudaSyncBatchNorm(channels, device=device), nn.SiLU())),
        "ours by torch's kernels, SiLU": Way(nn.Sequential(ours, nn.SiLU()), kernels=False),
        "ours, SiLU": Way(nn.Sequential(ours, nn.SiLU())),
        "fused over ranks": Way(fused(nn.SiLU(), over_ranks=True)),
        **({"fused, kernels meet": Way(fused(nn.SiLU(), over_ranks=True, exchange=exchange))} if exchange else {}),
    }


def pool_ways() -> dict[str, Way]:
    return {
        "torch's 2x2 mean": Way(lambda x: F.avg_pool2d(x, 2, 1)),
        "torch's 2x2 mean with our gradient": Way(NeighbourMean(), kernels=False),
        "our 2x2 mean": Way(NeighbourMean()),
    }


class Bench:
    """Times one call and its backward on one device."""

    def __init__(self, device: torch.device, images: int, repeats: int) -> None:
        self.device, self.images, self.repeats = device, images, repeats

    def step(self, way: Way, shape: tuple[int, int], images: int) -> Callable[[], None]:
        """Return a call that runs forward and backward on a map that lies on the device."""
        channels, side = shape
        x = torch.randn(images, channels, side, side, device=self.device).to(torch.bfloat16, memory_format=torch.channels_last).requires_grad_()
        gradient = torch.randn_like(way.call(x))

        def run() -> None:
            x.grad = None
            way.call(x).backward(gradient)

        for _ in range(3):
            run()
        self.wait()
        return run

    def host(self, way: Way, channels: int) -> float:
        """Return microseconds of the host for a call and its backward."""
        best = float("inf")
        with way.context():
            run = self.step(way, (channels, LEAST[1]), 1)
            for _ in range(5):
                started = time.perf_counter()
                for _ in range(self.repeats):
                    run()
                best = min(best, time.perf_counter() - started)
                self.wait()
        return 1e6 * best / self.repeats

    def kernels(self, way: Way, shape: tuple[int, int]) -> dict[str, float]:
        """Return microseconds in each kernel of a call and its backward; nothing on the CPU."""
        if self.device.type != "cuda":
            return {}
        with way.context():
            run = self.step(way, shape, self.images)
            with profile(activities=[ProfilerActivity.CUDA]) as prof:
                for _ in range(self.repeats):
                    run()
                self.wait()
        averages = [e for e in prof.key_averages() if not e.key.startswith("Activity Buffer")]  # the profiler's own
        on_device = [e for e in averages if e.device_type == torch.autograd.DeviceType.CUDA]
        return {e.key: e.self_device_time_total / self.repeats for e in on_device}

    def copy_rate(self) -> float:
        """Return bytes read and written a microsecond by a copy of a large tensor."""
        if self.device.type != "cuda":
            return float("nan")
        source = torch.empty(2**30, dtype=torch.uint8, device=self.device)
        target = torch.empty_like(source)
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        target.copy_(source)
        begin.record()
        for _ in range(10):
            target.copy_(source)
        end.record()
        self.wait()
        return 10 * 2 * 2**30 / (1e3 * begin.elapsed_time(end))

    def wait(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)


class Page:
    """A page of tables that rank 0 writes after every row."""

    def __init__(self, path: Path, rank: int) -> None:
        self.path, self.rank, self.lines = path, rank, list[str]()

    def add(self, *lines: str) -> None:
        self.lines += lines
        if self.rank == 0:
            self.path.write_text("\n".join(self.lines) + "\n")


def measure(kind: str, out: Path, images: int, repeats: int, sweep: bool) -> None:
    """Measure on this rank's device; every rank runs the same, rank 0 writes."""
    environment = launch.detect(os.environ)
    rank = environment.rank if environment else 0
    world_size = environment.world_size if environment else 1
    device = torch.device(kind, rank) if kind == "cuda" else torch.device(kind)
    with launch.process_group(environment, device=str(device)):
        bench, page = Bench(device, images, repeats), Page(out / "norms.md", rank)
        copy = bench.copy_rate()
        name = torch.cuda.get_device_name(device) if kind == "cuda" else "CPU"
        page.add(f"{name}, torch {torch.__version__}, ranks {world_size}, {images} pictures a GPU; a copy moves {copy / 1e6:.2f} TB/s", "")
        exchange = collectives.exchange(device)
        ways = norm_ways(LEAST[0], device, world_size, exchange) | pool_ways()
        page.add("| forward and backward | host us |", "| --- | --- |")
        for name, way in ways.items():
            page.add(f"| {name} | {bench.host(way, LEAST[0]):.0f} |")
        page.add("", "| map | forward and backward | GPU us | of a copy's rate | kernels |", "| --- | --- | --- | --- | --- |")
        for shape in NORMS:
            for name, way in norm_ways(shape[0], device, world_size, exchange).items():
                page.add(_row(bench, name, way, shape, NORM_PASSES, copy))
        for shape in POOLED:
            for name, way in pool_ways().items():
                page.add(_row(bench, name, way, shape, POOL_PASSES, copy))
        if sweep:
            _sweep(bench, page)


def _row(bench: Bench, name: str, way: Way, shape: tuple[int, int], passes: int, copy: float) -> str:
    found = bench.kernels(way, shape)
    total = sum(found.values()) or float("nan")
    needed = passes * BF16 * bench.images * shape[0] * shape[1] ** 2 / copy
    longest = sorted(found.items(), key=lambda item: -item[1])[:4]
    kernels = ", ".join(f"{key[:40]} {value:.0f}" for key, value in longest)
    return f"| {shape[0]} x {shape[1]} x {shape[1]} | {name} | {total:.0f} | {needed / total:.0%} | {kernels} |"


def _sweep(bench: Bench, page: Page) -> None:
    """Times of the four kernels, one shape of 64 columns large and one small, by numbers a program holds, its warps and programs that sum."""
    from libreyolo.nn.fused import norm_act

    page.add("", "| tile | warps | sums' programs on a multiprocessor | map | sums | apply | gradient sums | gradient |", "| --- " * 8 + "|")
    for tile, warps, programs in itertools.product((4096, 8192), (4, 8), (2, 4)):
        with mock.patch.multiple(norm_act, TILE=tile, GRADIENT_TILE=tile, WARPS=warps, PROGRAMS_PER_MULTIPROCESSOR=programs):
            norm_act.plan_for.cache_clear()
            for shape in ((64, 160), (64, 40)):
                found = bench.kernels(norm_ways(shape[0], bench.device, 1)["fused"], shape)
                times = [found.get(name, float("nan")) for name in ("sums_kernel", "apply_kernel", "gradient_sums_kernel", "gradient_kernel")]
                page.add(f"| {tile} | {warps} | {programs} | {shape[0]} x {shape[1]} | " + " | ".join(f"{value:.1f}" for value in times) + " |")
    norm_act.plan_for.cache_clear()


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--gpus", type=int, default=1, help="0: the CPU, which only shows that this runs")
    parser.add_argument("--images", type=int, default=64)
    parser.add_argument("--repeats", type=int, default=20)
    parser.add_argument("--sweep", action="store_true", help="other tiles too")
    chosen = parser.parse_args(arguments)
    chosen.out.mkdir(parents=True, exist_ok=True)
    work = ("cuda" if chosen.gpus else "cpu", chosen.out, chosen.images, chosen.repeats, chosen.sweep)
    if chosen.gpus > 1:
        launch.spawn_ddp_train(measure, work, num_processes=chosen.gpus)
    else:
        measure(*work)
    print((chosen.out / "norms.md").read_text())


if __name__ == "__main__":
    main()
