"""load_detection on whole sets: what is kept, told and refused."""

from __future__ import annotations

import hashlib
import io
import logging
import os
import pickle
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from libreyolo.data.counterparts import label_paths
from libreyolo.data.detection import load_detection
from libreyolo.errors import UserError
from tests.unit.data.conftest import BuildSet, save_picture, write_text

BOX = "0 0.5 0.5 0.5 0.5\n"


def warnings_of(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]


def digest_of(root: Path) -> dict[str, str]:
    return {
        str(path.relative_to(root)): hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else "folder" for path in sorted(root.rglob("*"))
    }


# --- arrays -----------------------------------------------------------------------------------------------------------------------------


def test_pictures_sizes_and_boxes_come_out_exactly(build_set: BuildSet, caplog: pytest.LogCaptureFixture) -> None:
    data = load_detection(build_set([BOX, "", "1 0.25 0.5 0.5 1\n0 0.75 0.25 0.5 0.5\n"], [BOX]))
    assert (len(data.train), data.nc, data.names) == (3, 2, {0: "name0", 1: "name1"})
    assert data.train.path(2) == data.yaml_path.parent / "images" / "train" / "02.jpg"
    assert data.train.size(0) == (24, 32)
    boxes, labels = data.train.boxes(2)
    assert (boxes.dtype, labels.dtype) == (np.float32, np.int64)
    assert boxes.tolist() == [[0, 0, 0.5, 1], [0.5, 0, 1, 0.5]]
    assert labels.tolist() == [1, 0]
    assert data.train.truth(2)[0].tolist() == [[0, 0, 16, 24], [16, 0, 32, 12]]
    assert data.train.boxes(1)[0].shape == (0, 4)
    assert data.train.labels_histogram().tolist() == [2, 1]
    assert data.val is not None
    assert len(data.val) == 1
    assert data.test is None
    assert warnings_of(caplog) == []


def test_an_exif_rotated_picture_has_its_boxes_in_the_upright_frame(tmp_path: Path) -> None:
    exif = Image.Exif()
    exif[0x0112] = 6
    (tmp_path / "images").mkdir()
    Image.new("RGB", (40, 20)).save(tmp_path / "images" / "a.jpg", exif=exif)
    write_text(tmp_path / "labels" / "a.txt", "0 0.5 0.25 1 0.5\n")
    images = load_detection(write_text(tmp_path / "data.yaml", "train: images\nnames: [x]\n")).train
    assert images.size(0) == (40, 20)
    assert images.image(0).shape == (40, 20, 3)
    assert images.truth(0)[0].tolist() == [[0, 0, 20, 20]]


def test_the_background_of_case_b50_is_kept_and_counted_apart(build_set: BuildSet, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    data = load_detection(build_set(["", " \n\t\n", "", "", "", "", "", "\r\n", None, BOX]))
    report = data.report["train"]
    assert len(data.train) == 10
    assert (report.num_empty_labels, report.num_missing_labels, report.num_background, report.num_boxes) == (8, 1, 9, 1)
    assert "8 empty label files, 1 missing" in caplog.text


def test_bad_rows_cost_neither_their_picture_nor_its_good_rows(build_set: BuildSet, caplog: pytest.LogCaptureFixture) -> None:
    path = build_set([f"{BOX}0 512 300 40 40\n{BOX}", "0 0.5 0.5 0 0.1\n"], [BOX])
    data = load_detection(path)
    assert [len(data.train.boxes(index)[1]) for index in range(2)] == [1, 0]
    labels = path.parent / "labels" / "train"
    told = data.report["train"].row_warnings
    assert [text.split(" ")[0] for text in told] == [f"{labels / '00.txt'}:2", f"{labels / '00.txt'}:3", f"{labels / '01.txt'}:1"]
    assert all(text in caplog.text for text in told)


def test_a_set_of_background_alone_gives_a_warning(build_set: BuildSet, caplog: pytest.LogCaptureFixture) -> None:
    load_detection(build_set(["", None], [BOX]))
    assert [text for text in warnings_of(caplog) if "no training picture has a box" in text]


# --- class ids --------------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("split", ["train", "val"])
def test_a_class_id_beyond_the_names_is_refused_with_file_line_and_range(build_set: BuildSet, split: str) -> None:
    texts = {"train": [BOX], "val": [BOX]} | {split: [BOX, f"{BOX}2 0.5 0.5 0.1 0.1\n"]}
    path = build_set(texts["train"], texts["val"])
    with pytest.raises(UserError) as caught:
        load_detection(path)
    for word in (f"{path.parent / 'labels' / split / '01.txt'}:2", "class id 2", "0..1", "1 label row is wrong"):
        assert word in str(caught.value)
    assert "start at 1" not in str(caught.value)


def test_ids_from_one_to_nc_get_the_hint_and_examples_are_limited(build_set: BuildSet) -> None:
    path = build_set([f"{1 + index % 2} 0.5 0.5 0.1 0.1\n" for index in range(14)])
    with pytest.raises(UserError) as caught:
        load_detection(path)
    text = str(caught.value)
    assert "7 label rows are wrong" in text
    assert text.count(".txt:1") == 5
    assert "2 more" in text
    assert "start at 1: subtract 1" in text


def test_a_negative_id_is_refused(build_set: BuildSet) -> None:
    with pytest.raises(UserError, match=r"class id -1, valid ids are 0\.\.1"):
        load_detection(build_set(["-1 0.5 0.5 0.1 0.1\n"]))


def test_a_refused_set_is_refused_again(build_set: BuildSet) -> None:
    path = build_set(["5 0.5 0.5 0.1 0.1\n"])
    for _ in range(2):
        with pytest.raises(UserError, match="class id 5"):
            load_detection(path)


def test_single_cls_merges_all_classes(build_set: BuildSet) -> None:
    data = load_detection(build_set([BOX + "1 0.5 0.5 0.1 0.1\n"], [BOX]), single_cls=True)
    assert (data.names, data.nc) == ({0: "item"}, 1)
    assert data.train.boxes(0)[1].tolist() == [0, 0]
    assert data.train.labels_histogram().tolist() == [2]


def test_classes_keeps_only_those_and_does_not_renumber(build_set: BuildSet) -> None:
    mixed = "2 0.5 0.5 0.1 0.1\n0 0.5 0.5 0.2 0.2\n1 0.5 0.5 0.3 0.3\n"
    path = build_set([BOX, mixed, "", mixed], [BOX], nc=3)
    data = load_detection(path, classes=[2, 1])
    assert data.names == {0: "name0", 1: "name1", 2: "name2"}
    assert [data.train.boxes(index)[1].tolist() for index in range(4)] == [[], [2, 1], [], [2, 1]]
    np.testing.assert_allclose(data.train.boxes(3)[0], [[0.45, 0.45, 0.55, 0.55], [0.35, 0.35, 0.65, 0.65]], atol=1e-7)
    assert data.train.labels_histogram().tolist() == [0, 2, 2]
    assert load_detection(path, classes=[1], single_cls=True).train.boxes(1)[1].tolist() == [0]


@pytest.mark.parametrize("classes", [[3], [-1], []])
def test_classes_outside_the_set_are_refused(build_set: BuildSet, classes: list[int]) -> None:
    with pytest.raises(UserError, match=r"ids of 0\.\.1"):
        load_detection(build_set([BOX]), classes=classes)


# --- splits -----------------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("val", ["", "val:", "val: null", "val: []", "val: images/none"])
def test_a_set_without_val_trains_with_one_warning(build_set: BuildSet, caplog: pytest.LogCaptureFixture, val: str) -> None:
    path = build_set([BOX], yaml=f"train: images/train\n{val}\nnames: [a, b]\n")
    (path.parent / "images" / "none").mkdir()
    assert load_detection(path).val is None
    assert len(warnings_of(caplog)) == 1
    assert "val:" in warnings_of(caplog)[0]


def test_a_val_path_that_is_wrong_is_an_error(build_set: BuildSet) -> None:
    with pytest.raises(UserError, match="val: 'images/vall' was not found"):
        load_detection(build_set([BOX], yaml="train: images/train\nval: images/vall\nnames: [a, b]\n"))


def test_an_empty_train_folder_is_an_error(build_set: BuildSet, tmp_path: Path) -> None:
    (tmp_path / "set" / "images" / "train").mkdir(parents=True)
    with pytest.raises(UserError, match="train: holds no picture"):
        load_detection(build_set([]))


def test_test_pictures_are_not_looked_at_before_they_are_asked_for(build_set: BuildSet) -> None:
    path = build_set([BOX], [BOX], yaml="train: images/train\nval: images/val\ntest: images/later\nnames: [a, b]\n")
    data = pickle.loads(pickle.dumps(load_detection(path)))
    assert "test" not in data.report
    save_picture(path.parent / "images" / "later" / "x.png")
    assert len(data.test) == 1
    assert data.report["test"].num_missing_labels == 1


# --- where labels are ---------------------------------------------------------------------------------------------------------------------


def test_the_last_images_folder_becomes_labels(tmp_path: Path) -> None:
    (tmp_path / "images" / "ds" / "labels" / "v1.2").mkdir(parents=True)
    picture = tmp_path / "images" / "ds" / "images" / "v1.2" / "a.b.jpg"
    assert label_paths([str(picture)]) == [str(tmp_path / "images" / "ds" / "labels" / "v1.2" / "a.b.txt")]


def test_labels_lie_beside_pictures_where_no_images_folder_is(tmp_path: Path) -> None:
    save_picture(tmp_path / "train" / "a.png")
    write_text(tmp_path / "train" / "a.txt", BOX)
    data = load_detection(write_text(tmp_path / "data.yaml", "train: train\nnames: [x]\n"))
    assert data.train.labels_histogram().tolist() == [1]


def test_labels_lie_beside_pictures_where_images_has_no_labels_counterpart(tmp_path: Path) -> None:
    save_picture(tmp_path / "images" / "train" / "a.png")
    write_text(tmp_path / "images" / "train" / "a.txt", BOX)
    data = load_detection(write_text(tmp_path / "data.yaml", "train: images/train\nnames: [x]\n"))
    assert data.train.labels_histogram().tolist() == [1]


# --- unusable pictures ------------------------------------------------------------------------------------------------------------------


def ten_with_three_bad(root: Path) -> Path:
    folder = root / "images"
    for index in range(6):
        save_picture(folder / f"{index}.jpg", seed=index)
    whole = io.BytesIO()
    Image.fromarray(np.random.default_rng(0).integers(0, 256, (90, 90, 3), dtype=np.uint8)).save(whole, "JPEG")
    (folder / "6_cut.jpg").write_bytes(whole.getvalue()[: len(whole.getvalue()) * 6 // 10])
    (folder / "7_empty.jpg").write_bytes(b"")
    (folder / "8_text.jpg").write_text("<html>not found</html>")
    save_picture(folder / "9.png").rename(folder / "9_png.jpg")
    for path in folder.iterdir():
        write_text(root / "labels" / f"{path.stem}.txt", BOX)
    return write_text(root / "data.yaml", "train: images\nval: images\nnames: [x]\n")


def test_the_three_bad_files_of_case_b60_are_skipped_by_name_and_the_png_called_jpg_is_used(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    data = load_detection(ten_with_three_bad(tmp_path))
    assert [data.train.path(index).name for index in range(len(data.train))] == [*(f"{index}.jpg" for index in range(6)), "9_png.jpg"]
    assert [(Path(path).name, reason.split(" (")[0]) for path, reason in data.report["train"].skipped] == [
        ("6_cut.jpg", "it cannot be decoded"),
        ("7_empty.jpg", "the file is empty"),
        ("8_text.jpg", "it is not a picture"),
    ]
    assert "train: 3 pictures cannot be used" in caplog.text
    assert "6_cut.jpg" in caplog.text


def test_no_file_of_the_user_is_written_by_loading_and_caching(tmp_path: Path) -> None:
    path = ten_with_three_bad(tmp_path / "set")
    before = digest_of(tmp_path / "set")
    for cache in (False, "auto", "ram", "disk"):
        data = load_detection(path, cache=cache, max_hw=(16, 16))  # type: ignore[arg-type]
        data.train.image(0, (16, 16))
    assert digest_of(tmp_path / "set") == before


def test_a_read_only_set_loads(build_set: BuildSet) -> None:
    path = build_set([BOX], [BOX])
    folders = [folder for folder, _, _ in os.walk(path.parent)]
    try:
        for folder in folders:
            Path(folder).chmod(0o555)
        assert len(load_detection(path, cache="disk").train) == 1
    finally:
        for folder in folders:
            Path(folder).chmod(0o755)


def test_more_than_half_bad_is_refused_and_half_is_not(build_set: BuildSet) -> None:
    path = build_set([BOX] * 4, [BOX])
    folder = path.parent / "images" / "train"
    for name in ("00.jpg", "01.jpg"):
        (folder / name).write_bytes(b"")
    assert len(load_detection(path).train) == 2
    (folder / "02.jpg").write_bytes(b"")
    with pytest.raises(UserError, match="3 of 4 pictures, more than half") as caught:
        load_detection(path)
    assert f"{folder / '00.jpg'}: the file is empty" in str(caught.value)
    (folder / "03.jpg").write_bytes(b"")
    with pytest.raises(UserError, match="none of the 4 pictures is usable"):
        load_detection(path)


def test_a_picture_that_breaks_after_the_scan_is_a_named_error(build_set: BuildSet) -> None:
    data = load_detection(build_set([BOX] * 2))
    data.train.path(0).write_bytes(b"junk")
    save_picture(data.train.path(1), (50, 60))
    with pytest.raises(UserError, match=r"00\.jpg was fine at the scan, now it is not a picture"):
        data.train.image(0)
    with pytest.raises(UserError, match=r"01\.jpg was 32x24 at the scan"):
        data.train.image(1)


# --- the launch directory ---------------------------------------------------------------------------------------------------------------


def test_a_relative_set_is_found_from_the_launch_directory_whatever_the_process_does_later(
    build_set: BuildSet, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = build_set([BOX], [BOX])
    monkeypatch.chdir("/")
    data = load_detection("set/data.yaml", cwd=tmp_path)
    assert data.yaml_path == path
    monkeypatch.chdir(tmp_path)
    relative = load_detection("set")
    monkeypatch.chdir("/")
    assert relative.train.image(0).shape == (24, 32, 3)
    assert relative.train.path(0) == data.train.path(0)


def test_a_wrong_cache_word_is_refused(build_set: BuildSet) -> None:
    with pytest.raises(UserError, match="cache='RAM'"):
        load_detection(build_set([BOX]), cache="RAM")  # type: ignore[arg-type]
