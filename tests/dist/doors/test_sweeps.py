"""Sweeps: each job a whole life, failures summed up at the end, the metric returned, the process as before."""

from __future__ import annotations

import json

import pytest
import yaml

from tests.dist.doors.conftest import TRAIN, Workplace, epochs_in, rows, words

pytestmark = pytest.mark.slow

# A Hydra callback that notes, after each job, what a job could leave behind.
SPY = """
import gc, json, logging, multiprocessing, os, signal, threading
from pathlib import Path
from hydra.experimental.callback import Callback

class Spy(Callback):
    def on_job_end(self, config, job_return, **kwargs):
        import torch
        from launch import run_lock
        gc.collect()
        handlers = [signal.getsignal(n) for n in (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2)]
        loggers = [logging.getLogger(n) for n in ("", "libreyolo", "launch", "py.warnings")]
        value = job_return._return_value
        note = {
            "status": job_return.status.name, "value": value if isinstance(value, float) else None,
            "left": {
                "group": torch.distributed.is_initialized(), "rank": [n for n in ("RANK", "WORLD_SIZE", "MASTER_PORT") if n in os.environ],
                "signals": [str(h) for h in handlers], "log_handlers": [len(l.handlers) for l in loggers],
                "networks": sum(isinstance(o, torch.nn.Module) for o in gc.get_objects()),
                "deterministic": torch.are_deterministic_algorithms_enabled(),
                "threads": threading.active_count(), "files": len(os.listdir("/proc/self/fd")), "children": len(multiprocessing.active_children()),
                "kept": len(run_lock._held), "environ": sorted(n for n in os.environ if n.startswith(("CUBLAS", "OMP", "TORCH"))),
            },
        }
        with Path("notes.jsonl").open("a") as file:
            file.write(json.dumps(note) + "\\n")
"""


def sweep(workplace: Workplace, **changes: object):
    workplace.script(SPY, "spy.py")
    return workplace.run(TRAIN, "-m", "+hydra.callbacks.spy._target_=spy.Spy", *words(data="data/data.yaml", **changes))


def notes(workplace: Workplace) -> list[dict]:
    return [json.loads(line) for line in (workplace.folder / "notes.jsonl").read_text().splitlines()]


def test_a_sweep_over_two_ranks_runs_every_job_and_sums_up_the_failed_one(workplace):
    ended = sweep(workplace, nproc=2, batch="4,3,2")
    (sweep_dir,) = workplace.runs
    assert sorted(path.name for path in sweep_dir.iterdir()) == ["0", "1", "2", "multirun.yaml", "report.html"]
    assert [epochs_in(sweep_dir / job) for job in ("0", "2")] == [[1], [1]]
    for job, batch in (("0", 4), ("1", 3), ("2", 2)):
        assert f"batch={batch}" in yaml.safe_load((sweep_dir / job / ".hydra" / "overrides.yaml").read_text())
    assert [note["status"] for note in notes(workplace)] == ["COMPLETED", "FAILED", "COMPLETED"]
    assert [note["value"] for note in notes(workplace) if note["status"] == "COMPLETED"] == [
        float(rows(sweep_dir / job)[-1]["best_metric"]) for job in ("0", "2")
    ]
    first = notes(workplace)[0]["left"]
    assert first["group"] is False and first["rank"] == [] and first["kept"] == 0
    assert [note["left"] for note in notes(workplace)[1:]] == [first, first]  # of the failed job too: no network hangs on its exception

    assert ended.code == 1
    summary = ended.err.strip().splitlines()[-2:]
    assert summary[0] == "1 of 3 jobs failed:"
    assert summary[1].startswith("  job 1 (")
    assert "batch=3" in summary[1] and "batch=3 is the global batch and must be divisible by world_size=2" in summary[1]
    assert "Traceback" not in ended.err
    log = (sweep_dir / "1" / "train.log").read_text()
    assert "Traceback" in log and "must be divisible by world_size=2" in log
    page = (sweep_dir / "report.html").read_text()
    assert all(f'href="{job}/report.html"' in page and (sweep_dir / job / "report.html").exists() for job in ("0", "2"))
    assert "batch=3 is the global batch and must be divisible by world_size=2" in page and "BatchError" not in page
    assert str(sweep_dir / "report.html") in ended.err
    assert workplace.temporary == []


def test_jobs_of_one_process_leave_nothing_to_each_other_and_log_alike(workplace):
    ended = sweep(workplace, seed="1,2,3", deterministic=True)
    assert ended.code == 0, ended.err
    (sweep_dir,) = workplace.runs
    left = [note["left"] for note in notes(workplace)]
    assert left[1] == left[0] and left[2] == left[0]
    assert left[0]["kept"] == 0  # other jobs may train in its directory
    assert not left[0]["deterministic"] and "CUBLAS_WORKSPACE_CONFIG" not in left[0]["environ"]
    logs = [(sweep_dir / job / "train.log").read_text().splitlines() for job in ("0", "1", "2")]
    # Loggers stay awake, and each line is said once, in its own file.
    assert len(logs[0]) == len(logs[1]) == len(logs[2])
    assert sum("starts from random weights" in line for line in logs[2]) == 1
    assert ended.out.count("yolo9t, run directory") + ended.err.count("yolo9t, run directory") == 3


def test_a_sweep_over_devices_says_that_it_is_one_job_for_each(workplace):
    ended = workplace.run(TRAIN, "-m", *words(data="data/data.yaml", device="0,1"), environ={"CUDA_VISIBLE_DEVICES": ""})
    assert ended.code == 1
    assert "2 jobs with one device each (job 0: device 0, job 1: device 1)" in ended.out + ended.err
    assert "2 of 2 jobs failed:" in ended.err
    assert ended.err.count("asks for CUDA, but no CUDA device is visible here") == 2


def test_a_sweep_directory_that_holds_runs_is_refused(workplace):
    old = workplace.folder / "old" / "0"
    old.mkdir(parents=True)
    (old / "results.csv").write_text("epoch\n1\n")
    ended = workplace.run(TRAIN, "-m", *words(data="data/data.yaml", seed="1,2"), "hydra.sweep.dir=old")
    assert ended.code == 1
    assert f"{workplace.folder / 'old'} already holds the runs of a sweep" in ended.err
    assert [path.name for path in old.iterdir()] == ["results.csv"]
