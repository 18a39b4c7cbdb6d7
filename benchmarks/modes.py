"""Ways to run a network's step, side by side in one process: eager as it is, with norm and activation apart, as a CUDA graph, compiled.

    python benchmarks/modes.py --data FOLDER/data.yaml --model yolo9t yolo9s --batch 16 64 --out FOLDER
    python benchmarks/modes.py --data FOLDER --model resnet18 --batch 16 64 --out FOLDER

Each row is one training built as `train.py` builds it: images a second with the loader over a window of steps after a warm-up, the share of
waiting for data, peak memory. An epoch is longer than the window, whatever the set. The eager row comes twice, first and last: what lies between
the two is the machine. OUT/modes.md holds the table.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import count, islice
from pathlib import Path
from typing import Any

import torch

from libreyolo import build, schema
from libreyolo.assembly import assembly_for
from libreyolo.assembly.parts import Seat
from libreyolo.engine.progress import Progress

MODES: dict[str, dict[str, Any]] = {
    "eager": {},
    "apart": {"fused": False},
    "graph": {"cuda_graph": True},
    "compile": {"compile": True},
    "eager again": {},
}
WARM_UP = 12  # steps


@dataclass(frozen=True)
class Row:
    """What one way of running gave."""

    model: str
    batch: int
    mode: str
    images_per_second: float
    waiting: float
    gigabytes: float
    warmup_seconds: float

    def line(self, eager: float) -> str:
        ratio = self.images_per_second / eager if eager else 0.0
        cells = (self.model, self.batch, self.mode, f"{self.images_per_second:.0f}", f"{ratio:.2f}", f"{self.waiting:.1%}")
        return "| " + " | ".join(str(c) for c in (*cells, f"{self.gigabytes:.1f}", f"{self.warmup_seconds:.0f}")) + " |"


HEAD = "| model | batch | mode | images/s | to eager | waiting | peak GB | warm-up s |\n| --- | --- | --- | --- | --- | --- | --- | --- |"


def endless(loader: Any) -> Iterator[Any]:
    for epoch in count():
        yield from loader.epoch(epoch)


def measure(model: str, data: str, batch: int, mode: str, *, steps: int, workers: int, device: torch.device, keys: dict[str, Any]) -> Row:
    """Build a training, warm it up, and time a window of its steps."""
    family, size = schema.model_names()[model]
    length = batch * (WARM_UP + steps + 1)
    wanted = {"data": data, "batch": batch, "workers": workers, "cache": "ram", "val": False, "min_samples": length, **keys, **MODES[mode]}
    recipe = schema.resolve(family, size, wanted)
    assembly = assembly_for(family)(family, recipe, family.input, Path.cwd())
    net = build.training_network(family, recipe, len(assembly.names), build.Start(None, {}, "random weights"))
    seat = Seat(0, 1, 1, device)
    training = build.training(family, recipe, assembly, net, seat, progress=Progress(), save=lambda _: None, tell=lambda *_: None)
    trainer = training.trainer
    trainer.net.train()
    cuda = device.type == "cuda"
    if cuda:
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats(device)
    batches = (b for b in endless(trainer.train_loader) if len(b.weight) == batch)

    def run(number: int) -> None:
        for found in islice(batches, number):
            trainer.step([found], [batch])
            if training.ema:
                training.ema.update(training.bare)
        if cuda:
            torch.cuda.synchronize(device)

    began = time.perf_counter()
    run(WARM_UP)
    warm = time.perf_counter()
    trainer.train_loader.reset_waiting()
    run(steps)
    seconds = time.perf_counter() - warm
    waiting = trainer.train_loader.waiting_seconds / seconds
    training.close()
    assembly.close()
    memory = torch.cuda.max_memory_reserved(device) / 1e9 if cuda else 0.0
    return Row(model, batch, mode, steps * batch / seconds, waiting, memory, warm - began)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", required=True)
    parser.add_argument("--model", nargs="+", default=["yolo9t"])
    parser.add_argument("--batch", type=int, nargs="+", default=[16, 64])
    parser.add_argument("--mode", nargs="+", default=list(MODES), choices=list(MODES))
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--workers", type=int, default=12)
    parser.add_argument("--device", default="cuda:0")
    parser.add_argument("--keys", nargs="*", default=[], help="recipe keys for all, like aux_weight=0.0")
    parser.add_argument("--out", type=Path, required=True)
    chosen = parser.parse_args(arguments)
    keys = {name: float(value) if "." in value else int(value) for name, _, value in (word.partition("=") for word in chosen.keys)}
    chosen.out.mkdir(parents=True, exist_ok=True)
    lines = [HEAD]
    for model in chosen.model:
        for batch in chosen.batch:
            eager = 0.0
            for mode in chosen.mode:
                settings: dict[str, Any] = {"steps": chosen.steps, "workers": chosen.workers, "device": torch.device(chosen.device), "keys": keys}
                row = measure(model, chosen.data, batch, mode, **settings)
                eager = row.images_per_second if mode == "eager" else eager
                lines.append(row.line(eager))
                print(lines[-1], flush=True)
                (chosen.out / "modes.md").write_text("\n".join(lines) + "\n")  # kept whatever ends the call


if __name__ == "__main__":
    main()
