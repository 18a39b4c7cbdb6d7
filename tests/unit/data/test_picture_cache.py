"""Caches change the time a picture takes, never its pixels."""

from __future__ import annotations

import multiprocessing
import os
import pickle
import threading
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from libreyolo.data import picture_cache, picture_set, shared_buffer
from libreyolo.data.detection import load_detection
from libreyolo.data.image_set import ImageSet
from libreyolo.data.memory import available_ram_bytes
from libreyolo.data.shared_buffer import open_shared_buffer
from tests.unit.data.conftest import BuildSet, save_picture

BOX = "0 0.5 0.5 0.5 0.5\n"
MAX_HW = (30, 40)


@pytest.fixture
def shm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "shm"
    folder.mkdir()
    for module in (picture_cache, shared_buffer):
        monkeypatch.setattr(module, "shared_memory_folder", lambda: folder)
    return folder


@pytest.fixture
def set_yaml(build_set: BuildSet) -> Path:
    path = build_set([BOX] * 4)
    save_picture(path.parent / "images" / "train" / "01.jpg", (300, 200), seed=7)  # large enough for a JPEG to be decoded at half its size
    save_picture(path.parent / "images" / "train" / "03.jpg", (31, 40), seed=8)
    return path


@pytest.fixture
def decoded(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Path]]:
    calls: list[Path] = []
    decode = picture_set.decode_picture

    def counting(path: Path, target_hw: tuple[int, int] | None = None) -> np.ndarray:
        calls.append(path)
        return decode(path, target_hw)

    monkeypatch.setattr(picture_set, "decode_picture", counting)
    yield calls


def pixels_of(images: ImageSet, max_hw: tuple[int, int] | None = MAX_HW) -> list[np.ndarray]:
    return [images.image(index, max_hw) for index in range(len(images))]


def assert_same(first: list[np.ndarray], second: list[np.ndarray]) -> None:
    for a, b in zip(first, second, strict=True):
        np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize("cache", ["auto", "ram", "disk"])
@pytest.mark.parametrize("max_hw", [MAX_HW, None, (16, 16)])
def test_a_cached_picture_has_the_pixels_of_an_uncached_one(set_yaml: Path, shm: Path, cache, max_hw) -> None:
    plain = pixels_of(load_detection(set_yaml).train, max_hw)
    images = load_detection(set_yaml, cache=cache, max_hw=MAX_HW).train
    assert_same(pixels_of(images, max_hw), plain)
    assert_same(pixels_of(images, max_hw), plain)


@pytest.mark.parametrize("cache", ["ram", "disk"])
def test_what_the_cache_hands_out_can_be_changed_without_harm(set_yaml: Path, shm: Path, cache) -> None:
    images = load_detection(set_yaml, cache=cache, max_hw=MAX_HW).train
    before = pixels_of(images)
    for picture in pixels_of(images):
        picture[:] = 0
    assert_same(pixels_of(images), before)


def test_ram_serves_without_decoding_and_whatever_fits_unshrunk_too(set_yaml: Path, shm: Path, decoded: list[Path]) -> None:
    images = load_detection(set_yaml, cache="ram", max_hw=MAX_HW).train
    assert len(decoded) == 4
    pixels_of(images)
    images.image(0, None)  # 24 x 32 fits: the same pixels
    assert len(decoded) == 4
    images.image(1, None)
    assert len(decoded) == 5


def test_two_sets_of_one_host_share_one_buffer_and_the_last_removes_it(set_yaml: Path, shm: Path, decoded: list[Path]) -> None:
    first = load_detection(set_yaml, cache="ram", max_hw=MAX_HW).train
    second = load_detection(set_yaml, cache="ram", max_hw=MAX_HW).train
    assert len(decoded) == 4
    assert len(list(shm.iterdir())) == 1
    expected = pixels_of(second)
    first.cache.close()  # type: ignore[union-attr]
    assert len(list(shm.iterdir())) == 1
    assert_same(pixels_of(second), expected)
    second.cache.close()  # type: ignore[union-attr]
    assert list(shm.iterdir()) == []


def test_a_pickled_set_maps_the_same_memory(set_yaml: Path, shm: Path, decoded: list[Path]) -> None:
    images = load_detection(set_yaml, cache="ram", max_hw=MAX_HW).train
    raw = pickle.dumps(images)
    assert len(raw) < 4000  # arrays of four pictures; the pixels alone are more than 10,000 bytes
    copy = pickle.loads(raw)
    assert_same(pixels_of(copy), pixels_of(images))
    assert len(decoded) == 4


def test_the_buffer_goes_with_the_set(set_yaml: Path, shm: Path) -> None:
    images = load_detection(set_yaml, cache="ram", max_hw=MAX_HW).train
    assert len(list(shm.iterdir())) == 1
    del images
    assert list(shm.iterdir()) == []


def test_a_buffer_that_nobody_holds_is_removed_at_the_next_start(set_yaml: Path, shm: Path) -> None:
    orphan = shm / f"libreyolo-{os.getuid()}-{'0' * 32}.pixels"
    orphan.write_bytes(b"left by a killed process")
    images = load_detection(set_yaml, cache="ram", max_hw=MAX_HW).train
    assert not orphan.exists()
    assert images.cache is not None


def test_a_half_filled_buffer_is_filled_again(shm: Path) -> None:
    with pytest.raises(RuntimeError, match="killed"):
        open_shared_buffer("k", 8, lambda size: None, _fail_half_way)
    assert list(shm.iterdir()) == []
    (shm / f"libreyolo-{os.getuid()}-k.pixels").write_bytes(bytes(9))  # the right length, without the mark that it was finished
    buffer = open_shared_buffer("k", 8, lambda size: None, lambda array: array.fill(7))
    assert buffer.array.tolist() == [7] * 8
    assert not buffer.array.flags.writeable


def _fail_half_way(array: np.ndarray) -> None:
    array[:4] = 1
    raise RuntimeError("killed")


def test_processes_that_start_at_once_fill_the_buffer_once(shm: Path, tmp_path: Path) -> None:
    context = multiprocessing.get_context("fork")
    gate = context.Barrier(4)
    children = [context.Process(target=_open_in_child, args=(gate, tmp_path)) for _ in range(4)]
    for child in children:
        child.start()
    for child in children:
        child.join()
    assert [child.exitcode for child in children] == [0] * 4
    assert len(list(tmp_path.glob("filled-*"))) == 1


def _open_in_child(gate: threading.Barrier, folder: Path) -> None:
    def fill(array: np.ndarray) -> None:
        (folder / f"filled-{os.getpid()}").touch()
        array[:] = np.arange(100)

    gate.wait()
    buffer = open_shared_buffer("at once", 100, lambda size: None, fill)
    assert buffer.array.tolist() == list(range(100))
    gate.wait()  # all hold it before one lets go


def test_a_forked_child_that_ends_leaves_the_buffer_to_its_parent(set_yaml: Path, shm: Path) -> None:
    images = load_detection(set_yaml, cache="ram", max_hw=MAX_HW).train
    expected = pixels_of(images)
    child = multiprocessing.get_context("fork").Process(target=_close_in_child, args=(images,))
    child.start()
    child.join()
    assert child.exitcode == 0
    assert len(list(shm.iterdir())) == 1
    assert_same(pixels_of(images), expected)


def _close_in_child(images: ImageSet) -> None:
    images.image(0, MAX_HW)
    images.cache.close()  # type: ignore[union-attr]


@pytest.mark.parametrize("short", ["memory", "shared memory"])
def test_ram_is_turned_off_with_a_warning_where_room_is_short(
    set_yaml: Path, shm: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, decoded: list[Path], short: str
) -> None:
    needed = sum(picture.size for picture in pixels_of(load_detection(set_yaml).train))
    caplog.clear()
    decoded.clear()
    free = int(needed / 0.8) - 10
    if short == "memory":
        monkeypatch.setattr(picture_cache, "available_ram_bytes", lambda: free)
    else:
        monkeypatch.setattr(picture_cache.shutil, "disk_usage", lambda path: type("Usage", (), {"free": free}))
    images = load_detection(set_yaml, cache="ram", max_hw=MAX_HW).train
    assert images.cache is None
    assert decoded == []
    assert "cache=ram is off" in caplog.text
    assert list(shm.iterdir()) == []
    monkeypatch.setattr(picture_cache, "available_ram_bytes", lambda: free + 20)
    monkeypatch.setattr(picture_cache.shutil, "disk_usage", lambda path: type("Usage", (), {"free": free + 20}))
    assert load_detection(set_yaml, cache="ram", max_hw=MAX_HW).train.cache is not None


def test_auto_keeps_what_takes_a_fifth_of_the_free_memory_and_otherwise_says_so_without_a_warning(
    set_yaml: Path, shm: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, decoded: list[Path]
) -> None:
    needed = sum(picture.size for picture in pixels_of(load_detection(set_yaml).train))
    decoded.clear()
    monkeypatch.setattr(picture_cache, "available_ram_bytes", lambda: needed * 5 - 1)
    with caplog.at_level("INFO"):
        assert load_detection(set_yaml, cache="auto", max_hw=MAX_HW).train.cache is None
    assert decoded == [] and list(shm.iterdir()) == []
    (line,) = [record for record in caplog.records if "cache=" in record.getMessage()]
    assert line.levelname == "INFO" and "more than 20% of the 0.00 GiB free in memory" in line.getMessage()
    monkeypatch.setattr(picture_cache, "available_ram_bytes", lambda: needed * 5)
    images = load_detection(set_yaml, cache="auto", max_hw=MAX_HW).train
    assert len(decoded) == 4
    assert_same(pixels_of(images), pixels_of(load_detection(set_yaml).train))
    # The next rank of the host finds less free, and shares the copy that is there.
    monkeypatch.setattr(picture_cache, "available_ram_bytes", lambda: needed)
    decoded.clear()
    assert load_detection(set_yaml, cache="auto", max_hw=MAX_HW).train.cache is not None
    assert decoded == []


def test_auto_writes_nothing_where_shared_memory_is_a_folder_on_a_disk(set_yaml: Path, shm: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(picture_cache, "IN_MEMORY", shm / "none")
    assert load_detection(set_yaml, cache="auto", max_hw=MAX_HW).train.cache is None
    assert load_detection(set_yaml, cache="ram", max_hw=MAX_HW).train.cache is not None


def test_a_part_of_a_kept_picture_keeps_nothing_else_in_memory(set_yaml: Path, shm: Path, decoded: list[Path]) -> None:
    images = load_detection(set_yaml, cache="ram", max_hw=MAX_HW).train
    whole = images.image(0)
    decoded.clear()
    part = images.part(0, (3, 4, 20, 30))
    np.testing.assert_array_equal(part, whole[3:20, 4:30])
    assert part.base is None and part.flags.writeable
    assert decoded == []


def test_free_memory_is_known_here() -> None:
    assert 2**20 < available_ram_bytes() < 2**50


def test_disk_survives_the_run_and_is_not_decoded_again(set_yaml: Path, decoded: list[Path]) -> None:
    first = pixels_of(load_detection(set_yaml, cache="disk", max_hw=MAX_HW).train)
    assert len(decoded) == 4
    assert_same(pixels_of(load_detection(set_yaml, cache="disk", max_hw=MAX_HW).train), first)
    assert len(decoded) == 4


def test_a_changed_picture_is_not_served_from_the_disk(set_yaml: Path) -> None:
    before = pixels_of(load_detection(set_yaml, cache="disk", max_hw=MAX_HW).train)
    save_picture(set_yaml.parent / "images" / "train" / "00.jpg", seed=99)
    os.utime(set_yaml.parent / "images" / "train" / "00.jpg", ns=(5, 5))
    after = load_detection(set_yaml, cache="disk", max_hw=MAX_HW).train.image(0, MAX_HW)
    assert not np.array_equal(after, before[0])
    np.testing.assert_array_equal(after, load_detection(set_yaml).train.image(0, MAX_HW))


@pytest.mark.parametrize("harm", ["cut", "empty", "other shape"])
def test_a_damaged_file_on_disk_is_made_again(set_yaml: Path, cache_root: Path, harm: str, decoded: list[Path]) -> None:
    images = load_detection(set_yaml, cache="disk", max_hw=MAX_HW).train
    expected = pixels_of(images)
    for path in (cache_root / "pictures").rglob("*.npy"):
        if harm == "other shape":
            np.save(path, np.zeros((2, 2, 3), np.uint8))
        else:
            path.write_bytes(path.read_bytes()[:-50] if harm == "cut" else b"")
    assert_same(pixels_of(images), expected)
    assert len(decoded) == 8
    assert_same(pixels_of(images), expected)
    assert len(decoded) == 8


def test_disk_is_turned_off_with_a_warning_where_the_folder_cannot_be_made(
    set_yaml: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("LIBREYOLO_CACHE", str(tmp_path / "file" / "below"))
    assert load_detection(set_yaml, cache="disk", max_hw=MAX_HW).train.cache is None
    assert "cache=disk is off" in caplog.text
