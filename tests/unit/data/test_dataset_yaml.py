"""data.yaml and the sources it names."""

from __future__ import annotations

import logging
import os
from pathlib import Path

import pytest

from libreyolo.data.dataset_yaml import find_yaml, read_yaml
from libreyolo.data.sources import list_pictures
from libreyolo.errors import UserError
from tests.unit.data.conftest import save_picture, write_text


def read(tmp_path: Path, text: str):
    return read_yaml(write_text(tmp_path / "data.yaml", text))


def names_of(root: Path, train: str, *, path_line: str = "", yaml_folder: Path | None = None, split: str = "train") -> list[str]:
    yaml_path = write_text((yaml_folder or root) / "data.yaml", f"{path_line}\ntrain: {train}\nnames: [x]\n")
    return [os.path.relpath(picture, root) for picture in list_pictures(read_yaml(yaml_path), split).pictures]


EXPECTED = [f"images/{folder}/{name}" for folder in "ab" for name in ("1.JPG", "2.JPG", "deep/0.png")]


# --- names and nc ---------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("names: [cat, dog]", {0: "cat", 1: "dog"}),
        ("names: {0: cat, 1: dog}", {0: "cat", 1: "dog"}),
        ("nc: 2\nnames:\n- cat\n- dog", {0: "cat", 1: "dog"}),
        ("names: {'1': dog, 0: cat}", {0: "cat", 1: "dog"}),
        ("names: [no, on, 007, 1.0]", {0: "no", 1: "on", 2: "007", 3: "1.0"}),
        ("names: [cat]\nnonsense: {a: [1, 2]}\ndownload: https://x", {0: "cat"}),
    ],
    ids=["list", "mapping", "nc agrees", "quoted keys", "text stays text", "unknown keys"],
)
def test_names_come_out_as_written(tmp_path: Path, text: str, expected: dict[int, str]) -> None:
    assert read(tmp_path, f"train: .\n{text}\n").names == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("names: {0: cat, 2: dog}", {0: "cat", 1: "class_1", 2: "dog"}),
        ("names: {1: cat}", {0: "class_0", 1: "cat"}),
        ("nc: 2", {0: "class_0", 1: "class_1"}),
        ("names: [cat, null]", {0: "cat", 1: "class_1"}),
    ],
)
def test_a_missing_name_is_made_up_with_a_warning(tmp_path: Path, caplog: pytest.LogCaptureFixture, text: str, expected: dict) -> None:
    assert read(tmp_path, f"train: .\n{text}\n").names == expected
    assert len(caplog.records) == 1
    assert "no entry for class id" in caplog.text


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("nc: 3\nnames: [cat, dog]", ["nc=3", "2 classes"]),
        ("nc: 1\nnames: [cat, dog]", ["id 1", "0..0"]),
        ("nc: 3\nnames: {0: cat, 1: dog}", ["nc=3", "2 classes"]),
        ("nc: 2\nnames: {0: cat, 5: dog}", ["id 5", "0..1"]),
        ("names: {-1: cat, 0: dog}", ["id -1", "0..0"]),
        ("names: {cat: 0}", ["integer", "'cat'"]),
        ("names: person", ["list or a mapping", "'person'"]),
        ("names: []", ["empty"]),
        ("names: {0: {name: cat}}", ["class 0", "text"]),
        ("nc: many", ["nc", "'many'"]),
        ("nc: 0", ["nc=0"]),
        ("name: [cat]", ["no names: key", "'name' a misspelling"]),
        ("names: {0: cat, 0: dog}", ["data.yaml:2", "'0'", "twice"]),
    ],
)
def test_wrong_names_are_an_error(tmp_path: Path, text: str, words: list[str]) -> None:
    with pytest.raises(UserError) as caught:
        read(tmp_path, f"train: .\n{text}\n")
    for word in [str(tmp_path / "data.yaml"), *words]:
        assert word in str(caught.value)


@pytest.mark.parametrize(
    ("raw", "line", "word"),
    [
        (b"", 1, "empty"),
        (b"# nothing\n", 1, "empty"),
        (b"- a\n- b\n", 1, "mapping"),
        (b"just text", 1, "mapping"),
        (b"train: x\nnames:\n\t- a\n", 3, "tab"),
        (b"train: x\nnames: [a, b\nval: y\n", 3, "YAML"),
        (b"train: x\nnames: [caf\xe9]\n", 2, "UTF-8"),
        (b"train: x\nnames: !!python/object/apply:os.getcwd []\n", 2, "YAML"),
        (b"train: x\x00\n", 1, "YAML"),
    ],
)
def test_a_file_that_is_no_yaml_mapping_is_one_sentence_with_a_line(tmp_path: Path, raw: bytes, line: int, word: str) -> None:
    (tmp_path / "data.yaml").write_bytes(raw)
    with pytest.raises(UserError) as caught:
        read_yaml(tmp_path / "data.yaml")
    assert f"data.yaml:{line}:" in str(caught.value)
    assert word in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_byte_order_mark_and_crlf_are_nothing(tmp_path: Path) -> None:
    assert read(tmp_path, "\ufefftrain: .\r\nnames: [cat]\r\n").names == {0: "cat"}


def test_a_missing_train_key_is_named_with_its_misspelling(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"no train: key .*'trian' a misspelling"):
        read(tmp_path, "trian: x\nnames: [a]\n")


@pytest.mark.parametrize(
    ("raw", "said"),
    [
        (
            b"PK\x03\x04\x14\0\0\0\x08\0\xff\xfe",
            "data.yaml is no text, so no data set description; give the data.yaml (of an archive, after unpacking",
        ),
        ("train: x\nnames: [a]\n".encode("utf-16"), "data.yaml:1: the file is not UTF-8 text; save it as UTF-8."),
        (
            b'{"images": [], "annotations": [], "categories": []}',
            "no train: key with the training pictures; add it beside names: and annotations:, for",
        ),
        (b"train:\nnames: [a]\n", "data.yaml: train: is empty, it must hold the training pictures; add it."),
        (b"train: x\nnames:\n", "data.yaml: names: is empty, it must hold the names of the classes; add it."),
    ],
)
def test_another_file_or_an_empty_key_is_told_for_what_it_is(tmp_path: Path, raw: bytes, said: str) -> None:
    (tmp_path / "data.yaml").write_bytes(raw)
    with pytest.raises(UserError) as caught:
        read_yaml(tmp_path / "data.yaml")
    assert said in str(caught.value)


def test_a_folder_whose_name_ends_with_a_blank_comes_first(tmp_path: Path) -> None:
    save_picture(tmp_path / "images " / "a.png")
    save_picture(tmp_path / "images" / "b.png")
    assert names_of(tmp_path, "'images '") == ["images /a.png"]


@pytest.mark.parametrize("text", ["train: {a: b}", "train: [a, [b]]"])
def test_a_source_that_is_no_text_is_an_error(tmp_path: Path, text: str) -> None:
    with pytest.raises(UserError, match="train: takes a folder"):
        read(tmp_path, f"{text}\nnames: [a]\n")


def test_valid_is_read_as_val_only_where_val_is_not_given(tmp_path: Path) -> None:
    assert read(tmp_path, "train: t\nvalid: v\nnames: [a]\n").sources["val"] == ("v",)
    assert read(tmp_path, "train: t\nval: w\nvalid: v\nnames: [a]\n").sources["val"] == ("w",)
    assert read(tmp_path, "train: t\nval: null\nnames: [a]\n").sources["val"] == ()


# --- where data.yaml is -----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("data", ["set/data.yaml", "set/data", "set", "set/", "./other/../set"])
def test_a_relative_name_is_found_below_the_launch_directory(tmp_path: Path, data: str) -> None:
    (tmp_path / "other").mkdir()
    path = write_text(tmp_path / "set" / "data.yaml", "train: .\n")
    assert find_yaml(data, tmp_path) == path
    assert find_yaml(Path(data), tmp_path) == path


def test_a_folder_may_hold_dataset_yaml_instead(tmp_path: Path) -> None:
    path = write_text(tmp_path / "set" / "dataset.yaml", "train: .\n")
    assert find_yaml(tmp_path / "set", Path("/")) == path


def test_home_is_expanded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    path = write_text(tmp_path / "set" / "data.yaml", "path: ~/pictures\ntrain: .\nnames: [a]\n")
    assert find_yaml("~/set", Path("/")) == path
    assert read_yaml(path).root == tmp_path / "pictures"


def test_a_file_called_like_the_built_in_set_comes_first(tmp_path: Path) -> None:
    path = write_text(tmp_path / "shapes.yaml", "train: .\n")
    assert find_yaml("shapes", tmp_path) == path


def test_a_name_that_is_nowhere_lists_what_was_tried(tmp_path: Path) -> None:
    with pytest.raises(UserError) as caught:
        find_yaml("shape", tmp_path)
    assert str(tmp_path / "shape.yaml") in str(caught.value)
    assert "Did you mean 'shapes'?" in str(caught.value)
    (tmp_path / "pets" / "train" / "cat").mkdir(parents=True)
    with pytest.raises(UserError, match=r"data='pets' is a folder that holds no data\.yaml \(tried .*pets/data\.yaml.* classifier's"):
        find_yaml("pets", tmp_path)
    (tmp_path / "pets" / "train" / "images").mkdir()
    with pytest.raises(UserError, match=r"give an existing data\.yaml\.$"):
        find_yaml("pets", tmp_path)


@pytest.mark.parametrize("data", [None, "", 3, ["a.yaml"]])
def test_what_is_no_path_is_refused(tmp_path: Path, data: object) -> None:
    with pytest.raises(UserError, match="no data set"):
        find_yaml(data, tmp_path)  # type: ignore[arg-type]


# --- path: and the sources --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("path_line", ["", "path: .", "path:", "path: ~", "path: ''", "path: ./", "path: ../ds", "path: {root}", "path: {root}/"])
def test_every_way_to_write_path_gives_the_same_list_from_every_cwd(
    six_pictures: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, path_line: str
) -> None:
    for cwd in (tmp_path, six_pictures, Path("/")):
        monkeypatch.chdir(cwd)
        assert names_of(six_pictures, "images", path_line=path_line.format(root=six_pictures)) == EXPECTED


def test_path_may_lead_upwards(six_pictures: Path) -> None:
    assert names_of(six_pictures, "images/", path_line="path: ..", yaml_folder=six_pictures / "conf") == EXPECTED


def test_a_linked_folder_is_followed_under_its_own_name(six_pictures: Path, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(six_pictures)
    assert names_of(tmp_path / "link", "images") == EXPECTED


def test_a_loop_of_links_ends(six_pictures: Path) -> None:
    (six_pictures / "images" / "a" / "loop").symlink_to(six_pictures / "images")
    assert names_of(six_pictures, "images") == EXPECTED


def lists(root: Path) -> dict[str, str]:
    """The same six pictures said in many ways."""
    write_text(root / "dots.txt", "# a comment\n\n" + "".join(f"./{name}\n" for name in reversed(EXPECTED)))
    write_text(root / "absolute.txt", "\ufeff" + "".join(f"{root / name}\r\n" for name in EXPECTED))
    write_text(root / "lists" / "from_root.txt", "\n".join(EXPECTED))
    write_text(root / "windows.txt", "\n".join(name.replace("/", "\\") for name in EXPECTED))
    write_text(root / "b_only.txt", "\n".join(name for name in EXPECTED if "/b/" in name))
    return {
        "a folder": "images",
        "two folders": "[images/a, images/b]",
        "dots": "dots.txt",
        "absolute with crlf": str(root / "absolute.txt"),
        "entries from the root": "lists/from_root.txt",
        "backslashes": "windows.txt",
        "folder and list": "[images/a, b_only.txt]",
        "glob of files": "images/**/*.*",
        "glob of folders": "images/[ab]",
        "backslash folder": "'.\\images'",
        "absolute folder": str(root / "images"),
        "exporter's dots": "../images",
        "a blank after it": "'images '",
        "a block of text": "|\n  images",
    }


@pytest.mark.parametrize(
    "form",
    [
        "a folder",
        "two folders",
        "dots",
        "absolute with crlf",
        "entries from the root",
        "backslashes",
        "folder and list",
        "glob of files",
        "glob of folders",
        "backslash folder",
        "absolute folder",
        "exporter's dots",
        "a blank after it",
        "a block of text",
    ],
)
def test_every_kind_of_source_gives_the_same_list(six_pictures: Path, form: str) -> None:
    assert names_of(six_pictures, lists(six_pictures)[form]) == EXPECTED


def test_a_glob_of_lists_reads_the_lists(six_pictures: Path) -> None:
    lists(six_pictures)
    assert names_of(six_pictures, "b_*.txt") == EXPECTED[3:]


def test_a_folder_whose_name_looks_like_a_glob_is_a_folder(tmp_path: Path) -> None:
    save_picture(tmp_path / "[x]" / "im[1]" / "a.png")
    assert names_of(tmp_path / "[x]", "im[1]") == ["im[1]/a.png"]
    assert names_of(tmp_path / "[x]", "im*/*.png") == ["im[1]/a.png"]


def test_what_is_named_twice_is_used_once_with_a_warning(six_pictures: Path, caplog: pytest.LogCaptureFixture) -> None:
    lists(six_pictures)
    assert names_of(six_pictures, "[images, images/b, dots.txt]") == EXPECTED
    assert [record.levelno for record in caplog.records] == [logging.WARNING]
    assert "9 pictures more than once" in caplog.text


def test_what_is_no_picture_of_the_user_is_passed_over(tmp_path: Path) -> None:
    for name in ("a.webp", "b.TIFF", "c.jfif", ".hidden.png", "._c.jpg", "__MACOSX/d.png", ".cache/e.png", "deep/f.bmp"):
        write_text(tmp_path / "images" / name, "x")
    for name in ("notes.txt", "g.json", "h.jpg.bak", "i"):
        write_text(tmp_path / "images" / name, "x")
    assert names_of(tmp_path, "images") == ["images/a.webp", "images/b.TIFF", "images/c.jfif", "images/deep/f.bmp"]


def test_a_hidden_root_is_no_reason_to_pass_over(tmp_path: Path) -> None:
    save_picture(tmp_path / ".sets" / "images" / "a.png")
    assert names_of(tmp_path / ".sets", "images") == ["images/a.png"]


def test_a_listed_file_that_is_not_there_is_told_with_its_line(six_pictures: Path) -> None:
    write_text(six_pictures / "list.txt", "images/a/1.JPG\nimages/a/9.JPG\nimages/a\nlist.txt\n")
    yaml_path = write_text(six_pictures / "data.yaml", "train: list.txt\nnames: [x]\n")
    listing = list_pictures(read_yaml(yaml_path), "train")
    assert listing.pictures == [str(six_pictures / "images/a/1.JPG")]
    reasons = dict(listing.skipped)
    assert set(reasons) == {str(six_pictures / name) for name in ("images/a/9.JPG", "images/a", "list.txt")}
    assert "list.txt:2 names it" in reasons[str(six_pictures / "images/a/9.JPG")]
    assert "suffix" in reasons[str(six_pictures / "list.txt")]


def test_a_wrong_path_lists_every_place_and_tells_of_the_download_key(six_pictures: Path) -> None:
    with pytest.raises(UserError) as caught:
        names_of(six_pictures, "nowhere", path_line="path: sub\ndownload: https://example.com/x.zip")
    assert str(six_pictures / "sub" / "nowhere") in str(caught.value)
    assert f"{six_pictures / 'nowhere'}" in str(caught.value)
    assert "nothing is downloaded" in str(caught.value)


def test_a_glob_without_a_match_is_an_error(six_pictures: Path) -> None:
    with pytest.raises(UserError, match="was not found"):
        names_of(six_pictures, "images/*.png")


def test_a_source_of_another_kind_is_an_error(six_pictures: Path) -> None:
    write_text(six_pictures / "train.csv", "{}")
    with pytest.raises(UserError, match="neither a folder"):
        names_of(six_pictures, "train.csv")
