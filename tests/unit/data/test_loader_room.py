"""What loader processes need of the machine is checked, and told in one sentence, before it runs out."""

from __future__ import annotations

import multiprocessing
import os
import resource
import signal
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest
import torch

from libreyolo.data import loader_room
from libreyolo.data.loader_room import check_open_files, num_bytes, shared_memory_advice
from libreyolo.data.worker_signals import held_while_workers_start, serve_on
from libreyolo.errors import UserError, of_the_machine
from tests.unit.augment.test_loader import loader_of

MIB = 2**20
OPEN_FILES, NULL = Path("/proc/self/fd"), Path("/dev/null")


@pytest.fixture
def few_files() -> Iterator[int]:
    """Lower this process's own limit to 40 files more than are open."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    limit = len(list(OPEN_FILES.iterdir())) + 40
    resource.setrlimit(resource.RLIMIT_NOFILE, (limit, hard))
    yield limit
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.mark.skipif(not OPEN_FILES.is_dir(), reason="only Linux tells how many files a process has open")
def test_too_many_open_files_is_one_sentence_before_a_worker_starts(few_files: int) -> None:
    with pytest.raises(UserError, match=rf"^workers=2 may need 156 open files, but a process may have {few_files} here .*say ulimit -n"):
        next(loader_of(workers=2).epoch(0))
    assert not [child for child in psutil.Process().children() if "resource_tracker" not in " ".join(child.cmdline())]


@pytest.mark.skipif(not OPEN_FILES.is_dir(), reason="only Linux tells how many files a process has open")
def test_running_out_of_files_all_the_same_is_one_sentence_of_this_rank(few_files: int) -> None:
    opened = []
    try:
        with pytest.raises(UserError, match=r"^/dev/null: Too many open files; raise ulimit -n") as told, of_the_machine():
            for _ in range(few_files):
                opened.append(NULL.open())
    finally:
        for file in opened:
            file.close()
    assert told.value.on_every_rank is False


def test_what_is_no_want_of_the_machine_stays_what_it_is() -> None:
    with pytest.raises(FileNotFoundError), of_the_machine():
        Path("/nowhere/at/all").read_text()


def test_enough_files_and_no_workers_are_fine() -> None:
    check_open_files(2)
    check_open_files(0)


@pytest.mark.parametrize(("workers", "ranks", "free", "advice"), [(2, 1, 10, False), (2, 2, 10, True), (2, 1, 7, True), (0, 8, 0, False)])
def test_small_shared_memory_gives_advice(workers: int, ranks: int, free: int, advice: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """A batch of 2 MiB, two of which each worker keeps under way: 8 MiB for two workers."""
    monkeypatch.setattr(loader_room.os, "statvfs", lambda folder: SimpleNamespace(f_bavail=free, f_frsize=MIB))
    said = shared_memory_advice({"pixels": torch.zeros(2 * MIB, dtype=torch.uint8)}, workers, ranks)
    assert (said is not None) == advice
    if said:
        assert f"which has {free} MiB free" in said and "--shm-size" in said


def test_bytes_are_counted_at_any_depth() -> None:
    batch = SimpleNamespace(a=torch.zeros(3), parts=[torch.zeros(2, dtype=torch.int64), (torch.zeros(1, dtype=torch.uint8), "x")], none=None)
    assert num_bytes(batch) == 12 + 16 + 1


def _is_asked_to_end_before_it_serves() -> None:
    for number in (signal.SIGTERM, signal.SIGUSR1, signal.SIGINT):
        signal.raise_signal(number)
    serve_on()
    os._exit(3 if signal.alarm(0) else 4)


@pytest.mark.skipif(os.name != "posix", reason="signals of POSIX")
def test_a_worker_that_gets_signals_while_it_starts_serves_on_too() -> None:
    before = signal.pthread_sigmask(signal.SIG_BLOCK, ())
    worker = multiprocessing.get_context("fork").Process(target=_is_asked_to_end_before_it_serves)
    with held_while_workers_start():
        worker.start()
    worker.join()
    assert worker.exitcode == 3  # its alarm, which ends it in a while, is set
    assert signal.pthread_sigmask(signal.SIG_BLOCK, ()) == before


@pytest.mark.skipif(os.name != "posix", reason="signals of POSIX")
def test_workers_that_get_sigterm_serve_on_until_the_training_has_come_to_a_place_where_it_can_save() -> None:
    """torchrun sends SIGTERM to the whole group of a rank."""
    loader = loader_of(workers=2)
    batches = loader.epoch(0)
    first = next(batches)
    workers = [child for child in psutil.Process().children() if "resource_tracker" not in " ".join(child.cmdline())]
    assert len(workers) == 2
    for worker in workers:
        worker.terminate()
    assert len(list(batches)) == 2
    assert len(list(loader.epoch(1))) == 3
    assert first.images.shape[0] == 4
    loader.close()


def test_a_batch_names_the_pictures_that_it_shows_and_not_only_its_own() -> None:
    loader = loader_of()
    for batch in loader.epoch(0):
        names = loader.pictures_of(batch)()
        own = [str(loader._guarded.dataset.describe(i)) for i in batch.index.tolist()]
        assert set(own) <= set(names)
        assert len(names) == len(set(names))
    assert len(names) > len(set(own)), "mosaic shows others beside them"
