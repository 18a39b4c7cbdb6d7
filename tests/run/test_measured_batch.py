"""batch=-1 through the doors: measured once, by the parent or by rank 0, and a plain number from then on."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml

from benchmarks.auto_batch import read_log
from libreyolo import LibreYOLO, autobatch
from libreyolo.autobatch import CudaMemory, Settled
from libreyolo.data.shapes import make_shapes
from libreyolo.engine.step import TrainStep
from libreyolo.errors import UserError
from tests.dist.doors.conftest import TORCHRUN, TRAIN, Workplace, words, workplace
from tests.run.conftest import QUICK
from tests.run.fake_device import FakeDevice

__all__ = ["workplace"]  # a fixture


def config_of(run_dir: str | Path) -> dict[str, Any]:
    return dict(yaml.safe_load((Path(run_dir) / "train_config.yaml").read_text()))


@pytest.mark.slow
def test_on_the_cpu_the_batch_is_a_fixed_one_within_the_set_and_the_nominal_batch(tiny: Path, tmp_path: Path) -> None:
    keys = {**QUICK, "epochs": 1, "data": str(tiny), "project": str(tmp_path), "val": False, "batch": -1}
    whole = LibreYOLO("yolo9t").train(**keys)
    assert config_of(whole["save_dir"])["batch"] == 8  # all pictures there are
    log = (Path(whole["save_dir"]) / "train.log").read_text()
    assert "batch=-1: memory is measured on CUDA devices only; on cpu the global batch is 8." in log
    assert read_log(log) == {"batch": 8.0}
    nominal = LibreYOLO("yolo9t").train(**keys, nbs=4, name="nominal")
    assert config_of(nominal["save_dir"])["batch"] == 4
    resumed = LibreYOLO("yolo9t").train(resume=nominal["save_dir"], batch=-1, epochs=2, device="cpu")
    assert config_of(resumed["save_dir"])["batch"] == 4  # not measured again


@pytest.mark.slow
def test_the_parent_measures_once_and_workers_get_a_plain_number(tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[str, int]] = []

    def settle(job: Any, device: Any, world_size: int) -> Settled:
        asked.append((str(device), world_size))
        return Settled(4, "batch=-1: four")  # a worker that measured would take 8

    monkeypatch.setattr(autobatch, "settle", settle)
    keys = {**QUICK, "epochs": 1, "data": str(tiny), "project": str(tmp_path), "val": False, "batch": -1}
    found = LibreYOLO("yolo9t").train(**keys, nproc=2, profile=True, cuda_graph=True)
    assert asked == [("cpu", 2)]
    assert config_of(found["save_dir"])["batch"] == 4
    log = (Path(found["save_dir"]) / "train.log").read_text()
    assert "batch=-1: four" in log and "global batch 4 (2 on each rank)" in log
    # In the same run: what works on one GPU only says so, once.
    assert log.count("profile=true is ignored with 2 ranks: profile on one GPU.") == 1
    assert log.count("cuda_graph=true is for one GPU; on 2 ranks the network trains eagerly.") == 1
    assert not (Path(found["save_dir"]) / "profile.txt").exists()


@pytest.mark.slow
def test_under_torchrun_rank_0_measures_and_every_rank_trains_at_its_number(workplace: Workplace) -> None:
    ended = workplace.run(*TORCHRUN, TRAIN, *words(data="data/data.yaml", batch=-1, val="false"))
    assert ended.code == 0, ended.err
    (run_dir,) = workplace.runs
    assert config_of(run_dir)["batch"] == 8
    assert "on cpu the global batch is 8" in (run_dir / "train.log").read_text()


def bytes_of(pictures: int) -> int:
    """What a step takes of a fake device."""
    return 100 + 100 * pictures


@pytest.mark.slow
@pytest.mark.parametrize(
    ("size", "most", "nbs", "batch"),
    [
        (1000, 99, None, 6),  # 0.7 * 1000 holds six
        (9000, 99, None, 8),  # all pictures there are
        (9000, 5, None, 5),  # eight and six ran out of memory
        (310, 99, None, 1),
        (9000, 99, 6, 6),
    ],
)
def test_real_steps_are_run_and_the_largest_that_fits_is_chosen(
    size: int, most: int, nbs: int | None, batch: int, tiny: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    device = FakeDevice(size).installed(monkeypatch)
    batches: list[int] = []
    original = TrainStep.__call__

    def step(self: TrainStep, window: Any, pictures: Any) -> Any:
        assert torch.are_deterministic_algorithms_enabled()  # what is measured is the step of the training
        assert len(window) == len(pictures) == (max(round(nbs / len(window[0].weight)), 1) if nbs else 1)
        batches.append(len(window[0].weight))
        if batches[-1] > most:
            raise [torch.OutOfMemoryError("CUDA out of memory"), RuntimeError("cuDNN error: CUDNN_STATUS_ALLOC_FAILED")][len(batches) % 2]
        with device.taken(bytes_of(batches[-1])):
            return original(self, window, pictures)

    monkeypatch.setattr(TrainStep, "__call__", step)
    job = LibreYOLO("yolo9t")._job(
        {**QUICK, "data": str(tiny), "batch": -1, "memory_fraction": 0.7, "nbs": nbs, "deterministic": True}, (), tiny.parent
    )
    found = autobatch.settle(job, torch.device("cpu"), 1, CudaMemory(torch.device("cpu")))
    assert found.batch == batch
    assert max(batches) <= (nbs or 8)  # never more than is of use
    assert device.reserved == 0
    assert f"global batch {batch} (1 device(s)" in found.note
    if most == 5:  # what did not fit is part of the table
        assert "8 pictures  does not fit" in found.note


def fake_step(device: FakeDevice) -> Callable[..., None]:
    """Return a step that trains nothing and takes its bytes of a fake device."""

    def step(self: TrainStep, window: Any, pictures: Any) -> None:
        with device.taken(bytes_of(len(window[0].weight))):
            pass

    return step


def test_a_size_whose_maps_a_kernel_does_not_count_does_not_fit(tiny: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    device = FakeDevice(9000).installed(monkeypatch)
    fitting = fake_step(device)

    def step(self: TrainStep, window: Any, pictures: Any) -> None:
        if len(window[0].weight) > 5:
            raise RuntimeError("upsample_bilinear2d_nhwc only supports output tensors with less than INT_MAX elements, but got [8, 128, 1024, 2048]")
        fitting(self, window, pictures)

    monkeypatch.setattr(TrainStep, "__call__", step)
    job = LibreYOLO("yolo9t")._job({**QUICK, "data": str(tiny), "batch": -1}, (), tiny.parent)
    found = autobatch.settle(job, torch.device("cpu"), 1, CudaMemory(torch.device("cpu")))
    assert found.batch == 5
    assert "8 pictures  does not fit" in found.note


def test_an_error_that_is_not_one_of_memory_is_told_as_it_is(tiny: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    FakeDevice(9000).installed(monkeypatch)

    def step(self: TrainStep, window: Any, pictures: Any) -> Any:
        raise RuntimeError("The size of tensor a must match the size of tensor b")

    monkeypatch.setattr(TrainStep, "__call__", step)
    job = LibreYOLO("yolo9t")._job({**QUICK, "data": str(tiny), "batch": -1}, (), tiny.parent)
    with pytest.raises(RuntimeError, match="The size of tensor a"):
        autobatch.settle(job, torch.device("cpu"), 1, CudaMemory(torch.device("cpu")))


@pytest.mark.parametrize("world_size", [1, 2])
def test_where_not_even_one_picture_fits_it_is_one_sentence(world_size: int, tiny: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    device = FakeDevice(100).installed(monkeypatch)
    monkeypatch.setattr(TrainStep, "__call__", fake_step(device))
    job = LibreYOLO("yolo9t")._job({**QUICK, "data": str(tiny), "batch": -1}, (), tiny.parent)
    sentence = r"batch=-1: not even one picture of 64 pixels fits into 0\.0 GiB .* lower imgsz or take a smaller model"
    with pytest.raises(UserError, match=sentence):  # two ranks need more than there is, and still it is not into -1 GiB
        autobatch.settle(job, torch.device("cpu"), world_size, CudaMemory(torch.device("cpu")))


def test_the_bytes_of_a_step_are_counted_from_what_was_held_before_the_first_one(monkeypatch: pytest.MonkeyPatch) -> None:
    device, memory = FakeDevice(100).installed(monkeypatch), CudaMemory(torch.device("cuda", 0))
    device.others = 10
    tensor = device.take(40)
    device.give(device.take(20))
    assert memory.available() == 50  # 100 - 10 - 40
    with device.taken(6), device.taken(6):
        pass
    assert memory.peak() == 12
    device.take(2)  # a library's workspace, which stays: in the cache that the step left
    memory.clear()
    with device.taken(10):
        pass
    assert memory.peak() == 16  # 10, and the 6 that the workspace keeps
    memory.clear()
    assert memory.peak() == 6
    device.give(tensor)
    assert memory.available() == 84 and memory.peak() == 0  # held: 6


@pytest.mark.parametrize("where", ["this process", "this process, with gaps", "another process"])
def test_what_somebody_holds_is_neither_free_nor_part_of_a_step(where: str, tiny: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    device = FakeDevice(10_000).installed(monkeypatch)
    if where == "another process":
        device.others = 9000
    else:
        whole = device.take(9000)
        device.give(device.take(300))  # the allocator keeps it, and nobody holds it
    if where == "this process, with gaps":
        device.give(whole)
        device.take(5000)
    monkeypatch.setattr(TrainStep, "__call__", fake_step(device))
    job = LibreYOLO("yolo9t")._job({**QUICK, "data": str(tiny), "batch": -1, "memory_fraction": 0.5}, (), tiny.parent)
    found = autobatch.settle(job, torch.device("cpu"), 1, CudaMemory(torch.device("cpu")))
    assert found.batch == 4  # 100 + 4 * 100 are half of the 1000 that are free


def test_a_validation_does_not_measure() -> None:
    with pytest.raises(UserError, match=r"batch=-1 measures a training; give val a number of pictures"):
        LibreYOLO("yolo9t").val("shapes", batch=-1)


@pytest.mark.slow
@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="measures the memory of a GPU")
@pytest.mark.parametrize("more", [{}, {"cuda_graph": True, "nbs": 16}], ids=["plain", "graph and windows"])
def test_on_a_gpu_half_full_of_another_s_tensor_the_batch_that_is_promised_trains(more: dict[str, Any], tmp_path: Path) -> None:
    data = str(make_shapes(tmp_path / "set", num_train=96, num_val=8, size=64))
    device = torch.device("cuda", torch.cuda.device_count() - 1)  # on a machine with several, one that is not current
    others = torch.empty(torch.cuda.mem_get_info(device)[0] // 2, dtype=torch.uint8, device=device)
    free = torch.cuda.mem_get_info(device)[0]
    fraction = min(0.7, 12 * autobatch.GIB / free)  # a large GPU has no more to do than one of 32 GB
    keys = {**QUICK, "data": data, "imgsz": 640, "device": str(device), "memory_fraction": fraction, "project": str(tmp_path), "epochs": 1, **more}
    before = torch.cuda.memory_reserved(device)
    job = LibreYOLO("yolo9t")._job({**keys, "batch": -1}, (), tmp_path)
    found = autobatch.settle(job, device, 1)
    assert torch.cuda.memory_reserved(device) <= before, found.note
    assert found.batch > 1
    torch.cuda.reset_peak_memory_stats(device)
    trained = LibreYOLO("yolo9t").train(**{**keys, "batch": found.batch})
    assert trained["skipped_steps"] == 0
    assert torch.cuda.max_memory_reserved(device) - before < 1.1 * fraction * free, found.note
    del others  # held until here
