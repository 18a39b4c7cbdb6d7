"""A file is the old one or the whole new one, whatever happens while it is written."""

from __future__ import annotations

import errno
import os
import shutil
import stat
from pathlib import Path
from typing import Any

import pytest
import torch

from libreyolo.engine import checkpoint
from libreyolo.errors import UserError


def half_then(error: BaseException, monkeypatch: pytest.MonkeyPatch) -> None:
    """Make torch.save write some bytes and fail."""

    def save(content: Any, stream: Any) -> None:
        stream.write(b"PK\x03\x04 half a file")
        stream.flush()
        raise error

    monkeypatch.setattr(torch, "save", save)


@pytest.mark.parametrize(
    "error",
    [OSError(errno.ENOSPC, "No space left on device"), RuntimeError("unexpected pos 64 vs 0"), KeyboardInterrupt(), MemoryError()],
)
def test_a_failed_write_leaves_the_old_file_and_no_temporary(error: BaseException, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    checkpoint.write({"epoch": 1}, tmp_path / "last.pt")
    half_then(error, monkeypatch)
    # What the user can mend is a sentence; an interruption and a bug stay what they are.
    expected = UserError if isinstance(error, (OSError, RuntimeError)) else type(error)
    with pytest.raises(expected) as caught:
        checkpoint.write({"epoch": 2}, tmp_path / "last.pt")
    assert checkpoint.read(tmp_path / "last.pt") == {"epoch": 1}
    assert [p.name for p in tmp_path.iterdir()] == ["last.pt"]
    if isinstance(error, OSError):
        assert str(caught.value).startswith(f"{tmp_path / 'last.pt'} could not be written (No space left on device);")


def test_a_copy_is_the_file_to_the_byte_and_a_failed_one_leaves_what_was_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    best, last = tmp_path / "best.pt", tmp_path / "last.pt"
    checkpoint.write({"epoch": 1}, best)
    checkpoint.write_copy(best, last)
    assert last.read_bytes() == best.read_bytes() and last.stat().st_ino != best.stat().st_ino
    checkpoint.write({"epoch": 2}, best)

    def full(source: Any, target: Any, length: int) -> None:
        target.write(source.read(10))
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(shutil, "copyfileobj", full)
    with pytest.raises(UserError, match=r"last\.pt could not be written \(No space left on device\)"):
        checkpoint.write_copy(best, last)
    assert checkpoint.read(last) == {"epoch": 1}
    assert sorted(p.name for p in tmp_path.iterdir()) == ["best.pt", "last.pt"]


def test_a_place_that_cannot_be_written_is_a_sentence(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for path in (tmp_path / "file" / "last.pt", tmp_path):
        with pytest.raises(UserError, match="could not be written"):
            checkpoint.write({}, path)
    assert [p.name for p in tmp_path.iterdir()] == ["file"]


def test_folders_are_made_and_the_file_has_the_rights_of_any_other(tmp_path: Path) -> None:
    checkpoint.write({}, tmp_path / "a" / "b.pt")
    (tmp_path / "plain").touch()
    assert stat.S_IMODE((tmp_path / "a" / "b.pt").stat().st_mode) == stat.S_IMODE((tmp_path / "plain").stat().st_mode)


def test_the_new_content_is_on_the_disk_before_it_takes_the_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    happened = []
    monkeypatch.setattr(os, "fsync", lambda handle: happened.append("flushed"))
    replace = Path.replace
    monkeypatch.setattr(Path, "replace", lambda self, target: (happened.append("renamed"), replace(self, target))[1])
    checkpoint.write({}, tmp_path / "last.pt")
    assert happened[:2] == ["flushed", "renamed"]


def test_what_killed_writers_left_is_removed_and_nothing_else(tmp_path: Path) -> None:
    for name in (".last.pt.123.tmp", ".best.pt.9.tmp", "last.pt", "notes.tmp"):
        (tmp_path / name).touch()
    checkpoint.remove_leftovers(tmp_path)
    assert {p.name for p in tmp_path.iterdir()} == {"last.pt", "notes.tmp"}
    checkpoint.remove_leftovers(tmp_path / "not there")
