"""Caches that are damaged anywhere, shared by processes, or in folders that nobody may write to."""

from __future__ import annotations

import hashlib
import multiprocessing
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import BinaryIO

import numpy as np
import pytest

from libreyolo.data import scan_cache
from libreyolo.data.cache_folder import cache_folder, write_atomically
from libreyolo.data.detection import load_detection
from libreyolo.data.scan_result import Scan, SplitReport
from tests.unit.data.conftest import BuildSet, save_picture, write_text

BOX = "0 0.5 0.5 0.5 0.5\n"
SHARED = 3


def small_scan() -> Scan:
    report = SplitReport("train", num_pictures=2, skipped=[("a.png", "the file is empty")], row_warnings=["b.txt:1 has no area"])
    return Scan(
        kept=np.array([0, 2]),
        sizes=np.array([[4, 6], [5, 7]], np.int32),
        boxes=np.array([[0, 0, 0.5, 1]], np.float32),
        labels=np.array([1]),
        offsets=np.array([0, 1, 1]),
        stamps=np.array([[3, 4], [5, 6]]),
        report=report,
    )


def same(found: Scan | None, expected: Scan) -> bool:
    """Whether a cache answered rightly: not at all, or with exactly what was saved."""
    if found is None:
        return True
    arrays = ("kept", "sizes", "boxes", "labels", "offsets", "stamps")
    return found.report == expected.report and all(np.array_equal(getattr(found, name), getattr(expected, name)) for name in arrays)


def test_a_scan_that_is_cut_or_changed_at_any_place_is_made_again_or_is_the_same() -> None:
    scan_cache.save("x", "key", small_scan())
    path = scan_cache.cache_file("x")
    whole = path.read_bytes()
    assert scan_cache.load("x", "key") is not None
    for place in range(0, len(whole), 19):
        path.write_bytes(whole[:place])
        assert same(scan_cache.load("x", "key"), small_scan())
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 0xFF]) + whole[place + 1 :])
        assert same(scan_cache.load("x", "key"), small_scan())


@pytest.mark.parametrize(
    "harm", [lambda raw: raw[:40], lambda raw: raw.replace(b"(24, 32, 3)", b"(2**9999999)"[:11]), lambda raw: b"PK\x03\x04" + raw]
)
def test_a_damaged_picture_on_disk_is_made_again(build_set: BuildSet, harm: Callable[[bytes], bytes]) -> None:
    data = load_detection(build_set([BOX], [BOX]), cache="disk")
    picture = data.train.image(0)
    (file,) = cache_folder("pictures").rglob("*.npy")
    file.write_bytes(harm(file.read_bytes()))
    np.testing.assert_array_equal(data.train.image(0), picture)


def answers(path: Path, start: multiprocessing.synchronize.Barrier, told: multiprocessing.Queue, number: int) -> None:  # type: ignore[name-defined,type-arg]
    """Load the set again and again while another process spoils the caches; tell what was seen."""
    seen = set()
    start.wait()
    for _ in range(6):
        data = load_detection(path, cache="disk", max_hw=(16, 16))
        digest = hashlib.sha256(data.train.box_rows.tobytes() + data.train.sizes.tobytes())
        for index in range(len(data.train)):
            digest.update(data.train.image(index, (16, 16)).tobytes())
        seen.add(digest.hexdigest())
        if number == 0:
            for file in (*cache_folder("scan").glob("*.npz"), *cache_folder("pictures").rglob("*.npy")):
                other = file.with_name(f"other{file.name}")
                other.write_bytes(b"cut off")
                other.replace(file)
    told.put(seen)


def test_processes_that_share_caches_and_spoil_them_all_see_the_same_set(build_set: BuildSet) -> None:
    path = build_set([BOX, "", BOX, "1 0.2 0.2 0.1 0.1\n"], [BOX])
    context = multiprocessing.get_context("spawn")
    start, told = context.Barrier(SHARED), context.Queue()
    processes = [context.Process(target=answers, args=(path, start, told, number)) for number in range(SHARED)]
    for process in processes:
        process.start()
    seen = [told.get(timeout=120) for _ in processes]
    for process in processes:
        process.join()
    assert [process.exitcode for process in processes] == [0] * SHARED
    assert len(set.union(*seen)) == 1
    left = [file.name for kind in ("scan", "pictures") for file in cache_folder(kind).rglob("*") if file.is_file()]
    assert left
    assert not [name for name in left if name.startswith(".")], "nothing unfinished is left"


@pytest.fixture
def shared_folder() -> Iterator[Path]:
    """A folder that every user may enter; pytest's own are for its user alone."""
    folder = Path(tempfile.mkdtemp())
    folder.chmod(0o755)
    yield folder
    for place, _, _ in os.walk(folder):
        Path(place).chmod(0o755)
    shutil.rmtree(folder)


def as_a_user_without_rights(work: Callable[[], bool]) -> int:
    """Do `work` in a child that is not root, for whom read-only folders mean something; return its exit code (0: it was true)."""
    child = os.fork()
    if child == 0:
        try:
            if os.getuid() == 0:
                os.setgid(65534)
                os.setuid(65534)
            os._exit(0 if work() else 1)
        except BaseException:
            os._exit(2)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


@pytest.mark.parametrize("cache", [False, "disk"])
def test_a_set_and_a_cache_folder_that_may_not_be_written_to_are_read_all_the_same(
    shared_folder: Path, monkeypatch: pytest.MonkeyPatch, cache: bool | str
) -> None:
    root, caches = shared_folder / "set", shared_folder / "cache"
    save_picture(root / "images" / "a.png")
    write_text(root / "labels" / "a.txt", BOX)
    path = write_text(root / "data.yaml", "train: images\nval: images\nnames: [x]\n")
    caches.mkdir()
    for place, _, _ in os.walk(shared_folder):
        Path(place).chmod(0o555)
    monkeypatch.setenv("LIBREYOLO_CACHE", str(caches))

    def read() -> bool:
        train = load_detection(path, cache=cache).train  # type: ignore[arg-type]
        return len(train) == 1 and train.image(0).shape == (24, 32, 3) and not os.access(caches, os.W_OK)

    assert as_a_user_without_rights(read) == 0
    assert list(caches.iterdir()) == []


def test_what_may_not_be_read_is_told_by_name(shared_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = shared_folder / "set"
    for name in ("a", "b", "c"):
        save_picture(root / "images" / f"{name}.png")
        write_text(root / "labels" / f"{name}.txt", BOX)
    path = write_text(root / "data.yaml", "train: images\nval: images\nnames: [x]\n")
    (root / "images" / "a.png").chmod(0)
    monkeypatch.setenv("LIBREYOLO_CACHE", str(shared_folder / "cache"))

    def skipped() -> bool:
        ((file, reason),) = load_detection(path).report["train"].skipped
        return file.endswith("a.png") and reason == "it cannot be read (Permission denied)"

    def refused(word: str) -> Callable[[], bool]:
        def read() -> bool:
            try:
                load_detection(path)
            except ValueError as error:
                return word in str(error) and "Permission denied" in str(error)
            return False

        return read

    assert as_a_user_without_rights(skipped) == 0
    (root / "labels" / "b.txt").chmod(0)
    assert as_a_user_without_rights(refused("b.txt:1 cannot be read")) == 0
    (root / "images").chmod(0)
    assert as_a_user_without_rights(refused("images")) == 0
    (root / "images").chmod(0o755)


def test_a_cache_of_another_set_under_this_one_s_name_is_ignored(build_set: BuildSet, tmp_path: Path) -> None:
    first, second = build_set([BOX, BOX], [BOX]), build_set([BOX], [BOX], root=tmp_path / "other")
    load_detection(first), load_detection(second)
    name = scan_cache.cache_file(f"{second} train")
    name.write_bytes(scan_cache.cache_file(f"{first} train").read_bytes())
    assert len(load_detection(second).train) == 1


def test_a_reader_sees_the_old_file_until_the_new_one_is_whole(tmp_path: Path) -> None:
    path = tmp_path / "a"
    path.write_bytes(b"old")

    def write(file: BinaryIO) -> None:
        file.write(b"new" * 100_000)
        file.flush()
        assert path.read_bytes() == b"old"

    def fail(file: BinaryIO) -> None:
        write(file)
        raise OSError("no room")

    with pytest.raises(OSError, match="no room"):
        write_atomically(path, fail)
    assert (path.read_bytes(), [file.name for file in tmp_path.iterdir()]) == (b"old", ["a"])
    replaced = path.stat().st_ino
    write_atomically(path, write)
    assert (path.read_bytes(), [file.name for file in tmp_path.iterdir()]) == (b"new" * 100_000, ["a"])
    assert path.stat().st_ino != replaced, "the old file is replaced, never opened for writing"
