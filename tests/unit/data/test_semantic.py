"""Semantic sets as users have them: pictures with masks, pictures with polygons, and everything that may be wrong with them."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from libreyolo.data import mask_scan
from libreyolo.data.detection import load_detection
from libreyolo.data.semantic import load_semantic
from libreyolo.errors import UserError
from tests.unit.data.conftest import BuildSet, save_picture, write_text

HW = (24, 32)
Build = Callable[..., Path]


def save_mask(path: Path, values: np.ndarray | int, hw: tuple[int, int] = HW) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(np.broadcast_to(np.asarray(values, np.uint8), hw).copy()).save(path)
    return path


@pytest.fixture
def build(tmp_path: Path) -> Build:
    """Return a function that writes pictures with masks of these values (an array, a number, None: no mask) and returns the data.yaml."""

    def make(train: list[Any], val: list[Any] | None = None, *, keys: str = "", folder: str = "masks", root: Path = tmp_path / "set") -> Path:
        for split, masks in (("train", train), ("val", val or [])):
            for index, values in enumerate(masks):
                save_picture(root / "images" / split / f"{index:02d}.jpg", HW, seed=index)
                if values is not None:
                    save_mask(root / folder / split / f"{index:02d}.png", values)
        val_line = "" if val is None else "val: images/val\n"
        return write_text(root / "data.yaml", f"path: .\ntrain: images/train\n{val_line}names: [road, car, sky]\n{keys}")

    return make


def striped(*values: int) -> np.ndarray:
    """A mask of HW whose columns are split evenly among the values."""
    return np.repeat(np.array(values, np.uint8), HW[1] // len(values))[None, :]


def told(path: Path) -> str:
    with pytest.raises(UserError) as caught:
        load_semantic(path)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_pictures_come_with_their_masks_and_the_set_is_counted(build: Build) -> None:
    path = build([striped(0, 1), striped(1, 1, 2, 255), 0], [2])
    data = load_semantic(path)
    assert data.names == {0: "road", 1: "car", 2: "sky"}
    assert np.array_equal(data.train.mask(1), np.broadcast_to(striped(1, 1, 2, 255), HW))
    quarter = HW[0] * HW[1] // 4
    assert data.train.class_pixels.tolist() == [6 * quarter, 4 * quarter, quarter, quarter]
    assert data.train.class_pictures.tolist() == [2, 2, 1, 1]
    assert data.train.image(0).shape == (*HW, 3)
    assert data.val is not None
    assert len(data.val) == 1
    assert data.test is None


def test_masks_dir_and_label_mapping_are_followed_and_nothing_is_quietly_lost(build: Build, caplog: pytest.LogCaptureFixture) -> None:
    path = build([striped(7, 9)], keys="masks_dir: labels/ids\nlabel_mapping: {7: 0, 8: 2}\n", folder="labels/ids")
    for _ in range(2):  # the second time from the cache
        caplog.clear()
        data = load_semantic(path)
        assert np.unique(data.train.mask(0)).tolist() == [0, 255]
        assert "label_mapping leaves out the values 9 (384 px); those pixels are ignored" in caplog.text


@pytest.mark.parametrize("masks_dir", ["ann\\ids", ".\\ann\\ids\\", "./ann/ids/", "ann//ids"])
def test_masks_dir_may_be_written_as_on_any_system(build: Build, masks_dir: str) -> None:
    path = build([2], keys=f"masks_dir: {masks_dir}\n", folder="ann/ids")
    assert np.unique(load_semantic(path).train.mask(0)).tolist() == [2]


@pytest.mark.parametrize("masks_dir", ["/sets/masks", "C:\\sets\\masks", "~/masks"])
def test_a_masks_dir_that_begins_at_a_root_is_refused(build: Build, masks_dir: str) -> None:
    path = build([2], keys=f"masks_dir: {masks_dir}\n")
    assert told(path) == f"{path}: masks_dir must be the name that stands in a mask's path where images stands in its picture's, not {masks_dir!r}."


def test_masks_are_found_below_large_letters_and_by_names_in_other_code_points(build: Build) -> None:
    path = build([2, None])
    root = path.parent
    save_picture(root / "images" / "train" / "e\u0301.jpg", HW)
    save_mask(root / "masks" / "train" / "\u00e9.PNG", 1)
    save_picture(root / "images" / "train" / "\u00fc.jpg", HW)
    save_mask(root / "masks" / "train" / "u\u0308.tif", 0)
    (root / "images" / "train" / "01.jpg").unlink()
    (root / "images").rename(root / "Images")
    write_text(path, "train: Images/train\nnames: [road, car, sky]\n")
    data = load_semantic(path)
    assert {data.train.path(i).name: int(data.train.mask(i)[0, 0]) for i in range(3)} == {"00.jpg": 2, "e\u0301.jpg": 1, "\u00fc.jpg": 0}


def test_a_mask_is_found_by_its_stem_whatever_its_suffix(build: Build) -> None:
    path = build([None, None, None])
    folder = path.parent / "masks" / "train"
    save_mask(folder / "00.PNG", 1), save_mask(folder / "01.tif", 2), save_mask(folder / "02.bmp", 0)
    save_mask(folder / "spare.png", 99)  # of no picture: never looked at
    assert [int(load_semantic(path).train.mask(i)[0, 0]) for i in range(3)] == [1, 2, 0]


@pytest.mark.parametrize(
    ("values", "words"),
    [
        (striped(0, 3), "has the value 3 in 384 pixels, but the classes are 0..2 and 255 is ignored: correct names or nc, or say in label_mapping"),
        (striped(3, 4, 5, 200), "has the value 3, 4, 5, 200 in 768 pixels"),
    ],
)
def test_a_value_that_is_no_class_stops_the_run_with_file_value_and_count(build: Build, values: np.ndarray, words: str) -> None:
    said = told(build([0, values]))
    assert f"train: 1 mask is wrong: {Path('masks') / 'train' / '01.png'}" in said.replace(
        f"{Path(said.split('wrong: ')[1].split('/masks')[0])}/", ""
    )
    assert words in said


def test_a_mask_of_another_size_is_told_with_both_sizes(build: Build) -> None:
    path = build([0, 0])
    save_mask(path.parent / "masks" / "train" / "01.png", 0, (32, 24))
    assert "01.png is 24x32, its picture 32x24: make the mask from the picture as it is shown" in told(path)


def test_a_colour_mask_and_a_broken_one_are_told(build: Build) -> None:
    path = build([0, 0, 0])
    Image.new("RGB", (32, 24)).save(path.parent / "masks" / "train" / "00.png")
    (path.parent / "masks" / "train" / "02.png").write_bytes(b"nothing")
    said = told(path)
    assert "2 masks are wrong" in said
    assert "00.png: it is a picture of mode RGB" in said
    assert "02.png: it cannot be decoded" in said


def test_a_missing_mask_is_told_with_the_place_and_the_number(build: Build) -> None:
    path = build([0, None, None])
    said = told(path)
    assert "train: 2 of 3 pictures have no mask" in said
    assert f"there is no {path.parent / 'masks' / 'train' / '01.png'}" in said
    Image.new("L", (32, 24)).save(path.parent / "masks" / "train" / "01.jpg")
    assert "01.jpg is there, but only .png, .tif, .tiff, .bmp are read" in told(path)


def test_a_set_with_neither_masks_nor_labels_is_told_where_both_belong(build: Build) -> None:
    said = told(build([None, None]))
    assert "no picture has a mask or a label file" in said
    assert "masks/train/00.png" in said
    assert "train/00.txt" in said
    assert "name their folder by masks_dir" in said


def test_pictures_outside_a_folder_called_images_have_no_place_for_masks(tmp_path: Path) -> None:
    save_picture(tmp_path / "photos" / "0.jpg")
    path = write_text(tmp_path / "data.yaml", "train: photos\nnames: [a]\nmasks_dir: masks\n")
    assert "does not lie below a folder called images, which masks_dir could replace" in told(path)


def test_a_broken_picture_is_skipped_by_name_and_the_users_files_stay_as_they_are(build: Build, caplog: pytest.LogCaptureFixture) -> None:
    path = build([0, 1, 2], [0])
    broken = path.parent / "images" / "train" / "01.jpg"
    broken.write_bytes(broken.read_bytes()[:200])

    def digests() -> dict[str, str]:
        return {str(p): hashlib.sha256(p.read_bytes()).hexdigest() for p in path.parent.rglob("*") if p.is_file()}

    before = digests()
    train = load_semantic(path).train
    assert [int(train.mask(i)[0, 0]) for i in range(len(train))] == [0, 2]
    assert str(broken) in caplog.text
    assert digests() == before


def test_a_set_whose_pixels_are_all_ignored_is_warned_about(build: Build, caplog: pytest.LogCaptureFixture) -> None:
    load_semantic(build([255]))
    assert "every pixel of the training masks is ignored" in caplog.text
    assert "there are no val: pictures" in caplog.text


def test_a_class_without_a_pixel_is_warned_about_and_masks_of_0_and_255_are_explained(build: Build, caplog: pytest.LogCaptureFixture) -> None:
    load_semantic(build([striped(0, 1)]))
    assert "no pixel of the training masks has the class sky." in caplog.text
    caplog.clear()
    path = build([striped(0, 255)])
    load_semantic(path)
    assert "has the class car, sky; where masks hold 0 and 255 and mean a class by 255, say so: label_mapping: {0: 0, 255: 1}" in caplog.text
    write_text(path, path.read_text() + "label_mapping: {0: 0, 255: 1}\n")
    half = HW[0] * HW[1] // 2
    assert load_semantic(path).train.class_pixels.tolist() == [half, half, 0, 0]


# --- the cached scan ----------------------------------------------------------------------------------------------------------------------


def test_a_second_start_opens_nothing_and_a_changed_mask_is_seen(build: Build, monkeypatch: pytest.MonkeyPatch) -> None:
    path = build([0, 1], [2])
    first = load_semantic(path).train.class_pixels.tolist()
    opened: list[str] = []
    look = mask_scan.look_at_mask
    monkeypatch.setattr("libreyolo.data.mask_source.look_at_mask", lambda *given: (opened.append(given[0]), look(*given))[1])
    assert load_semantic(path).train.class_pixels.tolist() == first
    assert opened == []
    save_mask(path.parent / "masks" / "train" / "01.png", striped(1, 1, 2, 0))
    assert load_semantic(path).train.class_pixels.tolist() != first
    assert len(opened) == 2
    write_text(path, path.read_text() + "label_mapping: {0: 1, 1: 1, 2: 2}\n")
    assert load_semantic(path).train.class_pixels[0] == 0


def test_the_scans_of_two_tasks_stand_side_by_side(build: Build, cache_root: Path) -> None:
    path = build([0, 1])
    for index in range(2):
        write_text(path.parent / "labels" / "train" / f"{index:02d}.txt", "0 0.5 0.5 0.5 0.5\n")
    load_semantic(path), load_detection(path)
    kept = {file: file.stat().st_mtime_ns for file in (cache_root / "scan").iterdir()}
    assert len(kept) == 2
    load_semantic(path), load_detection(path)
    assert {file: file.stat().st_mtime_ns for file in (cache_root / "scan").iterdir()} == kept


def test_a_mask_that_changes_under_way_is_told(build: Build) -> None:
    path = build([0, 0, 0])
    train = load_semantic(path).train
    folder = path.parent / "masks" / "train"
    save_mask(folder / "00.png", 77)
    save_mask(folder / "01.png", 0, (10, 10))
    (folder / "02.png").unlink()
    for index, words in enumerate(("has changed since the scan", "has changed since the scan", "was fine at the scan, now there is no such file")):
        with pytest.raises(UserError, match=rf"{index:02d}.png {words}"):
            train.mask(index)


# --- polygons -----------------------------------------------------------------------------------------------------------------------------


def test_without_masks_polygons_are_painted_in_order_over_a_background_class(build_set: BuildSet, caplog: pytest.LogCaptureFixture) -> None:
    """A left half, over it a rectangle row, and a triangle with the envelope of another one: all are there."""
    rows = "0 0 0 0.5 0 0.5 1 0 1\n1 0.25 0.5 0.25 0.5\n0 0.75 0 1 0 1 1\n0 0.75 0 1 1 0.75 1\n"
    caplog.set_level(logging.INFO)
    data = load_semantic(build_set([rows, None], [""]))
    assert data.names == {0: "name0", 1: "name1", 2: "background"}
    mask = data.train.mask(0)
    assert mask.shape == HW
    assert (mask[12, 2], mask[12, 8], mask[12, 20], mask[2, 30], mask[22, 25]) == (0, 1, 2, 0, 0)
    assert (data.train.mask(1) == 2).all()
    assert "it has no masks: label files are painted, and background is class 2" in caplog.text


def test_a_wrong_label_row_is_told_with_file_and_line_and_a_useless_one_warned_about(build_set: BuildSet, caplog: pytest.LogCaptureFixture) -> None:
    path = build_set(["0 0.5 0.5 0.5 0.5\n0 5 5 5 5\n", None])
    assert (load_semantic(path).train.mask(0) == 0).any()
    assert "00.txt:2" in caplog.text
    write_text(path.parent / "labels" / "train" / "01.txt", "0 0.5 0.5 0.5 0.5\n2 0.1 0.1 0.9 0.1 0.9 0.9\n")
    assert "01.txt:2 has class id 2, valid ids are 0..1" in told(path)


def test_a_named_masks_dir_is_never_replaced_by_polygons(build_set: BuildSet) -> None:
    path = build_set(["0 0.5 0.5 0.5 0.5\n"], yaml="path: .\ntrain: images/train\nnames: [a, b]\nmasks_dir: masks\n")
    assert "1 of 1 pictures have no mask" in told(path)


def test_coco_boxes_are_no_masks(build_set: BuildSet) -> None:
    path = build_set(["0 0.5 0.5 0.5 0.5\n"], yaml="path: .\ntrain: images/train\nnames: [a, b]\nannotations: {train: a.json}\n")
    write_text(path.parent / "a.json", "{}")
    assert "annotations: gives boxes, but masks are wanted" in told(path)


def test_of_a_row_with_key_points_the_box_is_painted(build_set: BuildSet) -> None:
    path = build_set(["0 0.25 0.5 0.5 1 0.9 0.9 2\n"], yaml="path: .\ntrain: images/train\nnames: [a]\nkpt_shape: [1, 3]\n")
    mask = load_semantic(path).train.mask(0)
    assert (mask[:, :15] == 0).all()
    assert (mask[:, 18:] == 1).all()


@pytest.mark.parametrize("num_classes", [254, 255])
def test_the_background_of_polygons_is_never_the_ignored_value(build_set: BuildSet, num_classes: int) -> None:
    path = build_set(["253 0 0 1 0 1 1 0 1\n", ""], nc=num_classes)
    if num_classes == 255:
        assert "255 classes and the background, which polygons leave, are more than a mask can tell apart: at most 255, for 255 is ignored" in told(
            path
        )
    else:
        assert [np.unique(load_semantic(path).train.mask(i)).tolist() for i in range(2)] == [[253], [254]]
