"""The scan is made once, and again whenever something changed."""

from __future__ import annotations

import os
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from libreyolo.data import scan, scan_cache
from libreyolo.data.detection import load_detection
from libreyolo.errors import UserError
from tests.unit.data.conftest import BuildSet, save_picture, write_text

BOX = "0 0.5 0.5 0.5 0.5\n"


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """The pictures that scans opened."""
    calls: list[Path] = []
    probe = scan.probe_picture

    def counting(path: Any) -> tuple[int, int]:
        calls.append(Path(path))
        return probe(path)

    monkeypatch.setattr(scan, "probe_picture", counting)
    return calls


def arrays_of(path: Path) -> list[Any]:
    images = load_detection(path).train
    return [images.sizes.tolist(), images.box_rows.tolist(), images.label_rows.tolist(), images.offsets.tolist(), images.stamps.tolist()]


def cached_files(cache_root: Path) -> list[Path]:
    return sorted((cache_root / "scan").glob("*.npz"))


def test_a_second_start_opens_no_picture_and_gives_and_tells_the_same(
    build_set: BuildSet, opened: list[Path], caplog: pytest.LogCaptureFixture
) -> None:
    path = build_set([BOX, "0 5 5 5 5\n", None, "", BOX])
    (path.parent / "images" / "train" / "04.jpg").write_bytes(b"")
    first, told = arrays_of(path), load_detection(path).report
    texts = [record.getMessage() for record in caplog.records]
    opened.clear()
    caplog.clear()
    assert arrays_of(path) == first
    assert opened == []
    assert load_detection(path).report == told
    assert [record.getMessage() for record in caplog.records] == texts
    assert len(told["train"].skipped) == len(told["train"].row_warnings) == 1


def change_label(root: Path) -> None:
    write_text(root / "labels" / "train" / "00.txt", "1 0.5 0.5 0.25 0.5\n")


def touch_label(root: Path) -> None:
    os.utime(root / "labels" / "train" / "00.txt", ns=(1, 1))


def change_picture(root: Path) -> None:
    save_picture(root / "images" / "train" / "00.jpg", (60, 60))


def add_picture(root: Path) -> None:
    save_picture(root / "images" / "train" / "zz.png")


def add_label(root: Path) -> None:
    write_text(root / "labels" / "train" / "01.txt", BOX)


def remove_label(root: Path) -> None:
    (root / "labels" / "train" / "00.txt").unlink()


def rename_class(root: Path) -> None:
    write_text(root / "data.yaml", (root / "data.yaml").read_text().replace("name1", "other"))


@pytest.mark.parametrize("change", [change_label, touch_label, change_picture, add_picture, add_label, remove_label, rename_class])
def test_any_change_of_the_set_is_noticed(build_set: BuildSet, opened: list[Path], cache_root: Path, change: Any) -> None:
    path = build_set([BOX, None])
    arrays_of(path)
    change(path.parent)
    opened.clear()
    found = arrays_of(path)
    assert len(opened) >= 2
    for file in cached_files(cache_root):
        file.unlink()
    assert arrays_of(path) == found
    assert len(cached_files(cache_root)) == 1


def test_fewer_classes_are_noticed_although_no_file_of_the_split_changed(build_set: BuildSet) -> None:
    path = build_set(["1 0.5 0.5 0.5 0.5\n"])
    load_detection(path)
    write_text(path, "train: images/train\nnames: [only]\n")
    with pytest.raises(UserError, match="class id 1"):
        load_detection(path)


def test_a_new_reader_version_scans_again(build_set: BuildSet, opened: list[Path], monkeypatch: pytest.MonkeyPatch) -> None:
    path = build_set([BOX])
    load_detection(path)
    monkeypatch.setattr(scan, "READER_VERSION", scan.READER_VERSION + 1)
    opened.clear()
    load_detection(path)
    assert len(opened) == 1


def cut(file: Path) -> None:
    file.write_bytes(file.read_bytes()[:-100])


def flip(file: Path) -> None:
    raw = bytearray(file.read_bytes())
    raw[len(raw) // 2] ^= 0xFF
    file.write_bytes(raw)


def empty(file: Path) -> None:
    file.write_bytes(b"")


def plain_array(file: Path) -> None:
    with file.open("wb") as stream:
        np.save(stream, np.zeros(3))


def pickled(file: Path) -> None:
    with file.open("wb") as stream:
        np.savez(stream, header=np.array([{"key": "x"}], dtype=object))


@pytest.mark.parametrize("harm", [cut, flip, empty, plain_array, pickled])
def test_a_damaged_cache_is_made_again_without_a_word(build_set: BuildSet, cache_root: Path, caplog: pytest.LogCaptureFixture, harm: Any) -> None:
    path = build_set([BOX, BOX], [BOX])
    first = arrays_of(path)
    for file in cached_files(cache_root):
        harm(file)
    assert arrays_of(path) == first
    assert caplog.records == []
    opened_again = scan_cache.load(f"{path} train", "another key")
    assert opened_again is None


def test_a_cache_folder_that_cannot_be_made_is_no_error(
    build_set: BuildSet, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("LIBREYOLO_CACHE", str(write_text(tmp_path / "a_file", "") / "below"))
    assert len(load_detection(build_set([BOX], [BOX])).train) == 1
    assert caplog.records == []


def test_nothing_unfinished_is_left_and_the_set_folder_stays_clean(build_set: BuildSet, cache_root: Path) -> None:
    path = build_set([BOX], [BOX])
    before = sorted(path.parent.rglob("*"))
    load_detection(path)
    assert sorted(path.parent.rglob("*")) == before
    assert len(cached_files(cache_root)) == len(list((cache_root / "scan").iterdir())) == 2


def test_many_at_once_agree(build_set: BuildSet) -> None:
    path = build_set([BOX, "", BOX])
    results: list[Any] = []
    threads = [threading.Thread(target=lambda: results.append(arrays_of(path))) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(results) == 8
    assert all(result == results[0] for result in results)
