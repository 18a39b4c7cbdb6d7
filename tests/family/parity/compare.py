"""Measure a network and hold it against recorded numbers; the same for every family, and usable by recorders, where our package is not."""

from __future__ import annotations

import gzip
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

DATA = Path(__file__).parent / "data"
NUM_SAMPLES = 64


def recorded_keys(name: str) -> list[tuple[str, str]]:
    """Return (tensor name, shape as "64x3x3x3" or "scalar") of data/keys-<name>.tsv.gz, in state-dict order."""
    with gzip.open(DATA / f"keys-{name}.tsv.gz", "rt") as file:
        rows = [line.split("\t") for line in file.read().splitlines()[1:]]
    return [(row[0], row[1]) for row in rows]


def keys_of(model: nn.Module) -> list[tuple[str, str]]:
    """Return a module's names and shapes as `recorded_keys` writes them."""
    return [(name, "x".join(map(str, tensor.shape)) or "scalar") for name, tensor in model.state_dict().items()]


def take_batch_statistics(model: nn.Module, images: Tensor) -> None:
    """Set every BatchNorm's running statistics to those of this batch, in one pass, and leave the model in eval."""
    norms = [module for module in model.modules() if isinstance(module, nn.BatchNorm2d)]
    momenta = [norm.momentum for norm in norms]
    model.eval()
    for norm in norms:
        norm.train()
        norm.momentum = 1.0
    with torch.no_grad():
        model(images)
    for norm, momentum in zip(norms, momenta, strict=True):
        norm.momentum = momentum
    model.eval()


def summary(tensor: Tensor) -> dict[str, Any]:
    """Return what is recorded of an output: its shape, largest and root-mean-square value, and values at evenly spread places."""
    flat = tensor.detach().double().flatten()
    places = torch.linspace(0, len(flat) - 1, NUM_SAMPLES, dtype=torch.float64).long()
    return {
        "shape": list(tensor.shape),
        "largest": float(flat.abs().max()),
        "rms": float(flat.square().mean().sqrt()),
        "samples": flat[places].tolist(),
    }


def assert_same_output(actual: Tensor, recorded: Mapping[str, Any], *, tolerance: float, what: str) -> None:
    """Assert shape, samples and root-mean-square, to `tolerance` of the recorded largest value."""
    found = summary(actual)
    assert found["shape"] == recorded["shape"], f"{what}: shape {found['shape']}, recorded {recorded['shape']}"
    pairs = [*zip(found["samples"], recorded["samples"], strict=True), (found["rms"], recorded["rms"])]
    worst = max(abs(a - b) for a, b in pairs) / recorded["largest"]
    assert worst <= tolerance, f"{what}: off by {worst:.2e} of the largest value"


def gradient_norms(total: Tensor, parameters: Mapping[str, Tensor]) -> dict[str, float]:
    """Return the L2 norm of the gradient of every parameter, 0 where it has none, and "all": of all of them together."""
    grads = torch.autograd.grad(total, list(parameters.values()), retain_graph=True, allow_unused=True)
    norms = {name: 0.0 if grad is None else float(grad.norm()) for name, grad in zip(parameters, grads, strict=True)}
    return norms | {"all": sum(norm**2 for norm in norms.values()) ** 0.5}


def spread(names: Iterable[str], count: int) -> list[str]:
    """Return about `count` names, evenly spread, the first and the last among them."""
    ordered = list(names)
    step = max(1, (len(ordered) - 1) // (count - 1))
    return sorted({*ordered[::step], ordered[-1]}, key=ordered.index)


def assert_same_numbers(actual: Mapping[str, float], recorded: Mapping[str, float], *, tolerance: float, what: str) -> None:
    """Assert every recorded number, relative to itself; a recorded 0 must be 0."""
    for name, number in recorded.items():
        assert abs(actual[name] - number) <= tolerance * abs(number), f"{what} {name}: {actual[name]!r}, recorded {number!r}"
