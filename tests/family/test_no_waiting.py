"""No family makes the host wait for the device inside a step: not its loader's preparation, its forward, its loss, nor their gradients.

One exception: who matches with the Hungarian method on the host reads the costs once for each forward.

Nor does one run a BatchNorm twice, or leave one out: the network counts for all of them, once a forward.
"""

from __future__ import annotations

from collections import Counter
from contextlib import nullcontext
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from libreyolo import build, schema
from libreyolo.assembly import assembly_for
from libreyolo.assembly.parts import Seat
from libreyolo.engine.optimizer import build_optimizer, parameter_groups
from libreyolo.engine.step import TrainStep
from libreyolo.ops import hungarian
from tests.dist.equality.shards import DATASETS
from tests.graphs import Watched
from tests.unreadable import DEVICE, nothing_waits

# The modules of families that match on the host, by family.
ON_THE_HOST = {"rtdetr": "libreyolo.models.rtdetr.loss"}


@pytest.fixture(scope="module")
def sets(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    root = tmp_path_factory.mktemp("unreadable")
    return {task: make(root / task, 4) for task, make in DATASETS.items()}


def parts_of(name: str, data: Path, device: torch.device, amp_dtype: torch.dtype | None) -> tuple[Any, TrainStep]:
    """Return a family's assembly and its step, with everything that adds work to one, where the family knows it."""
    family = schema.family(name)
    size = next(iter(family.sizes))
    keys = {"data": str(data), "imgsz": max(64, 2 * family.input.stride), "batch": 2, "workers": 0, "device": "cpu"}
    more = {"cls_pw": 1.0, "mixup_prob": 1.0, "mixup": 1.0, "erasing": 1.0}
    known = {field.name for field in fields(schema.resolve(family, size, keys))}
    recipe = schema.resolve(family, size, keys | {key: value for key, value in more.items() if key in known})
    assembly = assembly_for(family)(family, recipe, family.input, Path.cwd())
    with device if device == DEVICE else nullcontext():  # no weights are drawn for what has none
        net = build.training_network(family, recipe, len(assembly.names), build.Start(None, {}, "")).train()
    net = net.to(device)
    optimizer = build_optimizer(parameter_groups(net, 0.0), name="sgd", lr=0.001, device=device)
    return assembly, TrainStep(net, assembly.task(), optimizer, device=device, amp_dtype=amp_dtype, clip_max_norm=10.0)


@pytest.mark.slow
@pytest.mark.parametrize("name", list(schema.families()))
def test_a_step_never_waits_for_the_device(name: str, sets: dict[str, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    assembly, step = parts_of(name, sets[schema.family(name).task], DEVICE, None)
    read: list[tuple[int, ...]] = []

    def match(cost: Tensor, counts: Tensor) -> hungarian.Matches:
        read.append(tuple(cost.shape))
        places = torch.zeros(*cost.shape[:2], cost.shape[3], dtype=torch.int64, device=cost.device)
        return hungarian.Matches(places, places >= 0)

    if name in ON_THE_HOST:
        monkeypatch.setattr(f"{ON_THE_HOST[name]}.match", match)
    runs: Counter[nn.Module] = Counter()
    norms = [module for module in step.net.modules() if isinstance(module, _BatchNorm)]
    for norm in norms:
        norm.register_forward_hook(lambda module, given, found: runs.update([module]))
    loader: Any = assembly.train_loader(Seat(0, 1, 1, DEVICE), 2)
    watched = Watched(step.net)
    with nothing_waits():
        window = list(loader.epoch(0))
        assert window[0].images.device == DEVICE and len(window) == 2
        step.task.target_stats(window[1])  # what a window of several micro-batches asks for besides
        parts = step.backward(window[:1], [2])
    loader.close()
    assembly.close()
    assert parts and all(value.device == DEVICE for value in parts.values())
    assert all(p.grad is not None for p in step.parameters)
    assert (watched.calls, watched.look()) == (1, 0)  # no part of the network and no loss keeps the graph, which a CUDA graph's capture would meet
    assert all(runs[norm] == 1 for norm in norms)
    assert len(read) == (1 if name in ON_THE_HOST else 0)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA")
@pytest.mark.parametrize("amp_dtype", [None, torch.bfloat16])
@pytest.mark.parametrize("name", list(schema.families()))
def test_on_a_gpu_torch_sees_no_step_wait(name: str, amp_dtype: torch.dtype | None, sets: dict[str, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    device = torch.device("cuda:0")
    assembly, step = parts_of(name, sets[schema.family(name).task], device, amp_dtype)
    original = hungarian.match

    def match(cost: Tensor, counts: Tensor) -> hungarian.Matches:
        torch.cuda.set_sync_debug_mode("default")
        found = original(cost, counts)
        torch.cuda.set_sync_debug_mode("error")
        return found

    if name in ON_THE_HOST:
        monkeypatch.setattr(f"{ON_THE_HOST[name]}.match", match)
    loader: Any = assembly.train_loader(Seat(0, 1, 1, device), 2)
    try:
        for mode in ("default", "error"):  # the first time kernels are loaded
            torch.cuda.set_sync_debug_mode(mode)
            window = list(loader.epoch(0))
            step.backward(window, [2, 2])
            verdict = step.move()
    finally:
        torch.cuda.set_sync_debug_mode("default")
        loader.close()
        assembly.close()
    assert verdict.wait() == [0.0, 0.0]
