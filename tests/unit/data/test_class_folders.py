"""Sets of class folders as users have them: read right, or refused in one sentence before anything is opened."""

from __future__ import annotations

import hashlib
import logging
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from libreyolo.data.class_folders import find_class_folders, list_split
from libreyolo.data.class_shapes import make_class_shapes
from libreyolo.data.classify import ClassifyData, load_classify
from libreyolo.errors import UserError
from tests.unit.data.conftest import save_picture, write_text

PETS = {"train": {"cat": 3, "dog": 2}, "val": {"cat": 1, "dog": 1}}


def build(root: Path, splits: dict[str, dict[str, int]]) -> Path:
    """Write splits of class folders with so many pictures each; a split called "" lies in the root itself."""
    for split, classes in splits.items():
        for name, count in classes.items():
            (root / split / name).mkdir(parents=True, exist_ok=True)
            for index in range(count):
                save_picture(root / split / name / f"{index}.png", hw=(6, 8), seed=index)
    return root


def rows(data: ClassifyData, split: str = "train") -> list[tuple[str, int]]:
    images = getattr(data, split)
    return [(f"{images.path(i).parent.name}/{images.path(i).name}", int(images.label_rows[i])) for i in range(len(images))]


def test_classes_are_the_training_folders_by_name_and_every_picture_has_its_class(tmp_path: Path) -> None:
    data = load_classify("set", cwd=build(tmp_path / "set", PETS).parent)
    assert data.names == {0: "cat", 1: "dog"}
    assert rows(data) == [("cat/0.png", 0), ("cat/1.png", 0), ("cat/2.png", 0), ("dog/0.png", 1), ("dog/1.png", 1)]
    assert rows(data, "val") == [("cat/0.png", 0), ("dog/0.png", 1)]
    assert data.test is None
    assert data.train.size(0) == (6, 8)
    assert data.train.labels_histogram().tolist() == [3, 2]


@pytest.mark.parametrize("names", [("training", "valid"), ("Train", "Validation"), ("train", "dev")])
def test_splits_have_other_names_in_the_wild(tmp_path: Path, names: tuple[str, str]) -> None:
    build(tmp_path, {names[0]: PETS["train"], names[1]: PETS["val"], "testing": PETS["val"]})
    data = load_classify(tmp_path, cwd=tmp_path)
    assert data.val is not None and data.test is not None
    assert [len(data.train), len(data.val), len(data.test)] == [5, 2, 2]


def as_itself(root: Path) -> Path:
    return root


def as_yaml(root: Path) -> Path:
    return write_text(root / "data.yaml", "path: .\ntrain: train\nval: [val]\n")


def as_folder_with_yaml(root: Path) -> Path:
    return as_yaml(root).parent


def as_yaml_elsewhere(root: Path) -> Path:
    return write_text(root.parent / "sets" / "pets.yaml", f"path: {root}\ntrain: ./train/\nvalid: val\nnames: {{1: dog, 0: cat}}\n")


def as_one_split(root: Path) -> Path:
    return root / "val"


@pytest.mark.parametrize("form", [as_itself, as_yaml, as_folder_with_yaml, as_yaml_elsewhere, as_one_split])
def test_every_form_of_a_set_gives_the_same_pictures(tmp_path: Path, form: Callable[[Path], Path]) -> None:
    root = build(tmp_path / "my päts", PETS)
    expected = rows(load_classify(root, cwd=tmp_path)), rows(load_classify(root, cwd=tmp_path), "val")
    data = load_classify(form(root), cwd=tmp_path)
    assert (rows(data), rows(data, "val")) == expected


def test_a_yaml_s_names_give_the_order_of_the_classes(tmp_path: Path) -> None:
    build(tmp_path, PETS)
    write_text(tmp_path / "data.yaml", "train: train\nval: val\nnames: [dog, cat]\n")
    data = load_classify(tmp_path, cwd=tmp_path)
    assert data.names == {0: "dog", 1: "cat"}
    assert dict(rows(data, "val")) == {"cat/0.png": 1, "dog/0.png": 0}


def test_several_training_folders_are_one_set_and_one_named_twice_counts_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    build(tmp_path, {"a": {"cat": 2}, "b": {"dog": 1, "cat": 1}})
    write_text(tmp_path / "data.yaml", "train: [a, b, a]\n")
    assert rows(load_classify(tmp_path, cwd=tmp_path)) == [("cat/0.png", 0), ("cat/1.png", 0), ("cat/0.png", 0), ("dog/0.png", 1)]
    assert "train names 2 pictures more than once; each is used once" in caplog.text


def test_class_folders_without_splits_are_all_trained_on_with_a_warning(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    data = load_classify(build(tmp_path, {"": {"cat": 1, "dog": 1}}), cwd=tmp_path)
    assert (len(data.train), data.val) == (2, None)
    assert "all of it is trained on and nothing is validated" in caplog.text


def test_a_set_without_validation_pictures_is_trained_on_with_a_warning(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    build(tmp_path, {"train": PETS["train"], "val": {"cat": 0}})
    assert load_classify(tmp_path, cwd=tmp_path).val is None
    assert "there are no validation pictures, so nothing is validated" in caplog.text


def test_two_folders_for_one_split_are_not_mixed(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    build(tmp_path, {**PETS, "valid": {"cat": 4, "dog": 4}})
    val = load_classify(tmp_path, cwd=tmp_path).val
    assert val is not None and len(val) == 2
    assert "has val and valid for val: only val is used" in caplog.text


def test_hidden_files_system_folders_and_other_files_mean_nothing(tmp_path: Path) -> None:
    build(tmp_path, {**PETS, "train/.thumbs": {"cat": 1}, "train/__MACOSX": {"cat": 1}})
    save_picture(tmp_path / "train" / "cat" / ".hidden.png")
    write_text(tmp_path / "train" / "dog" / "Thumbs.db", "x")
    write_text(tmp_path / "train" / "README.md", "x")
    (tmp_path / "train" / "dog" / "empty").mkdir()
    assert len(load_classify(tmp_path, cwd=tmp_path).train) == 5


def test_links_to_class_folders_and_pictures_are_followed(tmp_path: Path) -> None:
    build(tmp_path / "store", {"": {"cat": 2, "dog": 1}})
    (tmp_path / "set" / "train" / "ant").mkdir(parents=True)
    for name in ("cat", "dog"):
        (tmp_path / "set" / "train" / name).symlink_to(tmp_path / "store" / name, target_is_directory=True)
    (tmp_path / "set" / "train" / "ant" / "linked.png").symlink_to(tmp_path / "store" / "dog" / "0.png")
    assert [label for _, label in rows(load_classify(tmp_path / "set", cwd=tmp_path))] == [0, 1, 1, 2]


def test_unusable_pictures_are_skipped_by_name_and_nothing_is_written_into_the_set(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    build(tmp_path, PETS)
    write_text(tmp_path / "train" / "cat" / "page.jpg", "<html>")
    write_text(tmp_path / "train" / "dog" / "void.png", "")
    save_picture(tmp_path / "train" / "loose.png")
    before = digest(tmp_path)
    data = load_classify(tmp_path, cwd=tmp_path)
    assert len(data.train) == 5
    reasons = dict(data.report["train"].skipped)
    assert reasons[str(tmp_path / "train" / "cat" / "page.jpg")] == "it is not a picture"
    assert reasons[str(tmp_path / "train" / "dog" / "void.png")] == "the file is empty"
    assert reasons[str(tmp_path / "train" / "loose.png")] == "it lies beside the class folders, in none of them"
    assert "train: 5 pictures of 2 classes, 3 skipped" in caplog.text
    assert digest(tmp_path) == before


def digest(root: Path) -> dict[str, str]:
    return {str(p): hashlib.sha256(p.read_bytes()).hexdigest() for p in sorted(root.rglob("*")) if p.is_file()}


def test_a_second_start_uses_the_scan_and_a_moved_picture_is_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    build(tmp_path, PETS)
    first = rows(load_classify(tmp_path, cwd=tmp_path))
    opened: list[str] = []
    monkeypatch.setattr("libreyolo.data.scan.probe_picture", lambda path: opened.append(str(path)) or (6, 8))
    assert rows(load_classify(tmp_path, cwd=tmp_path)) == first
    assert opened == []
    (tmp_path / "train" / "cat" / "2.png").rename(tmp_path / "train" / "dog" / "2.png")
    assert dict(rows(load_classify(tmp_path, cwd=tmp_path)))["dog/2.png"] == 1


def test_a_renamed_class_order_is_another_scan(tmp_path: Path) -> None:
    """The files and their times are the same; only the class ids differ."""
    build(tmp_path, PETS)
    yaml = write_text(tmp_path / "data.yaml", "train: train\nnames: [cat, dog]\n")
    before = rows(load_classify(yaml, cwd=tmp_path))
    write_text(yaml, "train: train\nnames: [dog, cat]\n")
    assert [1 - label for _, label in before] == [label for _, label in rows(load_classify(yaml, cwd=tmp_path))]


MISTAKES: dict[str, tuple[dict[str, dict[str, int]], str, str]] = {
    "a folder that is not there": ({}, "nowhere", "data='nowhere' was not found (tried ROOT/nowhere); give a folder with train/CLASS and val/CLASS"),
    "a misspelt built-in name": ({}, "shapes-clasify", "Did you mean 'shapes-classify'?"),
    "an empty folder": ({}, ".", "ROOT holds neither train/CLASS/... nor class folders with pictures"),
    "no training folder": ({"val": {"cat": 1}}, ".", "ROOT has val/ but no train/ folder with the training pictures"),
    "no class folder": ({"train": {}, "train/": {"": 2}}, ".", "its pictures (ROOT/train/0.png) lie in no class folder"),
    "folders in a class": ({"train": {"cat": 1, "dog/poodle": 2}}, ".", "ROOT/train/dog/poodle is a folder of pictures inside the class folder dog"),
    "an empty class": ({"train": {"cat": 1, "dog": 0}}, ".", "no training picture of class dog (looked in ROOT/train/dog); add some, or remove"),
    "a class of val alone": (
        {**PETS, "val": {"cat": 1, "Dog": 1}},
        ".",
        "ROOT/val/Dog is a class that the training split of ROOT does not have. Did you",
    ),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_is_told_in_one_sentence(tmp_path: Path, mistake: str) -> None:
    splits, data, sentence = MISTAKES[mistake]
    build(tmp_path, splits)
    with pytest.raises(UserError) as told:
        load_classify(data, cwd=tmp_path)
    assert sentence.replace("ROOT", str(tmp_path)) in str(told.value)
    assert "\n" not in str(told.value)


@pytest.mark.parametrize(
    ("yaml", "sentence"),
    [
        ("train: nowhere\n", "train: 'nowhere' is no folder of class folders (tried"),
        ("train: train/cat/0.png\n", "is no folder of class folders"),
        ("val: val\n", "there is no train: key"),
        ("train: train\nnames: [cat]\n", "the class folder 'dog' is not among them"),
        ("train: train\nnames: [cat, dog, emu]\n", "'emu' has no folder in the training split"),
        ("train: train\nnames: [cat, dog, dog]\n", "a name stands there twice"),
        ("train: train\nnames: [cat, dog\n", "data.yaml:3: this is not valid YAML"),
    ],
)
def test_a_mistake_in_a_yaml_is_told_with_the_file(tmp_path: Path, yaml: str, sentence: str) -> None:
    build(tmp_path, PETS)
    with pytest.raises(UserError) as told:
        load_classify(write_text(tmp_path / "data.yaml", yaml), cwd=tmp_path)
    assert sentence in str(told.value)
    assert str(tmp_path / "data.yaml") in str(told.value)


def test_a_name_in_one_code_point_or_two_is_one_class_whichever_split_or_yaml_says_it(tmp_path: Path) -> None:
    build(tmp_path, {"train": {"e\u0301": 1, "dog": 1}, "val": {"\u00e9": 1}})
    data = load_classify(tmp_path, cwd=tmp_path)
    assert data.names == {0: "dog", 1: "\u00e9"}
    assert data.val is not None
    assert data.val.label_rows.tolist() == [1]
    yaml = write_text(tmp_path / "set.yaml", "train: train\nval: val\nnames: ['\u00e9', dog]\n")
    assert load_classify(yaml, cwd=tmp_path).train.label_rows.tolist() == [1, 0]


def test_a_class_folder_with_a_control_character_is_refused(tmp_path: Path) -> None:
    build(tmp_path, {"train": {"a\nb": 1, "dog": 1}})
    with pytest.raises(UserError, match=r"train/a\\nb: the name of a class must not hold control characters; rename the folder"):
        load_classify(tmp_path, cwd=tmp_path)


def test_a_link_to_itself_is_skipped_by_name(tmp_path: Path) -> None:
    """Alone, beside class folders and among pictures."""
    build(tmp_path, PETS)
    (tmp_path / "train" / "loop").symlink_to("loop")
    picture = tmp_path / "train" / "cat" / "loop.jpg"
    picture.symlink_to("loop.jpg")
    data = load_classify(tmp_path, cwd=tmp_path)
    assert len(data.train) == 5
    assert [path for path, _ in data.report["train"].skipped] == [str(picture)]


def test_a_class_whose_pictures_are_all_broken_is_an_error(tmp_path: Path) -> None:
    build(tmp_path, {"train": {"cat": 4, "dog": 0}})
    write_text(tmp_path / "train" / "dog" / "a.jpg", "x")
    with pytest.raises(UserError, match=r"no picture of class dog is usable \(for example .*a.jpg: it is not a picture\)"):
        load_classify(tmp_path, cwd=tmp_path)


def test_more_broken_than_good_pictures_are_an_error(tmp_path: Path) -> None:
    build(tmp_path, {"train": {"cat": 1, "dog": 1}})
    for number in range(3):
        write_text(tmp_path / "train" / "dog" / f"{number}.jpg", "x")
    with pytest.raises(UserError, match="train: 3 of 5 pictures, more than half, cannot be used"):
        load_classify(tmp_path, cwd=tmp_path)


def test_pictures_of_a_format_that_is_not_read_are_told_of(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    build(tmp_path, PETS)
    write_text(tmp_path / "train" / "dog" / "phone.HEIC", "x")
    assert len(load_classify(tmp_path, cwd=tmp_path).train) == 5
    assert "train: 1 files are pictures of a format that is not read (.heic; for example" in caplog.text
    (tmp_path / "train" / "emu").mkdir()
    write_text(tmp_path / "train" / "emu" / "phone.heic", "x")
    with pytest.raises(UserError, match=r"no training picture of class emu .* a format that is not read"):
        load_classify(tmp_path, cwd=tmp_path)


def test_data_dir_replaces_the_path_of_a_yaml_and_means_nothing_beside_a_folder(tmp_path: Path) -> None:
    build(tmp_path / "real", PETS)
    yaml = write_text(tmp_path / "data.yaml", "path: elsewhere\ntrain: train\n")
    assert len(load_classify(yaml, cwd=tmp_path, root="real").train) == 5
    with pytest.raises(UserError, match=r"is a folder and needs no data_dir=real"):
        load_classify("real", cwd=tmp_path, root="real")


@pytest.mark.skipif(os.name == "nt", reason="links need rights there")
def test_a_link_in_a_circle_ends(tmp_path: Path) -> None:
    build(tmp_path, PETS)
    (tmp_path / "train" / "cat" / "loop").symlink_to(tmp_path / "train", target_is_directory=True)
    with pytest.raises(UserError, match="loop is a folder of pictures inside the class folder cat"):
        load_classify(tmp_path, cwd=tmp_path)


def test_the_generated_set_is_the_same_each_time_and_balanced(tmp_path: Path) -> None:
    roots = [make_class_shapes(tmp_path / name, num_train=12, num_val=6, size=32).parent for name in ("a", "b")]
    files = [{str(p.relative_to(root)): p.read_bytes() for p in sorted(root.rglob("*.jpg"))} for root in roots]
    assert files[0] == files[1]
    data = load_classify(roots[0], cwd=tmp_path)
    assert list(data.names.values()) == ["circle", "cross", "ring", "square", "star", "triangle"]
    assert data.train.labels_histogram().tolist() == [2] * 6
    assert {data.train.size(i) for i in range(12)} == {(32, 32)}
    other = make_class_shapes(tmp_path / "c", seed=1, num_train=12, num_val=6, size=32).parent
    assert {p.name: p.read_bytes() for p in other.rglob("*.jpg")} != {p.name: p.read_bytes() for p in roots[0].rglob("*.jpg")}


def test_a_split_without_pictures_lists_nothing(tmp_path: Path) -> None:
    found = find_class_folders(build(tmp_path, PETS), tmp_path)
    assert list_split(found, "test").listing.pictures == []
