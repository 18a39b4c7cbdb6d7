"""Two ranks on the CPU through train.py and through LibreYOLO.train: one run, its results, and nothing else."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from hydra.core.override_parser.overrides_parser import OverridesParser

from libreyolo import LibreYOLO
from libreyolo.resume import find_checkpoint
from tests.dist.doors.conftest import SMALL, TRAIN, Ended, Workplace, epochs_in, rows, words

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def hydra_run(shared_workplace: Workplace) -> Ended:
    """Two of three epochs, from a folder that is not the repository, with Hydra changing the working directory."""
    return shared_workplace.run(TRAIN, *words(nproc=2, data="data/data.yaml", epochs=3, stop_after_epoch=2), "hydra.job.chdir=true")


def test_the_hydra_door_makes_one_run_directory_with_hydra_s_files_and_a_row_for_each_epoch(hydra_run, shared_workplace):
    assert hydra_run.code == 0, hydra_run.err
    (run_dir,) = shared_workplace.runs
    assert [path.parent for path in shared_workplace.folder.rglob(".hydra")] == [run_dir]
    assert [path.parent for path in shared_workplace.folder.rglob("train.log")] == [run_dir]
    assert epochs_in(run_dir) == [1, 2]
    assert {path.name for path in (run_dir / "weights").iterdir()} == {"best.pt", "last.pt"}
    assert {path.name for path in shared_workplace.folder.iterdir()} == {"data", "tmp", "outputs", "cache"}
    assert shared_workplace.temporary == []


def test_the_log_says_how_many_ranks_with_which_backend_and_batch(hydra_run, shared_workplace):
    log = (shared_workplace.runs[0] / "train.log").read_text()
    assert "2 ranks on cpu (backend gloo, time-out 180 min), global batch 4 (2 on each rank)" in log


def test_every_name_that_a_run_makes_can_be_passed_back_as_an_override(hydra_run, shared_workplace):
    (run_dir,) = shared_workplace.runs
    parser = OverridesParser.create()
    for path in [run_dir, *run_dir.rglob("*")]:
        relative = str(path.relative_to(shared_workplace.folder))
        assert parser.parse_override(f"resume={relative}").value() == relative
    assert find_checkpoint(str(run_dir.relative_to(shared_workplace.folder)), Path("nowhere"), shared_workplace.folder) == run_dir / "weights/last.pt"


def test_a_chosen_directory_that_holds_a_run_is_refused_before_hydra_writes_into_it(hydra_run, shared_workplace):
    (run_dir,) = shared_workplace.runs
    before = {path: path.read_bytes() for path in run_dir.rglob("*") if path.is_file()}
    ended = shared_workplace.run(TRAIN, *words(nproc=2, data="data/data.yaml", seed=7), f"hydra.run.dir={run_dir}")
    assert ended.code == 1
    assert ended.err.strip() == (
        f"{run_dir} already holds a run, which would be overwritten: choose another directory, go on with resume={run_dir}, or say exist_ok=true."
    )
    assert {path: path.read_bytes() for path in run_dir.rglob("*") if path.is_file()} == before


def test_resume_goes_on_in_the_old_directory_with_two_ranks(hydra_run, shared_workplace):
    (run_dir,) = shared_workplace.runs
    relative = run_dir.relative_to(shared_workplace.folder)
    ended = shared_workplace.run(TRAIN, f"resume={relative}", "nproc=2", "device=cpu")
    assert ended.code == 0, ended.err
    assert shared_workplace.runs == [run_dir]
    assert epochs_in(run_dir) == [1, 2, 3]
    assert "after epoch 2" in (run_dir / "train.log").read_text()


CALLBACKS = """
import os
class Recorder:
    def __init__(self): self.calls = 0
    def on_epoch_end(self, event):
        self.calls += 1
        with open("calls.txt", "a") as file: file.write(f"{os.environ['RANK']} {event.epoch} {self.calls}\\n")
class Stopper:
    def on_epoch_end(self, event): event.stop("enough")
class Judge:
    def on_checkpoint(self, event):
        from libreyolo import LibreYOLO
        with open("judged.txt", "w") as file: file.write(repr(LibreYOLO(event.path).val(workers=0)["metrics/AR100"]))
"""
GUARDED = """
import json, os, sys
from pathlib import Path
from torch import distributed as dist
from libreyolo import LibreYOLO
from my_callbacks import Judge, Recorder, Stopper

if __name__ == "__main__":
    Path("once").mkdir()
    small = json.loads(sys.argv[1])
    before = dict(os.environ)
    model, recorder = LibreYOLO("yolo9t"), Recorder()
    first = model.train(data="data/data.yaml", epochs=2, stop_after_epoch=1, nproc=2, deterministic=True, callbacks=[recorder], **small)
    environ, group = dict(os.environ) == before, dist.is_initialized()
    found = model.predict("data/images/val/0.png", conf=0.0, max_det=5)
    again = LibreYOLO(first["last_checkpoint"])
    second = again.train(resume=True, nproc=2, device="cpu")
    third = again.train(data="data/data.yaml", epochs=3, nproc=2, loggers=["csv", Stopper()], callbacks=[Judge()], **small)
    print(json.dumps({
        "dirs": [first["save_dir"], second["save_dir"], third["save_dir"]], "losses": [len(r["epoch_losses"]) for r in (first, second, third)],
        "nc": model.nc, "names": model.names, "devices": [str(model.device), *{str(p.device) for p in model.net.parameters()}],
        "scores": [float(s) for s in found[0].conf], "labels": [int(c) for c in found[0].cls], "calls": recorder.calls,
        "stopped_by": third["stopped_by"], "environ": environ, "group": group,
        "weight": float(next(model.net.parameters()).double().sum()), "best": first["best_checkpoint"],
    }))
"""


@pytest.fixture(scope="module")
def python_run(tmp_path_factory):
    """A guarded script: trains one of two epochs, goes on with it, then fine-tunes from the result."""
    place = Workplace(tmp_path_factory.mktemp("python"))
    place.script(CALLBACKS, "my_callbacks.py")
    small = {key: value for key, value in SMALL.items() if key != "epochs"}
    ended = place.run(place.script(GUARDED), json.dumps(small))
    yield place, ended
    place.close()


@pytest.fixture(scope="module")
def told(python_run) -> dict:
    _, ended = python_run
    assert ended.code == 0, ended.err
    return json.loads(ended.out.strip().splitlines()[-1])


def test_results_and_best_weights_come_back_to_the_caller(told):
    state = torch.load(told["best"], weights_only=True)["model"]
    assert told["weight"] == pytest.approx(float(next(iter(state.values())).double().sum()), abs=1e-9)
    assert (told["nc"], list(told["names"].values())) == (2, ["red", "green"])
    assert told["devices"] == ["cpu", "cpu"]


def test_predict_works_after_the_class_count_has_changed(told, python_run):
    # max_det=5 at conf=0: boxes of so short a training overlap, and suppression leaves fewer on some machines.
    assert 1 <= len(told["scores"]) <= 5 and set(told["labels"]) <= {0, 1}
    (saved,) = LibreYOLO(told["best"]).predict(python_run[0].folder / "data" / "images" / "val" / "0.png", conf=0.0, max_det=5)
    assert told["scores"] == pytest.approx([float(score) for score in saved.conf], abs=1e-5)  # what the caller holds is what the file holds


def test_the_caller_s_process_is_as_before(told, python_run):
    assert told["environ"] and not told["group"]
    assert python_run[0].temporary == []


def test_callbacks_are_called_on_rank_0_only_and_live_in_its_process(told, python_run):
    calls = (python_run[0].folder / "calls.txt").read_text()
    assert calls == "0 1 1\n"
    assert told["calls"] == 0


def test_a_callback_may_validate_on_its_rank_while_the_other_waits(told, python_run):
    (row,) = rows(Path(told["dirs"][2]))
    assert float((python_run[0].folder / "judged.txt").read_text()) == pytest.approx(float(row["metrics/AR100"]), abs=1e-9)


def test_a_logger_of_ones_own_stops_both_ranks_at_the_same_epoch(told, python_run):
    run_dir = Path(told["dirs"][2])
    assert epochs_in(run_dir) == [1]
    status = json.loads((run_dir / "status.json").read_text())
    assert (status["state"], status["stopped_by"], told["stopped_by"]) == ("completed", "Stopper.on_epoch_end (enough)", status["stopped_by"])


def test_python_runs_are_named_one_after_another_and_resume_stays_in_its_own(told, python_run):
    outputs = python_run[0].folder / "outputs"
    assert told["dirs"] == [str(outputs / "exp"), str(outputs / "exp"), str(outputs / "exp2")]
    assert sorted(path.name for path in outputs.iterdir()) == ["exp", "exp2"]
    assert epochs_in(outputs / "exp") == [1, 2]
    assert epochs_in(outputs / "exp2") == [1]
