"""data.yaml and the sources it names."""

from __future__ import annotations

import logging
import os
import tempfile
from pathlib import Path

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from libreyolo.data.dataset_yaml import find_yaml, read_yaml
from libreyolo.data.sources import list_pictures
from libreyolo.errors import UserError, printable
from tests.unit.data.conftest import save_picture, write_text


def read(tmp_path: Path, text: str):
    return read_yaml(write_text(tmp_path / "data.yaml", text))


@pytest.fixture
def six_pictures(tmp_path: Path) -> Path:
    root = tmp_path / "my data" / "ünïcode" / "ds"
    for folder in ("a", "b"):
        for index in range(3):
            save_picture(root / "images" / folder / f"{index}.JPG" if index else root / "images" / folder / "deep" / f"{index}.png")
    return root


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


# --- what other people write --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "value",
    ["!!int abc", "!!int", "!!float x", "!!timestamp x", "!!bool maybe", "!!set {a, b}", "!!binary aGk=", "[!!timestamp x]", "{!!int y: a}"],
)
def test_an_explicit_tag_that_does_not_fit_is_one_sentence(tmp_path: Path, value: str) -> None:
    with pytest.raises(UserError) as caught:
        read(tmp_path, f"train: .\nnames: {value}\n")
    assert "data.yaml" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_deeply_nested_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="nested too deeply"):
        read(tmp_path, "train: " + "[" * 3000)


def multiplied(first: str, step: str) -> str:
    """Nine generations of aliases, each ten times the one before: a billion entries in a few hundred letters."""
    lines = [f"a0: &a0 {first}"]
    for generation in range(1, 10):
        lines.append(f"a{generation}: &a{generation} {step.format(', '.join([f'*a{generation - 1}'] * 10))}")
    return "\n".join([*lines, "train: .", "names: *a9", ""])


def test_aliases_that_multiply_are_refused_in_a_short_sentence(tmp_path: Path) -> None:
    with pytest.raises(UserError) as caught:
        read(tmp_path, multiplied("[x]", "[{}]"))
    assert len(str(caught.value)) < 500


def test_merge_keys_that_multiply_end_with_the_right_names_or_a_refusal(tmp_path: Path) -> None:
    # New versions of PyYAML merge each mapping once; with older ones a billion entries are refused before they are made.
    try:
        found = read(tmp_path, multiplied("{0: x}", "{{<<: [{}]}}"))
    except UserError as error:
        assert "more than 100000 entries" in str(error)
    else:
        assert found.names == {0: "x"}


def test_a_list_that_holds_itself_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="must be a text"):
        read(tmp_path, "train: .\nnames: &a [*a]\n")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("nc: 1000000000", "1000000000 classes"),
        ("names: {0: a, 99999999999: b}", "100000000000 classes"),
        ("nc: 99999999999999999999999", "integer"),
        ("nc: 1_0", "'1_0'"),
        ("names: {0: a, 00: b}", "two entries for one class id"),
        ('names: ["a\\e[31mb"]', "control character"),
        ('names: ["a\\nb"]', "control character"),
        ('names: ["\\ud800"]', "control character"),
        ("kpt_shape: 17\nnames: [a]", "kpt_shape"),
        ("kpt_shape: [17, 4]\nnames: [a]", "kpt_shape"),
        ("annotations: x.json\nnames: [a]", "a json file for each split"),
        ("annotations: {trian: x.json}\nnames: [a]", "knows the splits"),
        ("annotations: {val: x.json}\nnames: [a]", "no val: key"),
        ("annotations: {train: x.json}\nnames: [a]", "x.json' was not found"),
        ("annotations: {train: x.json}", "class ids follow its order"),
    ],
)
def test_numbers_and_names_out_of_bounds_are_refused_at_once(tmp_path: Path, text: str, words: str) -> None:
    with pytest.raises(UserError) as caught:
        read(tmp_path, f"train: .\n{text}\n")
    assert words in str(caught.value)
    assert printable(str(caught.value)) == str(caught.value)


def test_spaces_around_a_name_mean_nothing_and_two_equal_names_are_told(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    found = read(tmp_path, 'train: .\nnames:\n- " cat "\n- >\n  dog\n- cat\n')
    assert found.names == {0: "cat", 1: "dog", 2: "cat"}
    assert "classes 0 and 2 are both called 'cat'" in caplog.text


def test_a_description_of_many_megabytes_is_refused_unread(tmp_path: Path) -> None:
    with (tmp_path / "data.yaml").open("wb") as file:
        file.truncate(1 << 30)
    with pytest.raises(UserError, match="no data set description"):
        read_yaml(tmp_path / "data.yaml")


@pytest.mark.parametrize("source", ['"a\\0b"', '"\\ud800"', "~nobody-is-called-so/x", "x" * 5000, "/".join("x" * 250 for _ in range(30))])
def test_text_that_can_be_no_path_is_refused(tmp_path: Path, source: str) -> None:
    for key in ("train", "path"):
        other = "path: .\n" if key == "train" else "train: images\n"
        with pytest.raises(UserError) as caught:
            list_pictures(read(tmp_path, f"{other}{key}: {source}\nnames: [a]\n"), "train")
        assert printable(str(caught.value)) == str(caught.value)


words = st.text(st.characters(exclude_categories=["C", "Z"]), min_size=1, max_size=6)


@settings(deadline=None, max_examples=150)
@given(
    st.lists(words, min_size=1, max_size=6, unique=True),
    st.sampled_from(["list", "mapping", "text keys", "shuffled"]),
    st.booleans(),
    st.booleans(),
    st.booleans(),
    st.sampled_from(["\n", "\r\n"]),
)
def test_any_names_in_any_shape_come_out_as_they_are(names: list[str], shape: str, flow: bool, counted: bool, ascii_only: bool, end: str) -> None:
    pairs = list(enumerate(names))
    value = {
        "list": names,
        "mapping": dict(pairs),
        "text keys": {str(key): name for key, name in pairs},
        "shuffled": dict(reversed(pairs)),
    }[shape]
    content = {"train": "images", "names": value} | ({"nc": len(names)} if counted else {})
    # Every scalar quoted: what is tested is the shape, "no" and 007 have tests of their own.
    text = yaml.safe_dump(content, default_flow_style=flow, allow_unicode=not ascii_only, default_style="'" if not ascii_only else '"')
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "data.yaml").write_bytes(text.replace("!!int ", "").replace("\n", end).encode())
        found = read_yaml(Path(folder) / "data.yaml")
    assert found.names == dict(pairs)
    assert found.sources["train"] == ("images",)


# --- folders as they grow -----------------------------------------------------------------------------------------------------------------


def test_links_that_go_in_circles_cost_nothing_whatever_the_source(six_pictures: Path) -> None:
    images = six_pictures / "images"
    (images / "self").symlink_to(images / "self")
    (images / "a" / "up").symlink_to(images)
    (images / "b" / "up").symlink_to(images)
    for train in ("images", "images/**/*.*", "images/**", "images/**/**/*.*"):
        # Below the link the folders are walked once more under another name, and no deeper.
        found = names_of(six_pictures, train)
        assert found[:6] == sorted(found)[:6]
        assert [name for name in found if "/up/" not in name] == EXPECTED
        assert len(found) < 30


def test_pictures_of_a_format_that_is_not_read_are_told_and_never_lost_in_silence(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    for name in ("a.HEIC", "b.dng", "c.png"):
        write_text(tmp_path / "images" / name, "x")
    assert names_of(tmp_path, "images") == ["images/c.png"]
    assert "2 files are pictures of a format that is not read (.dng, .heic; for example" in caplog.text


def test_odd_lines_of_a_list_are_told_and_the_others_used(six_pictures: Path) -> None:
    (six_pictures / "list.txt").write_bytes(b"images/a/1.JPG\n" + b"x" * 5000 + b"\nimages/\x00.png\n~nobody-is-called-so/x.png\n")
    yaml_path = write_text(six_pictures / "data.yaml", "train: list.txt\nnames: [x]\n")
    listing = list_pictures(read_yaml(yaml_path), "train")
    assert listing.pictures == [str(six_pictures / "images/a/1.JPG")]
    assert sorted(reason.split(" names it")[0].rpartition(":")[2] for _, reason in listing.skipped) == ["2", "3", "4"]


def test_names_that_are_no_text_or_hold_line_breaks_are_pictures_like_others(tmp_path: Path) -> None:
    for name in ("line\nbreak.png", os.fsdecode(b"\xff\xfe.png"), "ünï.png", "sp ace.png", "=1+1.png", "'\"<b>.png"):
        save_picture(tmp_path / "images" / name)
    assert len(names_of(tmp_path, "images")) == 6
    assert len(names_of(tmp_path, "images/*.png")) == 6


def test_a_json_in_the_place_of_pictures_is_told_where_it_belongs(six_pictures: Path) -> None:
    write_text(six_pictures / "train.json", "{}")
    with pytest.raises(UserError, match="the json in annotations:"):
        names_of(six_pictures, "train.json")
