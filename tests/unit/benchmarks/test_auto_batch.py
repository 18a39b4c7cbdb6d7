"""The figures of benchmarks.auto_batch: from a training's log and records to cells."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from benchmarks import auto_batch
from benchmarks.auto_batch import ROWS, Row, keys_of, lacks, outcome, read_log, table
from benchmarks.peers.call import parser_of
from benchmarks.peers.process import Ended
from benchmarks.peers.store import Result
from libreyolo import autobatch
from libreyolo.engine.capacity import Capacity, Measured

GIB = 2**30
RECIPE = SimpleNamespace(size="s", imgsz=640, memory_fraction=0.7, nbs=64)


def log_of(predicted: int = 40 * GIB) -> str:
    """What the project itself writes."""
    job: Any = SimpleNamespace(family=SimpleNamespace(name="yolo9"), recipe=RECIPE)
    capacity = Capacity(96, predicted, 41 * GIB, (Measured(2, 2 * GIB), Measured(8, None), Measured(96, 41 * GIB)))
    note = autobatch._table(job, capacity, torch.device("cuda:0"), 90 * GIB, 2, 64)
    return "\n".join(f"2026-01-31 12:00:00,000 INFO libreyolo.run: {line}" for line in note.splitlines())


def test_the_projects_own_log_is_understood() -> None:
    found = {"fit": 96.0, "predicted": 40.0, "reached": 41.0, "batch": 64.0, "allowed": 90.0}
    assert read_log(log_of()) == found
    assert read_log(log_of(predicted=0)) == {name: value for name, value in found.items() if name != "predicted"}
    assert read_log("nothing of it") == {}


def leave(run_dir: Path, log: str, memory: list[float]) -> Path:
    run_dir.mkdir()
    (run_dir / "train.log").write_text(log)
    lines = "".join(f"{epoch},{found}\n" for epoch, found in enumerate(memory, start=1))
    (run_dir / "results.csv").write_text(f"epoch,system/gpu_memory_gb\n{lines}")
    return run_dir


def test_the_highest_memory_of_the_epochs_counts_and_sizes_that_did_not_fit_are_no_failure(tmp_path: Path) -> None:
    found = outcome(Ended(0, [], [], 0.0, 1.0), leave(tmp_path / "run", log_of(), [42.0, 43.0]))
    assert found.state == "done" and found.values["full"] == "no"
    assert found.values["trained"] == pytest.approx(43e9 / GIB)


def test_a_training_that_ran_out_of_memory_is_told_from_one_that_failed_otherwise(tmp_path: Path) -> None:
    full = outcome(Ended(1, [], ["torch.OutOfMemoryError: CUDA out of memory. Tried"], 0.0, 1.0), leave(tmp_path / "a", log_of(), []))
    assert (full.state, full.values["full"], full.values["batch"]) == ("failed", "yes", 64.0)
    other = outcome(Ended(1, [], ["UserError: no such folder"], 0.0, 1.0), leave(tmp_path / "b", log_of(), []))
    assert (other.state, other.values["full"], other.note) == ("failed", "no", "exit 1: UserError: no such folder")
    assert outcome(Ended(1, [], [], 0.0, 1.0), tmp_path / "nothing").values == {"full": "no"}


def test_the_table_compares_two_gpus_with_one() -> None:
    done = {
        "yolo9s": Result("done", {"fit": 96.0, "batch": 96.0, "allowed": 90.0, "predicted": 40.0, "reached": 41.0, "trained": 42.5, "full": "no"}),
        "yolo9s-2-gpus": Result("done", {"fit": 96.0, "batch": 192.0, "full": "no"}),
        "yolo9s-2-gpus-nbs64": Result("failed", {"full": "yes"}, "exit 1: out"),
    }
    lines = table(done, ["m"]).splitlines()
    assert "| yolo9s | 96 | 96 |  | 90.00 | 40.00 | 41.00 | 42.50 | no |  |" in lines
    assert "| yolo9s-2-gpus | 96 | 192 | 2.00 |  |  |  |  | no |  |" in lines
    assert "| yolo9s-2-gpus-nbs64 |  |  |  |  |  |  |  | yes | failed: exit 1: out |" in lines


def test_rows_have_names_of_their_own_and_those_for_other_machines_are_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    names = [row.name for row in ROWS]
    assert len(set(names)) == len(names) == 20 and {row.on_one for row in ROWS} <= set(names)
    assert {row.name for row in ROWS if lacks(row, "cpu")} == {row.name for row in ROWS if row.half_full}
    monkeypatch.setattr(auto_batch.torch.cuda, "device_count", lambda: 1)
    assert {row.name for row in ROWS if lacks(row, "cuda")} == {row.name for row in ROWS if row.gpus == 2}


def test_what_is_typed_is_the_recipes_own_size_on_the_rows_devices(tmp_path: Path) -> None:
    parser = parser_of("x", None, ["a"])
    row = Row(auto_batch.SUBJECTS[-1], gpus=2, nbs=64)
    on_gpus = keys_of(row, parser.parse_args(["--out", "x", "--workers", "3"]), tmp_path, tmp_path)
    assert (on_gpus["batch"], on_gpus["nbs"], on_gpus["device"], on_gpus["workers"]) == (-1, 64, [0, 1], 3)
    assert "imgsz" not in on_gpus and "nproc" not in on_gpus
    on_cpu = keys_of(row, parser.parse_args(["--out", "x", "--device", "cpu", "--imgsz", "64"]), tmp_path, tmp_path)
    assert (on_cpu["device"], on_cpu["nproc"], on_cpu["imgsz"]) == ("cpu", 2, 64)
