"""Feeds the trainer: worker processes read, the device prepares, and the next batch is under way while a step runs.

Task-agnostic: the dataset turns an Item into a sample, `collate` turns samples into a host batch (in the worker), `prepare` turns a host
batch into the batch that a step takes (on the device).
"""

from __future__ import annotations

import gc
import logging
import multiprocessing.queues
import os
import random
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any, Generic, Protocol, TypeVar

import numpy as np
import torch
from torch.autograd.profiler import record_function
from torch.utils.data import DataLoader

from libreyolo.data.loader_room import check_open_files, lost_workers_told, shared_memory_advice
from libreyolo.data.memory import keep_freed_memory
from libreyolo.data.sampler import Item, Sampler
from libreyolo.data.shelves import OnShelf, Shelves, handed_over, open_shelf
from libreyolo.data.side_stream import Early, Prepared, prepare_beside
from libreyolo.data.socket_folder import keep_socket_paths_short
from libreyolo.data.worker_signals import held_while_workers_start, serve_on
from libreyolo.errors import UserError, counted
from libreyolo.interfaces.batch import Batch
from libreyolo.interfaces.phases import PREPARE, WAIT
from libreyolo.ops.keyed import derive

log = logging.getLogger(__name__)

B = TypeVar("B", bound=Batch)


class ItemDataset(Protocol):
    """Reads one picture of one step."""

    def __getitem__(self, item: Item) -> Any:
        """Return the sample; a pure function of the item."""

    def describe(self, index: int) -> str:
        """Return what to call the picture in an error: its path."""

    def shown(self, item: Item) -> list[int]:
        """Return which pictures the sample shows, by index in the dataset; its own first."""


def resolve_workers(requested: int, num_ranks_on_host: int, cpu_count: int) -> tuple[int, str | None]:
    """Return how many loader processes each rank starts, and one line to log where that is fewer than requested.

    `workers` counts per rank; over the ranks of one host they never exceed its CPUs. 0 loads in the training process itself.
    """
    if requested < 0:
        raise UserError(f"workers={requested} must be 0 (load in the training process) or the number of loader processes per rank.")
    most = cpu_count // max(1, num_ranks_on_host)
    if requested <= most:
        return requested, None
    host = f"{cpu_count} CPUs and {counted(num_ranks_on_host, 'rank')} on this host"
    return most, f"workers={requested} per rank is more than {host} allow; each rank uses {most}."


class Loader(Generic[B]):
    """An endless supply of epochs. One epoch is iterated at a time; starting another ends the one before.

    prepare: host batch, device -> batch. On CUDA it runs on a side stream, so it must not wait for the device.
    workers: loader processes (see `resolve_workers`); any number gives the same batches.
    persistent: whether workers live on between epochs, until `close()`; else they live for one epoch.
    """

    def __init__(
        self,
        dataset: ItemDataset,
        sampler: Sampler,
        *,
        collate: Callable[[list[Any]], Any],
        prepare: Callable[[Any, torch.device], B],
        workers: int = 0,
        device: torch.device | str = "cpu",
        seed: int = 0,
        rank: int = 0,
        persistent: bool = True,
    ) -> None:
        self.device = torch.device(device)
        self._sampler = sampler
        self._prepare = prepare
        self._workers = workers
        self._persistent = persistent and workers > 0
        self._seed = derive(seed, "loader", rank)
        self._advises = rank == 0 and workers > 0
        self._guarded = _GuardedDataset(dataset)
        self._collate = partial(_guarded_collate, collate)
        # Where batches are pinned they leave the memory in which they came, and it can be used again; elsewhere they may stay in it.
        self._pins = self.device.type == "cuda"
        self._shelves: Shelves | None = None
        self._plan = _EpochPlan(sampler)
        self._data_loader: DataLoader[Any] | None = None
        self._iterator: Iterator[Any] | None = None
        self._early: Early[B] | None = None
        self._next_place = (0, 0)  # epoch and step of what the iterator gives next
        self._pass = 0
        self._waiting_seconds = 0.0

    @property
    def num_pictures(self) -> int:
        """How many pictures the dataset holds, over all ranks."""
        return self._sampler.num_pictures

    @property
    def steps_per_epoch(self) -> int:
        """How many batches an epoch yields on this rank; the same in every epoch."""
        return self._sampler.steps(0)

    def steps(self, epoch: int) -> int:
        """How many batches a zero-based epoch yields on this rank."""
        return self._sampler.steps(epoch)

    def real_pictures(self, epoch: int, step: int) -> int:
        """How many pictures batch `step` holds over all ranks, padded repeats left out."""
        return self._sampler.real_pictures(epoch, step)

    def pictures_of(self, batch: Batch) -> Callable[[], list[str]]:
        """Return what names the pictures that a batch shows, padded repeats and mosaic's partners too, each once."""
        dataset, indices, keys = self._guarded.dataset, batch.index, batch.key

        def names() -> list[str]:
            items = [Item(index, place, epoch, 1.0) for index, (epoch, place) in zip(indices.tolist(), keys.tolist(), strict=True)]
            return list(dict.fromkeys(dataset.describe(i) for item in items for i in dataset.shown(item)))

        return names

    @property
    def waiting_seconds(self) -> float:
        """Time this process was blocked on reading since the last `reset_waiting`; all of the reading where there are no workers."""
        return self._waiting_seconds

    def reset_waiting(self) -> None:
        """Start counting `waiting_seconds` from 0."""
        self._waiting_seconds = 0.0

    def epoch(self, epoch: int, start_step: int = 0, until: int | None = None) -> Iterator[B]:
        """Yield the batches of a zero-based epoch from `start_step` on; each is the same wherever one starts.

        until: the caller goes on with the epochs after this one, in their order, up to that one (exclusive): persistent workers then read the
        beginning of the next while this one's end is trained, judged and saved, and a GPU prepares its first batch. May be left early. Raises
        UserError naming the picture that can't be read.
        """
        if self.device.type == "cuda":
            yield from self._ahead_on_side_stream(epoch, start_step, until or 0)
        else:
            for host in self._host_batches(epoch, start_step, until or 0):
                with record_function(PREPARE):
                    batch = self._prepare(host, self.device)
                yield batch

    def start(self, epoch: int, start_step: int = 0, until: int | None = None) -> None:
        """Start the workers, which read from there on while the caller has other things to do; `epoch` with the same numbers takes it up.

        Nothing happens where there are no workers. Raises UserError where they can't be started.
        """
        if self._workers:
            self._begin(epoch, start_step, until or 0)
            self._next_place = (epoch, start_step)

    def close(self) -> None:
        """End the worker processes; the loader can be used again and then starts new ones."""
        self._pass += 1
        self._iterator, self._early = None, None
        self._data_loader = None
        if self._shelves:
            self._shelves.close()
        self._shelves = None

    def _host_batches(self, epoch: int, start_step: int, until: int) -> Iterator[Any]:
        self._pass += 1
        this_pass = self._pass
        if self._iterator is None or self._next_place != (epoch, start_step):
            self._begin(epoch, start_step, until)
        try:
            for step in range(start_step, self._sampler.steps(epoch)):
                if self._pass != this_pass:
                    raise RuntimeError("this epoch's iterator was ended by a newer epoch or by close()")
                host = self._next()
                if host is None:
                    return
                self._next_place = (epoch, step + 1)
                yield host
            self._next_place = (epoch + 1, 0)
        finally:
            # Without persistence this ends the workers, also when the epoch is left early.
            if self._pass == this_pass and (not self._persistent or self._next_place == (self._plan.until, 0)):
                self._iterator = None
                if self._shelves:
                    self._shelves.forget()

    def _begin(self, epoch: int, start_step: int, until: int) -> None:
        """Have the workers read from here on."""
        self._plan.epoch, self._plan.start_step = epoch, start_step
        self._plan.until = max(until, epoch + 1) if self._persistent else epoch + 1
        self._iterator = None
        if self._data_loader is None:
            self._data_loader = self._start()
        # The thread that pins batches makes the device that is current now its own, and would open a context on GPU 0 for one that is not in use.
        on_device = torch.cuda.device(self.device) if self.device.type == "cuda" else nullcontext()
        with on_device, held_while_workers_start() if self._workers else nullcontext():
            self._iterator = iter(self._data_loader)

    def _next(self) -> Any:
        began = time.perf_counter()
        assert self._iterator is not None
        try:
            with lost_workers_told(), record_function(WAIT):
                host = next(self._iterator, None)
        finally:
            self._waiting_seconds += time.perf_counter() - began
        if isinstance(host, _Failure):
            host.reraise()
        if isinstance(host, OnShelf):  # torch pins nothing where it knows of no GPU
            host = host.pin_memory()
        if self._advises and host is not None:
            self._advises = False
            advice = shared_memory_advice(host, self._workers, int(os.environ.get("LOCAL_WORLD_SIZE", "1")))
            if advice:
                log.warning("%s", advice)
        return host

    def _ahead_on_side_stream(self, epoch: int, start_step: int, until: int) -> Iterator[B]:
        early, self._early = self._early, None
        known = early.given() if early is not None and early.place == (epoch, start_step) else None
        hosts = self._host_batches(epoch, start_step if known is None else start_step + 1, until)

        def launch() -> Prepared[B] | None:
            host = next(hosts, None)
            if host is None:
                self._look_ahead(epoch + 1)
                return None
            return prepare_beside(self._prepare, host, self.device)

        ahead = known or launch()
        if ahead is None:
            return
        # The first step has a device to itself that does nothing: its batch is given at once. Later, the next batch's copy and preparation are queued
        # before the step that takes this one, and run beside it.
        yield ahead.taken(self.device)
        ahead = launch()
        while ahead is not None:
            batch, ahead = ahead.taken(self.device), launch()
            yield batch

    def _look_ahead(self, epoch: int) -> None:
        """Prepare the first batch of the epoch that comes next, beside the last step of this one, where the workers have been told to read it.

        What stands in the way of that batch is none of this epoch's business: it is kept, and raised when the batch is asked for.
        """
        if self._iterator is None or self._next_place != (epoch, 0) or epoch >= self._plan.until:
            return
        try:
            found: Prepared[B] | Exception = prepare_beside(self._prepare, self._next(), self.device)
            self._next_place = (epoch, 1)
        except Exception as error:
            found = error
        self._early = Early((epoch, 0), found)

    def _start(self) -> DataLoader[Any]:
        if self._workers:
            keep_socket_paths_short()
            check_open_files(self._workers)
        if self._workers and self._pins:
            self._shelves = Shelves(self._workers)
        return DataLoader(
            self._guarded,  # type: ignore[arg-type]  # a map-style dataset whose keys are Items
            batch_sampler=self._plan,
            num_workers=self._workers,
            collate_fn=self._collate,
            pin_memory=self._pins,
            persistent_workers=self._persistent,
            worker_init_fn=partial(_start_worker, self._seed, self._shelves),
            # Its own generator: the seed that a DataLoader draws for its workers must not come out of the user's global one.
            generator=torch.Generator().manual_seed(self._seed),
        )


class _EpochPlan:
    """What a DataLoader takes for its batch sampler. Iterated in the main process, so that setting the epoch reaches persistent workers."""

    def __init__(self, sampler: Sampler) -> None:
        self.sampler = sampler
        self.epoch = 0
        self.start_step = 0
        self.until = 1

    def __iter__(self) -> Iterator[list[Item]]:
        first, start_step = self.epoch, self.start_step
        for epoch in range(first, self.until):
            yield from self.sampler.batches(epoch, start_step if epoch == first else 0)

    def __len__(self) -> int:
        return sum(self.sampler.steps(epoch) for epoch in range(self.epoch, self.until)) - self.start_step


def _start_worker(seed: int, shelves: Shelves | None, worker: int) -> None:
    serve_on()
    gc.freeze()  # what came with this process is not its to clean up: looking through it would copy all of that memory
    open_shelf(shelves, worker)
    keep_freed_memory()
    multiprocessing.queues.Queue._on_queue_feeder_error = staticmethod(_end_with_lost_batch)  # type: ignore[attr-defined]
    torch.set_num_threads(1)
    # No draw of ours depends on these states; code of others in a worker gets different ones per rank and worker all the same.
    own = derive(seed, "worker", worker)
    random.seed(own)
    np.random.seed(own % 2**32)
    torch.manual_seed(own)


def _end_with_lost_batch(error: Exception, batch: Any) -> None:
    """End this worker, whose batch could not be handed over (no room in shared memory, no file left): a lost one would be waited for without end, the
    end of a worker is noticed. Called in the thread that hands over, which by itself only prints the error."""
    log.error("A batch could not be handed over: %s.", (str(error).splitlines() or [type(error).__name__])[0])
    os._exit(1)


class _GuardedDataset:
    """Turns an exception into a value that names the picture: one that crosses processes keeps its sentence, not five nested tracebacks."""

    def __init__(self, dataset: ItemDataset) -> None:
        self.dataset = dataset

    def __getitem__(self, item: Item) -> Any:
        try:
            return self.dataset[item]
        except (OSError, UserError) as error:
            name, said = self.dataset.describe(item.index), str(error)
            return _Failure(said if name in said else f"{name} can't be read: {said}", None)
        except Exception as error:  # a bug: reported with its traceback
            return _Failure(f"{self.dataset.describe(item.index)}: {error!r}", traceback.format_exc())


@dataclass(frozen=True)
class _Failure:
    sentence: str
    traceback: str | None  # None: the user's file is at fault, not the program

    def reraise(self) -> None:
        if self.traceback is None:
            raise UserError(self.sentence)
        raise RuntimeError(f"the loader failed on {self.sentence}\n{self.traceback}")


def _guarded_collate(collate: Callable[[list[Any]], Any], samples: list[Any]) -> Any:
    for sample in samples:
        if isinstance(sample, _Failure):
            return sample
    return handed_over(collate(samples))
