"""Commands that work as they are printed."""

from __future__ import annotations

import shlex
import shutil
import sys
from pathlib import Path

import pytest

from libreyolo.record import shell


def an_interpreter(folder: Path) -> Path:
    path = folder / "bin" / "python"
    path.parent.mkdir(parents=True)
    path.touch(mode=0o755)
    return path


@pytest.mark.parametrize(
    ("place", "on_path", "expected"), [("here/.venv", False, ".venv/bin/python"), ("else where", False, None), ("any", True, "python")]
)
def test_the_interpreter_is_named_as_the_shell_finds_it(tmp_path, monkeypatch, place, on_path, expected):
    executable = an_interpreter(tmp_path / place)
    (tmp_path / "here").mkdir(exist_ok=True)
    monkeypatch.chdir(tmp_path / "here")
    monkeypatch.setattr(sys, "executable", str(executable))
    monkeypatch.setenv("PATH", str(executable.parent if on_path else tmp_path))
    assert shlex.split(shell.python()) == [expected or str(executable)]
    assert shutil.which(shlex.split(shell.python())[0]) or not on_path


def test_the_script_is_named_from_where_the_shell_stands(tmp_path, monkeypatch):
    monkeypatch.chdir(shell.TRAIN_PY.parent)
    assert shlex.split(shell.train("model=yolo9t", "device=[0,1]"))[1:] == ["train.py", "model=yolo9t", "device=[0,1]"]
    monkeypatch.chdir(tmp_path)
    assert shlex.split(shell.train("epochs=3"))[1:] == [str(shell.TRAIN_PY), "epochs=3"]


def test_without_the_script_a_run_goes_on_in_python(tmp_path, monkeypatch):
    monkeypatch.setattr(shell, "TRAIN_PY", tmp_path / "train.py")
    words = shlex.split(shell.go_on(tmp_path / "it's", 4))
    last = str(tmp_path / "it's" / "weights" / "last.pt")
    assert words[-2:] == ["-c", f"from libreyolo import LibreYOLO; LibreYOLO({last!r}).train(resume=True, epochs=4)"]
