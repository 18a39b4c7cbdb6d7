"""data.yaml files and folders as other people make them: odd, careless or hostile."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from libreyolo.data.dataset_yaml import read_yaml
from libreyolo.data.sources import list_pictures
from libreyolo.errors import UserError, printable
from tests.unit.data.conftest import save_picture, write_text
from tests.unit.data.test_dataset_yaml import EXPECTED, names_of, read


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
