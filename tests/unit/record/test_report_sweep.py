"""The page that compares the jobs of a sweep."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from libreyolo.record import shell
from libreyolo.record.report.parallel import BOTTOM, GAP, HEIGHT, SIDE, TOP, parallel_coordinates
from libreyolo.record.report.run_page import write_run_report
from libreyolo.record.report.sweep_facts import read_sweep
from libreyolo.record.report.sweep_page import write_sweep_report
from tests.unit.record.report_pages import HOSTILE, Reader, make_run, read


@pytest.fixture(scope="module")
def sweep(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Twelve jobs: lr0 rises with the number, the metric is best at 4; job 5 failed while it trained, job 11 before it began, job 10 is killed."""
    folder = tmp_path_factory.mktemp("sweep")
    for job in range(12):
        typed = ["model=yolo9t", f"data='{HOSTILE}'", f"lr0={0.001 * 2**job}", f"optimizer={'sgd' if job % 2 else 'adamw'}"]
        failed = {"state": "failed", "metric": None, "error": f"RuntimeError: {HOSTILE}"} if job == 5 else {}
        state = failed or {"metric": 0.9 - 0.1 * abs(job - 4), "state": "running" if job == 10 else "completed"}
        run = make_run(folder / str(job), overrides=typed, **state)
        if job < 10:
            write_run_report(run, {})
    shutil.rmtree(folder / "11")
    (folder / "11" / ".hydra").mkdir(parents=True)
    (folder / "11" / ".hydra" / "overrides.yaml").write_text("[model=yolo9t, data=other, lr0=-1, optimizer=sgd]")
    (folder / "11" / "train.log").write_text("Training failed.\nTraceback ...\nlaunch.errors.BatchError: lr0=-1 is <too> small\n")
    (folder / "3" / "wandb").mkdir()
    (folder / "3" / "wandb" / "status.json").write_text("{}")  # of somebody else: not a job
    return folder


def page_of(sweep: Path) -> Reader:
    path = write_sweep_report(sweep)
    assert path == sweep / "report.html"
    return read(path.read_text(encoding="utf-8"))


def test_jobs_are_compared_best_first_and_those_without_a_metric_come_last(sweep):
    (head, *rows) = page_of(sweep).tables[0]
    assert head == ["job", "data", "lr0", "optimizer", "mAP50-95", "epoch", "state", "duration"]
    assert [row[0] for row in rows] == ["4", "3", "2", "6", "1", "7", "0", "8", "9", "10", "5", "11"]
    assert rows[0] == ["4", f"'{HOSTILE}'", "0.016", "adamw", "0.9000", "5", "completed", "0:00:08"]
    assert rows[-1] == ["11", "other", "-1", "sgd", "–", "–", "failed", "–"]


def test_each_job_that_has_a_page_is_linked(sweep):
    links = [link for link in page_of(sweep).values("a", "href") if "/" in link]
    assert sorted(links) == sorted(f"{job}/report.html" for job in range(10))
    assert all((sweep / link).exists() for link in links)


def test_jobs_that_did_not_complete_say_why(sweep):
    (rows,) = [rows[1:] for rows in page_of(sweep).tables if rows[0][:3] == ["job", "state", "reason"]]
    assert [row[:3] for row in rows] == [
        ["10", "running", "–"],
        ["5", "failed", f"RuntimeError: {HOSTILE}"],
        ["11", "failed", "lr0=-1 is <too> small"],
    ]


def test_what_every_job_shares_and_the_best_job_are_commands(sweep):
    words = page_of(sweep).words
    assert "model=yolo9t" in words
    assert any(text.startswith(shell.train("model=yolo9t")) and text.endswith("lr0=0.016 optimizer=adamw") for text in words)


def test_parallel_coordinates_place_every_job_and_leave_failed_ones_before_the_metric(tmp_path):
    for job, (lr0, metric) in enumerate([("0.1", 0.25), ("0.2", 0.75), ("0.3", None)]):
        make_run(tmp_path / str(job), overrides=[f"lr0={lr0}"], metric=metric, state="failed" if metric is None else "completed")
    reader = Reader()
    reader.feed(parallel_coordinates(read_sweep(tmp_path)))
    lines = [[tuple(map(float, point.split(","))) for point in points.split()] for points in reader.values("polyline", "points")]
    failed, worse, best = lines  # the best one on top
    length = HEIGHT - TOP - BOTTOM
    # The axes go from 0 to 0.3 and from 0 to 0.8.
    assert best == [(SIDE, round(HEIGHT - BOTTOM - length * 0.2 / 0.3, 1)), (SIDE + GAP, round(HEIGHT - BOTTOM - length * 0.75 / 0.8, 1))]
    assert worse == [(SIDE, round(HEIGHT - BOTTOM - length * 0.1 / 0.3, 1)), (SIDE + GAP, round(HEIGHT - BOTTOM - length * 0.25 / 0.8, 1))]
    assert failed == [(SIDE, TOP), (SIDE + GAP // 3, TOP)]
    assert "job 1: lr0=0.2; mAP50-95 0.7500" in reader.words and "job 2: lr0=0.3; failed" in reader.words


@pytest.mark.parametrize(("values", "metrics"), [(["lr0=1"], [0.5]), (["lr0=1", "lr0=1"], [0.5, 0.6]), (["lr0=1", "lr0=2"], [None, None])])
def test_there_are_no_coordinates_where_nothing_can_be_compared(values, metrics, tmp_path):
    for job, (value, metric) in enumerate(zip(values, metrics, strict=True)):
        make_run(tmp_path / str(job), overrides=[value], metric=metric)
    assert parallel_coordinates(read_sweep(tmp_path)) == ""
    page_of(tmp_path)


def test_a_sweep_without_a_job_has_no_page(tmp_path):
    (tmp_path / "multirun.yaml").write_text("{}")
    assert write_sweep_report(tmp_path) is None
    assert not (tmp_path / "report.html").exists()
