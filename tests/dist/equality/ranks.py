"""What a group of ranks does in one session. Importable by workers; imports no pytest, which would cost each of them a second."""

import os
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
import torch.nn.functional as F
from torch import distributed as dist
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook

import launch
from libreyolo import build, schema
from libreyolo.engine import collectives, data_parallel, weight_casts
from libreyolo.engine.generators import seed_process
from libreyolo.models.nafnet import network as nafnet
from tests import kernels
from tests.dist.equality import norms, runs, toys, validation
from tests.dist.equality.checks import GRADIENT, MIXED, NO_OBJECT, ONE_RANK_ONLY, Check, Outcome, buffer_difference, run
from tests.dist.equality.mutations import MUTATIONS

ADAMW = {"optimizer": "adamw", "lr0": 0.001}
# Ways to train a family; the first one is put through every case, the others through AUX_CASE. By default the recipe as it is.
VARIANTS: dict[str, dict[str, dict[str, Any]]] = {
    "resnet": {"as it is, on small pictures": {"imgsz": 32}},
    "yolo9": {"without the auxiliary branch": {"aux_weight": 0.0}, "with the auxiliary branch": {}},
    "yolox": {"with the L1 term": {"no_aug_epochs": 1}, "without the L1 term": {}},
    "nafnet": {"crops of 16 pixels": {"imgsz": 16}},
}
# Networks that are repetitive are tested with fewer of the same blocks.
NETWORKS: dict[str, dict[str, Any]] = {"nafnet": {"layout": nafnet.Layout((1, 1, 1, 1), 1, (1, 1, 1, 1))}}

# The number of collectives decides how long a check takes: two for each synchronised BatchNorm and step. So few cases synchronise them.
AUX_CASE = "one gradient, objects on one rank only"
CASES: dict[str, dict[str, Any]] = {
    "three steps of SGD, the last one short": {},
    "three steps of AdamW": {"keys": ADAMW, "frozen_norms": True},
    "one step of AdamW with BatchNorm": {"keys": {**ADAMW, "max_steps": 1}},
    "three steps of SGD in float32": {"double": False, "frozen_norms": True},
    AUX_CASE: {"objects": ONE_RANK_ONLY, "keys": GRADIENT},
    "one gradient, no object at all": {"objects": NO_OBJECT, "keys": {**GRADIENT, "batch": 4}, "frozen_norms": True},
    "one gradient, padded repeats and BatchNorm frozen": {"objects": MIXED[:5], "keys": GRADIENT, "frozen_norms": True},
}


def family_checks() -> dict[tuple[str, str, str], Check]:
    """Return every check of every family there is, by family, variant and case."""
    found = {}
    for name in schema.families():
        for number, (variant, keys) in enumerate(VARIANTS.get(name, {"as it is": {}}).items()):
            for case, options in CASES.items():
                if number == 0 or case == AUX_CASE:
                    own = {"keys": {**options.get("keys", {}), **keys}, "network": NETWORKS.get(name, {})}
                    found[name, variant, case] = Check(name, **{**options, **own})
    return found


# Rules of accumulation, on a family whose BatchNorm stands still: pictures in twos, windows of eight (the last window has two).
WINDOWS = Check("yolo9", objects=MIXED[:10], keys={"batch": 2, "nbs": 8, "aux_weight": 0.0}, frozen_norms=True)


# The second of three steps meets a picture of rank 1 that is infinite. With BatchNorm standing still rank 0's own loss stays finite.
POISONED = [Check("yolo9", poisoned=9, keys={"aux_weight": 0.0}, frozen_norms=still) for still in (False, True)]


def step_session() -> dict[str, Any]:
    """Run everything that needs ranks and no files. Returns results on rank 0."""
    torch.set_num_threads(1)
    with launch.process_group(launch.detect(os.environ), device="cpu"):
        found: dict[str, Any] = {key: run(check) for key, check in family_checks().items()}
        found["poisoned"] = [run(check) for check in POISONED]
        found["windows"], found["all-reduces"] = count_synchronised(WINDOWS)
        found["toys"] = {kind: toys.gradients(toys.Toy(terms), [toys.data()]) for kind, (terms, _) in toys.KINDS.items()}
        found["no positive"] = toys.gradients(toys.Toy(toys.decoupled_terms), [toys.no_positive(toys.data())])
        found["norms"] = {case: norms.gaps(case) for case in NORMS}
        found["pair"] = norms.pair_gaps() if kernels.INTERPRETED else None
        found["averaged"] = norms.averaged_buffers()
        found["without sync"] = without_sync()
        found["initial"] = initial_weights()
        found["inf on one rank"] = infinity_on_rank_1()
        found["casts together"] = casts_together()
        found["vector of rank 1"] = vector_of_rank_1()
        found["odd ways"] = odd_ways()
        found["mutations"] = {name: mutated(name) for name in MUTATIONS}
    return found


NORMS = (
    norms.Norm(),
    norms.Norm(sizes=(1, 4)),
    norms.Norm(momentum=None),
    norms.Norm(fused=True),
    norms.Norm(fused=True, momentum=None),
    norms.Norm(affine=False),
    norms.Norm(track=False),
    norms.Norm(training=False),
    norms.Norm(flat=True),
    norms.Norm(offset=300.0),
    norms.Norm(offset=300.0, dtype=torch.float32),
    *([norms.Norm(offset=300.0, dtype=torch.float32, kernels=True, meet=meet) for meet in (False, True)] if kernels.INTERPRETED else []),
)


def mutated(name: str) -> Outcome:
    """Return what a check that all is right for gives with a fault in every rank's code."""
    with MUTATIONS[name]():
        return run(MUTATED)


MUTATED = Check("yolo9", objects=ONE_RANK_ONLY, keys={**GRADIENT, "aux_weight": 0.0})


def four_ranks() -> tuple[Outcome, Any]:
    torch.set_num_threads(1)
    with launch.process_group(launch.detect(os.environ), device="cpu"):
        return run(FOUR), norms.gaps(norms.Norm(sizes=(2, 1, 3, 2)))


FOUR = Check("yolo9", objects=MIXED[:8], keys={**GRADIENT, "aux_weight": 0.0})


def count_synchronised(check: Check) -> tuple[Outcome, int]:
    """Train, and count how often DDP synchronised the last bucket of gradients."""
    seen = 0
    original = data_parallel.data_parallel

    def hook(state: object, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
        nonlocal seen
        seen += bucket.is_last()
        return allreduce_hook(state, bucket)

    def wrap(net: nn.Module, device: torch.device, chunks: Any) -> nn.Module:
        wrapped = original(net, device, chunks)
        wrapped.register_comm_hook(None, hook)
        return wrapped

    with patch.object(data_parallel, "data_parallel", wrap):
        outcome = run(check)
    return outcome, seen


def without_sync() -> tuple[float, float]:
    """Train with sync_bn=false; return how much the ranks' statistics differ afterwards, of the network and of its average."""
    outcome = run(Check("yolo9", objects=ONE_RANK_ONLY, keys={**GRADIENT, "sync_bn": False, "aux_weight": 0.0}))
    every = collectives.gather_objects((outcome.norms, outcome.average))
    if every is None:
        return 0.0, 0.0
    return buffer_difference(every[0][0], every[1][0]), buffer_difference(every[0][1], every[1][1])


def initial_weights() -> dict[str, float]:
    """Return, for every family, how much fresh weights differ between ranks whose generators differ."""
    found = {}
    for family in schema.families().values():
        seed_process(100 + collectives.rank())
        size = next(iter(family.sizes))
        recipe = schema.resolve(family, size, {"data": "synthetic"})
        net = build.training_network(family, recipe, 3, build.Start(None, {}, "random weights"))
        every = collectives.gather_objects({n: p.detach() for n, p in net.named_parameters()})
        found[family.name] = buffer_difference(every[0], every[-1]) if every else 0.0
    return found


def infinity_on_rank_1() -> list[tuple[bool, float]] | None:
    """Take a float16 step with an infinite loss on rank 1; return of every rank whether it moved, and its first weight's change."""
    net = toys.model().float()
    rows = toys.data().of_rank(collectives.rank(), collectives.world_size())
    rows = toys.Rows(rows.x.float(), rows.y.float(), rows.weight.float())
    if collectives.rank() == 1:
        rows = replace(rows, x=torch.full_like(rows.x, float("inf")))
    before = net[0].weight.detach().clone()
    optimizer = torch.optim.SGD(net.parameters(), lr=1.0)
    device = torch.device("cpu")
    task: Any = toys.Toy(toys.mean_terms)
    step = toys.TrainStep(data_parallel.data_parallel(net, device), task, optimizer, device=device, amp_dtype=torch.float16)
    _, moved = step([rows], [8])
    return collectives.gather_objects((moved, float((net[0].weight.detach() - before).abs().max())))


def casts_together() -> list[dict[str, torch.Tensor]]:
    """Take three bfloat16 steps of two micro-batches with weights cast together, and with autocast's own casts; return both networks' weights."""
    rows = toys.data().of_rank(collectives.rank(), collectives.world_size())
    rows = toys.Rows(rows.x.float(), rows.y.float(), rows.weight.float())
    device, task = torch.device("cpu"), toys.Toy(toys.mean_terms)
    found = []
    for dtype in (torch.bfloat16, None):
        net = toys.model().float().train()
        with patch.object(weight_casts, "CHUNK", 2), weight_casts.cast_together(net, dtype) as chunks:
            wrapped = data_parallel.data_parallel(net, device, chunks)
            assert isinstance(wrapped, data_parallel.ByBuckets if dtype is None else data_parallel.ByChunks)
            optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
            step = toys.TrainStep(wrapped, task, optimizer, device=device, amp_dtype=torch.bfloat16)
            with patch.object(collectives, "begin_average", wraps=collectives.begin_average) as begun:
                moved = [step([rows, rows], [8, 8])[1] for _ in range(3)]
        assert all(moved)
        assert begun.call_count == 3 * len(chunks)  # once for a chunk and an optimiser step, not for a micro-batch
        found.append({name: value.clone() for name, value in net.state_dict().items()})
    return found


class OneOfTwo(nn.Module):
    """Adds a vector of its own in the last rank only; the vectors begin as the number of the rank."""

    def __init__(self) -> None:
        super().__init__()
        self.weight, self.vector, self.other = (nn.Parameter(torch.full(s, float(collectives.rank()))) for s in ((2, 2), (2,), (2,)))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = x @ self.weight + self.other
        return y + self.vector if collectives.rank() == 1 else y


def vector_of_rank_1() -> list[dict[str, Any]] | None:
    """Return of every rank its parameters as they begin, and the gradients of a sum of outputs, twice as large on rank 1."""
    net = OneOfTwo()
    wrapped = data_parallel.data_parallel(net, torch.device("cpu"))
    begun = {name: p.detach().clone() for name, p in net.named_parameters()}
    (wrapped(torch.ones(1, 2)).sum() * (1 + collectives.rank())).backward()
    data_parallel.finish_gradients(wrapped)
    gradients = {name: p.grad.clone() for name, p in net.named_parameters() if p.grad is not None}
    return collectives.gather_objects({"begun": begun, "gradients": gradients, "left to DDP": len(list(wrapped._module_parameters))})


class OddWays(nn.Module):
    """Weights that are cast for a layer and read by other code too, before and after it; one of the last rank only; one that nobody asks for."""

    def __init__(self, width: int) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.twice, self.mine, self.last, self.unused = (nn.Linear(width, width) for _ in range(5))

    def forward(self, x: torch.Tensor, again: bool = False) -> torch.Tensor:
        y = self.first(x) + F.linear(x, self.last.weight)
        y = self.twice(self.twice(y))
        if collectives.rank() == 1 and not again:
            y = y + self.mine(x)
        y = self.last(y)
        return y + F.linear(y, self.first.weight)


def odd_ways(device: torch.device = torch.device("cpu"), width: int = 2, steps: int = 2) -> list[tuple[float, int]]:
    """Take steps that call the network twice; return of each the largest gap to the mean of the ranks' own gradients, and how many there are.

    On a GPU one rank, and then the other one, is late.
    """
    net = OddWays(width).to(device)

    def gradients(wrapped: nn.Module, step: int) -> dict[str, torch.Tensor | None]:
        net.zero_grad()
        x = torch.full((1, width), 1.0 + collectives.rank(), device=device)
        if device.type == "cuda" and step % 2 == collectives.rank():
            torch.cuda._sleep(10_000_000)
        with torch.autocast(device.type, dtype=torch.bfloat16):
            total = (wrapped(x) + wrapped(x + step % 5, again=True)).square().sum()
        total.backward()
        data_parallel.finish_gradients(wrapped)
        return {name: p.grad if p.grad is None else p.grad.clone() for name, p in net.named_parameters()}

    found = []
    with patch.object(weight_casts, "CHUNK", 2), weight_casts.cast_together(net, torch.bfloat16) as chunks:
        own = [gradients(net, step) for step in range(5)]
        wrapped = data_parallel.data_parallel(net, device, chunks)
        for step in range(steps):
            result, gap = gradients(wrapped, step), 0.0
            for name, p in net.named_parameters():
                mine, averaged = own[step % 5][name], result[name]
                mean = collectives.sum_((torch.zeros_like(p) if mine is None else mine).clone()) / collectives.world_size()
                gap = float("inf") if averaged is None else max(gap, float((averaged - mean).abs().max() / mean.abs().max().clamp(min=1e-6)))
            found.append((gap, sum(g is not None for g in result.values())))
    return found


def odd_ways_on_two_gpus() -> list[tuple[float, int]]:
    """Return what `odd_ways` finds where matrix products take longer than the host needs to ask for them."""
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
    with launch.process_group(launch.detect(os.environ), device=str(device)):
        return odd_ways(device, width=2048, steps=40)


def run_session(start: str, data: str, small: str, project: str, stopped_on_1: str) -> dict[str, Any]:
    """Run everything that trains from files on this many ranks; each training joins and leaves its own process group."""
    torch.set_num_threads(1)
    found: dict[str, Any] = {}
    with launch.process_group(launch.detect(os.environ), device="cpu"):
        found["metrics"] = [validation.metrics(data), validation.metrics(small)]
    found["straight"] = runs.train(start, data, project, "straight2")
    stopped = runs.train(start, data, project, "stopped2", {"stop_after_epoch": 1})
    _once(lambda: shutil.copytree(stopped["dir"], Path(project) / "continued_on_1"))
    found["stopped"] = stopped
    found["resumed"] = runs.resume(str(stopped["dir"]))
    found["continued on 2"] = runs.resume(stopped_on_1)
    return found


def _once(work: Callable[[], Any]) -> None:
    """Do something on rank 0; the next training's group makes the others wait."""
    if os.environ["RANK"] == "0":
        work()
