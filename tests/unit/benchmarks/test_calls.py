"""A measurement that needs several calls: what is kept, what is missing, when a row is started; and the processes that it runs."""

from __future__ import annotations

import json
import os
import select
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from benchmarks.peers import process
from benchmarks.peers.call import MARGIN, Task, go_on, parser_of
from benchmarks.peers.process import run
from benchmarks.peers.store import Result, SettingsError, Store

NAMES = ["first", "second", "third"]


def call(out: Path, tasks: Mapping[str, Task], *words: str, settings: Mapping[str, int] | None = None) -> int:
    chosen = parser_of("x", None, NAMES).parse_args(["--out", str(out), *words])
    return go_on("rows", chosen, settings or {"batch": 4}, tasks, lambda rows, machines: " ".join(rows))


def tasks_of(measured: list[str], answer: Callable[[str], Result | None] = lambda name: Result("done", {"x": 1.0}), **lacks: str) -> dict[str, Task]:
    def task(name: str) -> Task:
        def measure(left: float) -> Result | None:
            measured.append(name)
            return answer(name)

        return Task(100.0, lacks.get(name, ""), lambda: None, measure)

    return {name: task(name) for name in NAMES}


def test_a_call_that_is_cut_off_keeps_its_rows_and_the_next_one_measures_only_the_others(tmp_path: Path) -> None:
    def breaks(name: str) -> Result:
        if name == "second":
            raise KeyboardInterrupt
        return Result("done", {"x": 1.0})

    measured: list[str] = []
    with pytest.raises(KeyboardInterrupt):
        call(tmp_path, tasks_of(measured, breaks))
    assert (tmp_path / "rows.md").read_text() == "first"
    assert json.loads((tmp_path / "rows.json").read_text())["rows"]["first"]["values"] == {"x": 1.0}
    assert call(tmp_path, tasks_of(measured)) == 0
    assert measured == ["first", "second", "second", "third"]
    assert (tmp_path / "rows.md").read_text() == "first second third"


def test_only_some_rows_and_some_of_them_again(tmp_path: Path) -> None:
    measured: list[str] = []
    assert call(tmp_path, tasks_of(measured), "--only", "third", "first") == 0
    assert call(tmp_path, tasks_of(measured), "--only", "third") == 0
    assert call(tmp_path, tasks_of(measured), "--only", "third", "--again") == 0
    assert measured == ["third", "first", "third"]


def test_a_row_starts_only_where_half_of_its_limit_is_left_and_one_that_the_budget_ends_is_missing(tmp_path: Path) -> None:
    measured: list[str] = []
    assert call(tmp_path, tasks_of(measured), "--budget", str(MARGIN + 45)) == 3
    assert measured == [] and not (tmp_path / "rows.json").exists()
    assert call(tmp_path, tasks_of(measured, lambda name: None), "--budget", str(MARGIN + 55)) == 3
    assert measured == NAMES and not (tmp_path / "rows.json").exists()


def test_what_this_machine_lacks_is_missing_and_what_is_not_installed_is_a_row_that_is_tried_again(tmp_path: Path) -> None:
    measured: list[str] = []
    not_here = tasks_of(measured, lambda name: Result("not here", note="it is not installed"), second="it needs 2 GPU(s), here is 1")
    assert call(tmp_path, not_here) == 3
    assert measured == ["first", "third"]
    assert (tmp_path / "rows.md").read_text() == "first third"
    assert call(tmp_path, tasks_of(measured)) == 0
    assert measured[2:] == NAMES


def test_a_row_that_failed_is_not_measured_again(tmp_path: Path) -> None:
    measured: list[str] = []
    assert call(tmp_path, tasks_of(measured, lambda name: Result("failed"))) == 0
    assert call(tmp_path, tasks_of(measured)) == 0
    assert measured == NAMES


def test_rows_of_other_settings_cannot_stand_in_one_table(tmp_path: Path) -> None:
    Store(tmp_path, "rows", {"batch": 4}).keep("first", Result("done"))
    with pytest.raises(SettingsError, match=r"rows.json holds rows of other settings \(batch=4 there, 8 here\): name another --out"):
        Store(tmp_path, "rows", {"batch": 8})


def test_events_of_a_process_come_back_and_the_rest_is_its_tail(tmp_path: Path) -> None:
    script = "import sys; print('talk'); print('50%|## BENCH {\"event\": \"epoch\", \"time\": 2.5}'); print('BENCH not json'); sys.exit(7)"
    ended = run([sys.executable, "-c", script], cwd=tmp_path, limit=60)
    assert (ended.code, ended.tail) == (7, ["talk"])
    assert ended.of("epoch") == [{"event": "epoch", "time": 2.5}] and ended.of("other") == []


def test_a_process_beyond_its_limit_is_cut_off(tmp_path: Path) -> None:
    assert run([sys.executable, "-c", "import threading; threading.Event().wait()"], cwd=tmp_path, limit=0.1).code is None


@pytest.mark.skipif(not hasattr(os, "pidfd_open"), reason="the system can't tell when another's child has ended")
def test_nothing_of_a_process_is_left_running(tmp_path: Path) -> None:
    child = "[sys.executable, '-c', 'import threading; threading.Event().wait()']"
    ended = run([sys.executable, "-c", f"import subprocess, sys; print(subprocess.Popen({child}).pid)"], cwd=tmp_path, limit=60)
    assert ended.code == 0
    try:
        handle = os.pidfd_open(int(ended.tail[0]))
    except ProcessLookupError:
        return
    try:
        assert select.select([handle], [], [], 10)[0]  # readable as soon as it has ended
    finally:
        os.close(handle)


KILLED_IN_A_ROW = """
import sys
from pathlib import Path
from benchmarks.peers import process
from benchmarks.peers.call import Task, go_on, parser_of
from benchmarks.peers.process import run

child = "import os, sys, threading; open(sys.argv[1], 'w').write(str(os.getpid())); threading.Event().wait()"
measure = lambda left: run([sys.executable, "-c", child, sys.argv[1]], cwd=Path.cwd(), limit=100)
chosen = parser_of("x", None, ["row"]).parse_args(["--out", "out"])
go_on("rows", chosen, {}, {"row": Task(100.0, "", lambda: None, measure)}, lambda rows, machines: "")
"""


@pytest.mark.skipif(not hasattr(os, "pidfd_open"), reason="the system can't tell when another's child has ended")
def test_a_call_that_is_terminated_ends_what_it_runs(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pid")
    told = os.open(tmp_path / "pid", os.O_RDWR | os.O_NONBLOCK)
    env = {**os.environ, "PYTHONPATH": str(Path(process.__file__).parents[2])}
    call = subprocess.Popen([sys.executable, "-c", KILLED_IN_A_ROW, str(tmp_path / "pid")], cwd=tmp_path, env=env)
    try:
        assert select.select([told], [], [], 120)[0]  # the child runs
        handle = os.pidfd_open(int(os.read(told, 100)))
    finally:
        call.terminate()
        os.close(told)
    try:
        assert call.wait(60) == 143
        assert select.select([handle], [], [], 10)[0]
    finally:
        os.close(handle)


@pytest.mark.skipif(not hasattr(os, "sched_getaffinity"), reason="the system can't bind processes to cores")
def test_a_process_has_the_cores_that_it_is_given_and_this_one_keeps_its_own(tmp_path: Path) -> None:
    before = os.sched_getaffinity(0)
    script = "import json, os; print('BENCH', json.dumps({'event': 'cores', 'cores': sorted(os.sched_getaffinity(0))}))"
    ended = run([sys.executable, "-c", script], cwd=tmp_path, limit=60, cores=[min(before)])
    assert ended.of("cores")[0]["cores"] == [min(before)]
    assert os.sched_getaffinity(0) == before
