"""`batch=-1`: find the largest batch that a device holds by running the real training step, and say how it was found."""

from __future__ import annotations

import gc
import logging
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass, replace
from itertools import count, islice
from typing import Any

import torch
from torch import Tensor

from libreyolo import build
from libreyolo.assembly import assembly_for
from libreyolo.assembly.parts import Assembly, Seat
from libreyolo.engine import collectives, determinism
from libreyolo.engine.capacity import Capacity, OutOfMemoryError, global_batch, largest_batch
from libreyolo.engine.cuda_graph import EAGER_STEPS
from libreyolo.engine.current_device import current
from libreyolo.engine.progress import Progress
from libreyolo.errors import UserError
from libreyolo.interfaces.task import Loader
from libreyolo.run import Job

log = logging.getLogger(__name__)

MEASURE = -1  # the value of `batch` that asks for a measurement
FIXED_BATCH = 16  # pictures for each process where memory can't be measured: CPU and mps
STEPS = 2  # of a measurement: the first step makes the optimiser's state; the second one shows the peak
GIB = 2**30
# What a process of several takes beside its tensors on the first device: its CUDA context and NCCL's buffers, and the context of the parent.
PROCESS_BYTES = GIB


@dataclass(frozen=True)
class Settled:
    """batch: the global batch. note: how it was found, for the log; lines."""

    batch: int
    note: str


def settled(job: Job, device: torch.device, world_size: int) -> Job:
    """Return the job with its batch measured, where it asks for that, and the note of how; else the job itself. Raises as `settle`."""
    if job.recipe.batch != MEASURE:
        return job
    return _with_batch(job, settle(job, device, world_size))


def on_rank_0(job: Job, device: torch.device, *, rank: int, world_size: int) -> Settled | UserError | None:
    """Measure on rank 0 before it joins the others, so that a step of one process is what is measured; None elsewhere, or where nobody asked.

    A mistake of the user's is returned: `agreed` raises it on all ranks, so none waits for a rank that is gone.
    """
    if job.recipe.batch != MEASURE or rank != 0:
        return None
    try:
        return settle(job, device, world_size)
    except UserError as error:
        return error


def agreed(job: Job, found: Settled | UserError | None, device: torch.device) -> Job:
    """Return the job with the batch that rank 0 found, broadcast as a single long tensor; every rank of the group must call it."""
    if job.recipe.batch != MEASURE:
        return job
    mistake = collectives.broadcast_object(found if isinstance(found, UserError) else None)
    if mistake is not None:
        raise mistake
    note = found.note if isinstance(found, Settled) else ""
    batch = collectives.broadcast_integer(found.batch if isinstance(found, Settled) else 0, device)
    return _with_batch(job, Settled(batch, note))


def _with_batch(job: Job, found: Settled) -> Job:
    return replace(job, recipe=replace(job.recipe, batch=found.batch), note="\n".join(filter(None, (job.note, found.note))))


class CudaMemory:
    """The memory of one CUDA device that is free for a training. What somebody holds, another process or a tensor of this one, is no part of it."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.reserved = self.allocated = 0  # bytes that were held here when `available` was asked

    def available(self) -> int:
        """Return the bytes that the device has free after `clear`; what this process holds then belongs to somebody, and counts in no `peak`."""
        self.clear()
        # Once, before the first step: what a step leaves behind (a library's workspace) is the training's, and counts in the peaks after it.
        self.reserved, self.allocated = torch.cuda.memory_reserved(self.device), torch.cuda.memory_allocated(self.device)
        free, _ = torch.cuda.mem_get_info(self.device)
        return int(free)

    def clear(self) -> None:
        """Give back what nobody holds any more, and count the peak anew."""
        gc.collect()
        with torch.cuda.device(self.device):
            torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats(self.device)

    def peak(self) -> int:
        """Return the most bytes since `clear` beyond those that were held when `available` was asked, once the device has done its work."""
        torch.cuda.synchronize(self.device)
        reserved = torch.cuda.max_memory_reserved(self.device) - self.reserved
        # A step may also lie in gaps of what is held. That takes nothing from the device, but a process of its own has no such gaps, and no line
        # goes through steps that cost nothing.
        allocated = torch.cuda.max_memory_allocated(self.device) - self.allocated
        return int(max(reserved, allocated))


def settle(job: Job, device: torch.device, world_size: int, memory: CudaMemory | None = None) -> Settled:
    """Return the global batch for `job` on `world_size` devices like this one.

    On CUDA the real step (network, augmentation, loss, backward, optimiser, average, mixed precision, then a validation batch) is run at a few
    small sizes, a line through their peaks says what fits into `memory_fraction` of the memory that is free (what is held, in this process too, is
    not), and that size is run before it is promised. Other devices get FIXED_BATCH pictures for each process. The device is as empty afterwards as
    before. Raises UserError where not even one picture fits, and for what is wrong with the data.

    memory: what is measured; the device's where not given.
    """
    memory = memory or (CudaMemory(device) if device.type == "cuda" else None)
    # Nothing is kept: the training reads its own data, and copies in memory would be made twice.
    recipe = replace(job.recipe, cache=False, workers=0, batch=1, nbs=None)
    assembly = assembly_for(job.family)(job.family, recipe, job.spec, job.cwd)
    # As the training will be: on this device, and with its kernels, which may take other memory (and cuBLAS reads its setting only once).
    with closing(assembly), current(device), determinism.kernels(deterministic=job.recipe.deterministic, cudnn_benchmark=job.recipe.cudnn_benchmark):
        loader = assembly.train_loader(Seat(0, 1, 1, torch.device("cpu")), 1)
        num_pictures = sum(loader.real_pictures(0, step) for step in range(loader.steps(0)))
        loader.close()
        if memory is None:
            batch = global_batch(FIXED_BATCH, world_size, nbs=job.recipe.nbs, num_pictures=num_pictures)
            return Settled(batch, f"batch=-1: memory is measured on CUDA devices only; on {device.type} the global batch is {batch}.")
        probe = _Probe(replace(job, recipe=recipe), assembly, device, memory, nominal=(job.recipe.nbs or 0) // world_size)
        budget = max(int(job.recipe.memory_fraction * memory.available()) - (probe.for_ranks() if world_size > 1 else 0), 0)
        useful = min(num_pictures, job.recipe.nbs or num_pictures)
        capacity = largest_batch(probe.peak, budget=budget, most=max(-(-useful // world_size), 1))
    if capacity is None:
        raise UserError(
            f"batch=-1: not even one picture of {job.recipe.imgsz} pixels fits into {budget / GIB:.1f} GiB of {device} "
            f"(memory_fraction={job.recipe.memory_fraction:g} of what is free): lower imgsz or take a smaller model."
        )
    batch = global_batch(capacity.batch, world_size, nbs=job.recipe.nbs, num_pictures=num_pictures)
    return Settled(batch, _table(job, capacity, device, budget, world_size, batch))


class _Probe:
    """Runs real training steps of a job on one device and reads their peak.

    nominal: this device's part of the nominal batch, 0 for none: a step then holds the pictures of so many micro-batches, and their gradients.
    """

    def __init__(self, job: Job, assembly: Assembly, device: torch.device, memory: CudaMemory, *, nominal: int = 0) -> None:
        self.job, self.assembly, self.device, self.memory, self.nominal = job, assembly, device, memory, nominal

    def for_ranks(self) -> int:
        """Return what a rank of several needs beyond its step: DDP's buckets, as large as the gradients, and what a process takes."""
        return PROCESS_BYTES + sum(p.numel() * p.element_size() for p in self._network().parameters())

    def peak(self, batch: int) -> int:
        """Return the most bytes that training and validating at this size took. Raises OutOfMemoryError where it does not fit."""
        self.memory.clear()
        try:
            self._run(batch)
            return self.memory.peak()
        except RuntimeError as error:
            if not _is_full(error) and not _is_beyond_kernels(error):
                raise
        finally:
            self.memory.clear()
        raise OutOfMemoryError  # outside `except`: the traceback of the error would keep the step's tensors alive

    def _run(self, batch: int) -> None:
        recipe = replace(self.job.recipe, batch=batch)
        seat = Seat(0, 1, 1, self.device)
        training = build.training(self.job.family, recipe, self.assembly, self._network(), seat, progress=Progress(), save=_nothing, tell=_nothing)
        try:
            trainer = training.trainer
            batches, accumulate = _endless(trainer.train_loader), max(round(self.nominal / batch), 1)
            for _ in range(STEPS + (EAGER_STEPS + 1 if recipe.cuda_graph else 0)):
                window = list(islice(batches, accumulate))  # made while the one before is still there, as in the training
                trainer.step(window, [batch] * accumulate)
                if training.ema:
                    training.ema.update(training.bare)
            if trainer.val_loader is not None:
                _judge_one_batch(trainer.judged, trainer.task, trainer.val_loader, trainer.step.amp_dtype)
        finally:
            training.close()

    def _network(self) -> torch.nn.Module:
        level = logging.root.manager.disable
        logging.disable(logging.INFO)  # how many tensors the weights gave is told once, by the training itself
        try:
            return build.training_network(self.job.family, self.job.recipe, len(self.assembly.names), self.job.start)
        finally:
            logging.disable(level)


def _is_full(error: RuntimeError) -> bool:
    """Return whether an error says that the device has no memory left: that of torch's allocator, or of CUDA or one of its libraries."""
    return isinstance(error, torch.OutOfMemoryError) or "out of memory" in str(error) or "ALLOC_FAILED" in str(error)


def _is_beyond_kernels(error: RuntimeError) -> bool:
    """Return whether an error says that a map has 2^31 numbers or more, which some of torch's kernels don't count: a limit like memory's."""
    return any(words in str(error) for words in ("INT_MAX", "32-bit", "32bit", "32 bit"))


def _endless(loader: Loader) -> Iterator[Any]:
    for epoch in count():
        yield from loader.epoch(epoch)


@torch.no_grad()
def _judge_one_batch(net: torch.nn.Module, task: Any, loader: Loader, amp_dtype: torch.dtype | None) -> None:
    net.eval()
    for batch in loader.epoch(0):
        with torch.autocast(batch.images.device.type, dtype=amp_dtype, enabled=amp_dtype is not None):
            output: Tensor = task.forward(net, batch)
        task.decode(output, batch)
        return


def _nothing(*_: Any) -> None:
    """Nobody listens to a measurement."""


def _table(job: Job, capacity: Capacity, device: torch.device, budget: int, world_size: int, batch: int) -> str:
    """Return the lines that tell what was measured and chosen."""
    recipe = job.recipe
    lines = [
        f"batch=-1: {job.family.name}{recipe.size} at {recipe.imgsz} pixels on {device}, {budget / GIB:.2f} GiB for a step "
        f"(memory_fraction={recipe.memory_fraction:g}):"
    ]
    for point in capacity.measured:
        lines.append(f"  {point.batch:6d} pictures  {'does not fit' if point.bytes is None else f'{point.bytes / GIB:8.2f} GiB'}")
    predicted = f"predicted {capacity.predicted / GIB:.2f}, " if capacity.predicted else ""
    limits = f"{world_size} device(s)" + (f", nbs={recipe.nbs}" if recipe.nbs else "")
    lines.append(f"{capacity.batch} pictures fit on a device ({predicted}reached {capacity.reached / GIB:.2f} GiB); global batch {batch} ({limits}).")
    return "\n".join(lines)
