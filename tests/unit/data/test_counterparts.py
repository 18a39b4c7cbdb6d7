"""The label file of a picture is found whatever wrote its name, and one that no picture has is told."""

from __future__ import annotations

import unicodedata
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from libreyolo.data.counterparts import label_paths
from libreyolo.data.detection import load_detection
from libreyolo.data.detection_check import check_detection
from libreyolo.data.semantic import load_semantic
from libreyolo.data.semantic_check import check_semantic
from libreyolo.data.strays import stray_labels
from tests.unit.data.conftest import BuildSet, save_picture, write_text

BOX = "1 0.5 0.5 0.5 0.5\n"
ONE, TWO = (unicodedata.normalize(form, "é") for form in ("NFC", "NFD"))


@pytest.mark.parametrize(
    ("picture", "labels", "found"),
    [
        ("a.jpg", ["a.TXT"], "a.TXT"),
        ("a.jpg", ["a.Txt", "b.TXT"], "a.Txt"),
        ("a.jpg", ["a.TXT", "a.txt"], "a.txt"),
        ("a.jpg", ["A.txt", "a.jpg.txt"], "a.txt"),  # another name is another name
        (f"{TWO}.jpg", [f"{ONE}.txt"], f"{ONE}.txt"),
        (f"{ONE}.jpg", [f"{TWO}.TXT"], f"{TWO}.TXT"),
        (f"{ONE}.jpg", [f"{TWO}.txt", f"{ONE}.txt"], f"{ONE}.txt"),
        ("a.b.jpg", ["a.b.TXT", "a.TXT"], "a.b.TXT"),
        ("a.jpg", [], "a.txt"),
    ],
)
def test_the_suffix_may_be_in_any_case_and_letters_in_one_code_point_or_two(tmp_path: Path, picture: str, labels: list[str], found: str) -> None:
    for name in labels:
        write_text(tmp_path / "labels" / name, BOX)
    (tmp_path / "labels").mkdir(exist_ok=True)
    assert label_paths([str(tmp_path / "images" / picture)]) == [str(tmp_path / "labels" / found)]


@pytest.mark.parametrize(
    ("folder", "made", "found"),
    [
        ("Images/train", ["Labels/train"], "Labels/train"),
        ("images/train", ["Labels/train"], "Labels/train"),
        ("IMAGES", ["labels", "Labels"], "labels"),
        ("images/train", ["labels", "Labels/train"], "Labels/train"),
        ("Images/images/train", ["Labels/images/train", "Images/labels/train"], "Images/labels/train"),
        ("Images/x", ["labels/y"], "Images/x"),
        ("myimages", ["labels"], "myimages"),
    ],
)
def test_the_folder_may_be_in_large_letters(tmp_path: Path, folder: str, made: list[str], found: str) -> None:
    for name in (folder, *made):
        (tmp_path / name).mkdir(parents=True, exist_ok=True)
    assert label_paths([str(tmp_path / folder / "a.png")]) == [str(tmp_path / found / "a.txt")]


def test_labels_in_large_letters_give_the_boxes_and_a_change_is_noticed(build_set: BuildSet, caplog: pytest.LogCaptureFixture) -> None:
    path = build_set([None, BOX], [BOX])
    label = write_text(path.parent / "labels" / "train" / "00.TXT", "0 0.25 0.5 0.5 1\n")
    assert load_detection(path).train.boxes(0)[0].tolist() == [[0, 0, 0.5, 1]]
    assert "label" not in caplog.text
    write_text(label, "0 0.25 0.5 0.25 1\n")
    assert load_detection(path).train.boxes(0)[0].tolist() == [[0.125, 0, 0.375, 1]]


def test_strays_are_the_other_files_of_label_folders_and_those_beside_a_picture(tmp_path: Path) -> None:
    for name in ("labels/a.txt", "labels/A.txt", "labels/b.jpg.txt", "labels/.b.txt", "labels/classes.txt", "labels/c.json", "labels/deep/d.txt"):
        write_text(tmp_path / name, BOX)
    for name in ("images/b.TXT", "images/list.txt"):
        write_text(tmp_path / name, BOX)
    pictures = [str(tmp_path / "images" / name) for name in ("a.png", "b.png")]
    assert stray_labels(pictures, label_paths(pictures)) == [str(tmp_path / name) for name in ("images/b.TXT", "labels/A.txt", "labels/b.jpg.txt")]


def test_a_training_tells_of_strays_beside_pictures_without_label(build_set: BuildSet, caplog: pytest.LogCaptureFixture) -> None:
    path = build_set([None, BOX, BOX], [BOX])
    stray = write_text(path.parent / "labels" / "train" / "00.jpg.txt", BOX)
    assert load_detection(path).train.boxes(0)[1].tolist() == []
    assert f"{path}: pictures without a label file: 1, label files without a picture: 1 (for example {stray})" in caplog.text
    caplog.clear()
    write_text(path.parent / "labels" / "train" / "00.txt", "")
    load_detection(path)
    assert caplog.text == ""  # every picture has its file: the other one is the check's to tell


def test_the_labels_of_test_pictures_are_no_strays(build_set: BuildSet, caplog: pytest.LogCaptureFixture) -> None:
    path = build_set([None, BOX], yaml="train: [images/train/00.jpg, images/train/01.jpg]\ntest: images/train/x.jpg\nnames: [a, b]\n")
    save_picture(path.parent / "images" / "train" / "x.jpg")
    write_text(path.parent / "labels" / "train" / "x.txt", BOX)
    load_detection(path)
    assert "without a picture" not in caplog.text


def test_a_set_without_any_box_is_told_where_labels_were_looked_for(build_set: BuildSet, caplog: pytest.LogCaptureFixture) -> None:
    path = build_set([None, None])
    load_detection(path)
    assert f"no training picture has a box (labels were looked for at {path.parent / 'images' / 'train' / '00.txt'} and so on)" in caplog.text


def test_polygons_are_painted_from_them_too_and_strays_are_told(build_set: BuildSet, caplog: pytest.LogCaptureFixture) -> None:
    path = build_set([None, None, None])
    write_text(path.parent / "labels" / "train" / "00.TXT", "1 0 0 1 0 1 1 0 1\n")
    write_text(path.parent / "labels" / "train" / "01.TXT", "")
    stray = write_text(path.parent / "labels" / "train" / "02.jpg.txt", "1 0 0 1 0 1 1 0 1\n")
    data = load_semantic(path)
    assert [np.unique(data.train.mask(i)).tolist() for i in range(3)] == [[1], [2], [2]]
    assert f"pictures without a label file: 1, label files without a picture: 1 (for example {stray})" in caplog.text
    report, _, _ = check_semantic(path, cwd=path.parent)
    assert [f.places for f in report.findings if "label files that belong to no picture" in f.what] == [(str(stray),)]


def test_a_picture_s_text_beside_it_is_no_stray_where_boxes_come_from_a_json(build_set: BuildSet) -> None:
    path = build_set([None], yaml="train: images/train\nnames: [a, b]\nannotations: {train: t.json}\n")
    write_text(path.parent / "images" / "train" / "00.txt", BOX)
    write_text(path.parent / "t.json", '{"images": [{"id": 1, "file_name": "00.jpg"}], "annotations": [], "categories": []}')
    report, _, _ = check_detection(path, cwd=path.parent)
    assert not any("belong to no picture" in finding.what for finding in report.findings)


@pytest.mark.parametrize("has_masks", [False, True])
def test_a_file_that_two_pictures_share_is_told_by_a_training_and_by_the_check(
    build_set: BuildSet, caplog: pytest.LogCaptureFixture, has_masks: bool
) -> None:
    path = build_set([BOX, BOX, None], [BOX])
    train = path.parent / "images" / "train"
    save_picture(train / "00.png"), save_picture(train / "02.png")  # 02 has no label file to share
    shared = path.parent / "labels" / "train" / "00.txt"
    if has_masks:
        for picture in path.parent.glob("images/*/*"):
            mask = path.parent / "masks" / picture.parent.name / f"{picture.stem}.png"
            mask.parent.mkdir(parents=True, exist_ok=True)
            Image.fromarray(np.zeros((24, 32), np.uint8)).save(mask)
        shared = path.parent / "masks" / "train" / "00.png"
        load_semantic(path)
        report = check_semantic(path, cwd=path.parent)[0]
    else:
        load_detection(path)
        report = check_detection(path, cwd=path.parent)[0]
    places = (str(shared), str(shared.with_stem("02")))[: 1 + has_masks]
    files = f"{len(places)} {'' if has_masks else 'label '}files belong to several pictures each, one name with two suffixes"
    assert f"train: {files} (for example {shared})" in caplog.text
    assert [finding.places for finding in report.findings if "of several pictures each" in finding.what] == [places]
