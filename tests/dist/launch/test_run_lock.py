"""One training at a time in a run directory: who gets in, who is told what, and what a death leaves behind."""

from __future__ import annotations

import errno
import os
import platform
import re
from pathlib import Path

import psutil
import pytest

from launch import RunDirectoryError, alone_in, is_one_sentence, run_lock
from tests.dist.launch.other_job import another_job_in, gets_in

pytestmark = pytest.mark.skipif(run_lock.fcntl is None, reason="this system has no file locks")


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_lock, "PATIENCE_SECONDS", 0.0)


def test_a_second_job_is_told_who_is_there_and_changes_nothing(tmp_path: Path) -> None:
    with another_job_in(tmp_path) as other:
        before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
        with pytest.raises(RunDirectoryError) as told, alone_in(tmp_path):
            pass
        since = r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d[+-]\d{4}"
        assert re.fullmatch(
            f"{re.escape(str(tmp_path))} is in use by process {other.pid} on {re.escape(platform.node())} since {since}: wait for its end, or end "
            r"it, and give this command again; to train beside it choose another directory \(no resume=, no exist_ok=true\)\.",
            str(told.value),
        )
        assert is_one_sentence(told.value)
        assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before


def test_the_end_of_a_block_lets_others_in_and_blocks_inside_it_do_not(tmp_path: Path) -> None:
    link = tmp_path / "link"
    (tmp_path / "run").mkdir()
    link.symlink_to(tmp_path / "run")
    with alone_in(link):
        with alone_in(tmp_path / "run"):
            assert not gets_in(tmp_path / "run")
        assert not gets_in(tmp_path / "run")
    assert gets_in(tmp_path / "run")
    with pytest.raises(KeyError), alone_in(link):
        raise KeyError
    assert gets_in(link)


def test_a_killed_job_leaves_no_lock_although_a_child_of_it_lives_on(tmp_path: Path) -> None:
    """A loader worker is such a child: it lives for seconds after its rank."""
    alive, child_lives = os.pipe()

    def fork() -> None:
        os.close(child_lives)
        if os.fork() == 0:
            os.read(alive, 1)  # until the test closes the other end
            os._exit(0)

    with another_job_in(tmp_path, inside=fork) as other:
        assert not gets_in(tmp_path)
        other.kill()
        assert (tmp_path / run_lock.LOCK_FILE).stat().st_size > 0  # what is left means nothing
        assert gets_in(tmp_path)
    os.close(child_lives)
    os.close(alive)


def test_a_child_that_is_forked_inside_takes_no_lock_from_its_parent(tmp_path: Path) -> None:
    with alone_in(tmp_path):
        pid = os.fork()
        if pid == 0:
            os._exit(0)
        os.waitpid(pid, 0)
        assert not gets_in(tmp_path)


def test_who_comes_while_another_leaves_waits_for_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setattr(run_lock, "PATIENCE_SECONDS", 600.0)
    with another_job_in(tmp_path) as other:
        monkeypatch.setattr(run_lock.time, "sleep", lambda seconds: other.end())
        with alone_in(tmp_path):
            assert other.ended
    assert [record.getMessage() for record in caplog.records if "waiting up to 600 s" in record.getMessage()] != []


def test_a_job_s_own_processes_share_it_and_the_last_one_lets_go(tmp_path: Path) -> None:
    with another_job_in(tmp_path) as parent, another_job_in(tmp_path, joining=True):
        parent.kill()
        assert not gets_in(tmp_path)
    assert gets_in(tmp_path)


def test_of_two_that_come_at_the_same_moment_the_one_that_signed_last_has_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """flock lets go for a moment when the lock becomes a shared one."""
    sign = run_lock._sign

    def and_another_signs(descriptor: int) -> bytes:
        own, me = sign(descriptor), str(os.getpid())
        os.pwrite(descriptor, own.replace(me.encode(), b"9" * len(me)), 0)
        return own

    monkeypatch.setattr(run_lock, "_sign", and_another_signs)
    with pytest.raises(RunDirectoryError, match=r"in use by process 9+ on"), alone_in(tmp_path):
        pass
    monkeypatch.undo()
    assert gets_in(tmp_path)


def test_where_there_are_no_locks_a_training_goes_on_without(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(descriptor: int, operation: int) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    with alone_in(tmp_path / "nowhere"):
        pass
    monkeypatch.setattr(run_lock.fcntl, "flock", refused)
    before = psutil.Process().num_fds()
    with alone_in(tmp_path), alone_in(tmp_path):
        pass
    assert psutil.Process().num_fds() == before
    monkeypatch.setattr(run_lock, "fcntl", None)
    with alone_in(tmp_path):
        pass


def test_a_note_that_a_crash_cut_short_leaves_the_sentence(tmp_path: Path) -> None:
    with another_job_in(tmp_path):
        for text in ("", "{", "[]", "{}", "7"):
            (tmp_path / run_lock.LOCK_FILE).write_text(text)
            with pytest.raises(RunDirectoryError, match="is in use by another process: wait for its end"), alone_in(tmp_path):
                pass
