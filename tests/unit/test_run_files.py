"""Files of a run directory on a machine that does not take them: one sentence, and never in the place of what really ended the run."""

from __future__ import annotations

import errno
import json
import os
import shutil
import subprocess
from pathlib import Path

import pytest
import torch

from libreyolo import door, run_files
from libreyolo.errors import UserError, of_the_machine, want_of_the_machine

FULL = OSError(errno.ENOSPC, "No space left on device")


def test_a_log_that_cannot_be_written_does_not_hide_what_ended_the_run(tmp_path: Path) -> None:
    run_files.append_failure(tmp_path, ValueError("the cause"))
    assert (tmp_path / "train.log").read_text().rstrip().endswith("ValueError: the cause")
    (tmp_path / "file").touch()
    run_files.append_failure(tmp_path / "file" / "run", ValueError("the cause"))  # raises nothing


def test_a_failed_write_of_the_arguments_leaves_no_temporary_file(tmp_path: Path) -> None:
    (tmp_path / "train_config.yaml").mkdir()
    with pytest.raises(OSError):
        run_files.write_config(tmp_path, {"epochs": 1})
    assert [path.name for path in tmp_path.iterdir()] == ["train_config.yaml"]


def test_a_place_where_no_run_directory_can_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    sentence = r"file/day could not be made \(Not a directory\): choose another place .*project="
    with pytest.raises(UserError, match=sentence) as told, run_files.made_below(tmp_path / "file"):
        (tmp_path / "file" / "day").mkdir(parents=True)
    assert isinstance(told.value.__cause__, OSError)


def test_an_error_of_the_machine_is_a_sentence_at_the_hydra_door_too() -> None:
    """Hydra writes its own files before the training begins."""
    error = RuntimeError("Hydra's own")
    error.__cause__ = OSError(errno.EROFS, "Read-only file system", "outputs/.hydra")
    assert (door.sentence(error) or "").startswith("outputs/.hydra: Read-only file system; choose another place with project=")
    for number in (errno.EIO, errno.EPERM):
        error.__cause__ = OSError(number, "of no file")
        assert door.sentence(error) is None


def test_a_folder_that_is_gone_is_not_said_to_forbid_anything(tmp_path: Path) -> None:
    assert want_of_the_machine(OSError(errno.EPERM, "Operation not permitted"), tmp_path / "removed") is None


def test_a_write_that_failed_names_the_folders_that_are_full(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    usage = shutil.disk_usage(tmp_path)
    monkeypatch.setattr(shutil, "disk_usage", lambda folder: usage._replace(free=0 if folder == str(tmp_path) else 1 << 30))
    assert (want_of_the_machine(FULL) or "").startswith(f"{tmp_path}: No space left on device; make room, or choose another place")
    monkeypatch.setattr(shutil, "disk_usage", lambda folder: usage._replace(free=0 if folder == "run" else 1 << 30))
    with pytest.raises(UserError, match=r"^run: No space left on device; make room"), of_the_machine(Path("run")):
        raise FULL
    monkeypatch.setattr(shutil, "disk_usage", lambda folder: usage._replace(free=0 if folder == "/dev/shm" else 1 << 30))
    if Path("/dev/shm").is_dir():
        assert want_of_the_machine(FULL) == "/dev/shm: No space left on device; give a container more with --shm-size=8g, or say workers=0."
    monkeypatch.setattr(shutil, "disk_usage", lambda folder: usage._replace(free=1 << 30))
    with pytest.raises(UserError, match=r"^No space left on device; make room"), of_the_machine():
        raise FULL


@pytest.mark.parametrize("text", ["{bad", "{}", "\x00"])
def test_a_resumed_run_writes_its_environment_whatever_a_crash_left_of_the_earlier_ones(text: str, tmp_path: Path) -> None:
    (tmp_path / "environment.json").write_text(text)
    for lives in (1, 2):
        run_files.write_environment(tmp_path, world_size=1, device=torch.device("cpu"), source=tmp_path)
        assert len(json.loads((tmp_path / "environment.json").read_text())) == lives


def test_looking_at_the_commit_takes_no_lock_of_the_repository(tmp_path: Path) -> None:
    """A file that was touched makes `git status` write the index anew, unless it is told not to."""

    def git(*words: str) -> None:
        subprocess.run(["git", "-C", str(tmp_path), "-c", "user.name=a", "-c", "user.email=a@b", *words], check=True, capture_output=True)

    (tmp_path / "a.txt").write_text("a")
    git("init")
    git("add", ".")
    git("commit", "-m", "first")
    os.utime(tmp_path / "a.txt", (0, 0))
    before = (tmp_path / ".git" / "index").read_bytes()
    assert run_files.git_state(tmp_path)["modified"] is False
    assert (tmp_path / ".git" / "index").read_bytes() == before
