"""Scripts as users write them: guarded, not guarded, from standard input, with a broken import."""

from __future__ import annotations

import contextlib

import psutil
import pytest

from launch.guard import GUARD_SENTENCE
from tests.dist.launch.conftest import until

pytestmark = pytest.mark.slow

UNGUARDED = """
from launch import spawn_ddp_train
from tests.dist.launch.ranks import say_where
print("result", spawn_ddp_train(say_where, (5,), num_processes=2)[0])
"""
GUARDED = """
from pathlib import Path
from launch import spawn_ddp_train
from tests.dist.launch.ranks import rank

def work(number):
    return number + rank()

if __name__ == "__main__":
    Path("once").mkdir()
    print("result", spawn_ddp_train(work, (5,), num_processes=2))
"""
BROKEN_IMPORT = """
if __name__ != "__main__":
    import no_such_package
from launch import spawn_ddp_train
from tests.dist.launch.ranks import say_where
if __name__ == "__main__":
    spawn_ddp_train(say_where, (5,), num_processes=2)
"""
SWALLOWS_EVERYTHING = """
import sys
from launch import spawn_ddp_train
from tests.dist.launch.ranks import say_where
try:
    spawn_ddp_train(say_where, (5,), num_processes=2)
except Exception as error:
    sys.exit(f"caught: {error}")
"""


def finished(process) -> tuple[int, str, str]:
    """Return exit code, output and errors; every descendant that it had is gone."""
    seen: dict[int, psutil.Process] = {}

    def over() -> bool:
        with contextlib.suppress(psutil.NoSuchProcess):
            seen.update({child.pid: child for child in psutil.Process(process.pid).children(recursive=True)})
        return process.poll() is not None

    until(over, "the script's end")
    out, err = process.communicate()
    until(lambda: not any(child.is_running() for child in seen.values()), "the end of all its processes", 15)
    return process.returncode, out, err


def temporary_files(tmp_path) -> list[str]:
    return [path.name for path in (tmp_path / "tmp").iterdir() if path.name.startswith("launch")]


def test_an_unguarded_script_ends_with_the_one_sentence(script, tmp_path):
    code, out, err = finished(script(UNGUARDED))
    assert code == 1 and "result" not in out
    assert err.count(GUARD_SENTENCE) == 1
    assert err.count("Traceback") == 1  # the parent's own; the workers' are not shown
    assert err.strip().endswith(GUARD_SENTENCE)
    assert temporary_files(tmp_path) == []


def test_a_script_that_catches_the_guard_in_the_worker_still_ends_with_it(script):
    code, _, err = finished(script(SWALLOWS_EVERYTHING))
    assert code == 1
    assert err.strip().splitlines()[-1] == f"caught: {GUARD_SENTENCE}"


def test_a_guarded_script_trains_and_its_main_part_runs_once(script, tmp_path):
    code, out, err = finished(script(GUARDED))
    assert (code, out.strip()) == (0, "result 5"), err
    assert (tmp_path / "once").is_dir()
    assert temporary_files(tmp_path) == []


def test_a_script_from_standard_input_is_refused_before_any_worker_starts(script):
    code, _, err = finished(script(GUARDED, stdin=True))
    assert code == 1
    assert "the script was read from standard input" in err and "save it as a .py file" in err
    assert "FileNotFoundError" not in err


def test_another_failure_of_the_import_is_shown_as_itself(script, tmp_path):
    code, _, err = finished(script(BROKEN_IMPORT))
    last = err[err.index("RankFailedError") :]
    assert code == 1
    assert "ended with exit code 1 while importing script.py" in last
    assert "ModuleNotFoundError: No module named 'no_such_package'" in last
    assert "guard" not in last
    assert temporary_files(tmp_path) == []
