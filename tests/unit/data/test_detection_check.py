"""What `python -m libreyolo check` finds, and what it prints."""

from __future__ import annotations

import hashlib
import io
import re
from importlib import import_module
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from libreyolo import check
from libreyolo.__main__ import main
from libreyolo.errors import UserError
from libreyolo.interfaces.data_report import DataReport, Finding
from libreyolo.record.data_report import write_report
from libreyolo.schema import families
from tests.unit.data.conftest import BuildSet, save_picture, write_text

BOX = "0 0.5 0.5 0.5 0.5\n"
BOTH = BOX + "1 0.25 0.25 0.25 0.25\n"


def found(report: DataReport, words: str) -> Finding:
    """The one finding that says `words`."""
    (finding,) = (finding for finding in report.findings if words in finding.what)
    return finding


def smooth_picture(path: Path, seed: int, *, hw: tuple[int, int] = (48, 64), quality: int = 95) -> None:
    """A picture with the low frequencies of a photograph."""
    coarse = np.random.default_rng(seed).integers(0, 256, (4, 5, 3), dtype=np.uint8)
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(coarse).resize((64, 48), Image.Resampling.BICUBIC).resize(hw[::-1], Image.Resampling.BILINEAR).save(path, quality=quality)


def test_a_clean_set_has_counts_by_split_and_class_and_nothing_to_say(tmp_path: Path) -> None:
    for split, seed in (("train", 0), ("val", 10)):
        for index in range(2):
            smooth_picture(tmp_path / "images" / split / f"{index}.jpg", seed + index)
            write_text(tmp_path / "labels" / split / f"{index}.txt", BOTH if index else "")
    report = check(write_text(tmp_path / "data.yaml", "train: images/train\nval: images/val\nnames: [a, b]\n"))
    assert report.findings == []
    assert not report.has_errors
    assert {k: v for k, v in report.counts["train"].items() if v} == {"pictures": 2, "boxes": 2, "background": 1, "empty label files": 1}
    assert report.classes == [(0, "a", {"train": 1, "val": 1}), (1, "b", {"train": 1, "val": 1})]


def test_every_problem_is_told_at_once_with_file_and_line(build_set: BuildSet) -> None:
    path = build_set([BOTH, "9 0.5 0.5 0.1 0.1\n", "0 0.5 0.5 0.1\n", "0 7 7 1 1\n", BOTH, "0 0.99 0.5 0.1 0.1\n"], [BOTH])
    labels = path.parent / "labels" / "train"
    (path.parent / "images" / "train" / "04.jpg").write_bytes(b"<html>")
    report = check(path)
    assert report.has_errors
    wrong = found(report, "label rows that are wrong")
    assert (wrong.level, wrong.split) == ("error", "train")
    assert [place.split(" has ")[0] for place in wrong.places] == [f"{labels / '01.txt'}:1", f"{labels / '02.txt'}:1"]
    assert found(report, "would be dropped").places[0].startswith(f"{labels / '03.txt'}:1 is not normalised")
    assert found(report, "cannot be used").places == (f"{path.parent / 'images' / 'train' / '04.jpg'}: it is not a picture",)
    assert found(report, "would be clipped").places == (f"{labels / '05.txt'}:1",)
    assert report.counts["train"]["pictures"] == 5


def test_a_picture_that_breaks_only_when_decoded_is_an_error_here(build_set: BuildSet) -> None:
    path = build_set([BOTH], [BOTH])
    picture = save_picture(path.parent / "images" / "train" / "zz.png", (40, 40))
    raw = bytearray(picture.read_bytes())
    raw[len(raw) // 2] ^= 0xFF  # head and tail stay whole, which is all that a training looks at before it begins
    picture.write_bytes(raw)
    broken = found(check(path), "cannot be decoded")
    assert broken.level == "error"
    assert broken.places[0].startswith(str(picture))


def test_leaks_are_found_by_bytes_by_looks_and_by_name(tmp_path: Path) -> None:
    images = tmp_path / "images"
    for index in range(4):
        smooth_picture(images / "train" / f"{index}.jpg", index)
    smooth_picture(images / "train" / "street.jpg", 7)
    (images / "val").mkdir()
    (images / "val" / "same.jpg").write_bytes((images / "train" / "2.jpg").read_bytes())
    smooth_picture(images / "val" / "smaller.jpg", 1, hw=(36, 48), quality=60)
    smooth_picture(images / "val" / "street.jpg", 8)
    smooth_picture(images / "val" / "3.jpg", 9)  # a number alone says nothing
    path = write_text(tmp_path / "data.yaml", "train: images/train\nval: images/val\nnames: [a]\n")
    report = check(path)
    assert found(report, "the same bytes").places == (f"{images / 'train' / '2.jpg'} = {images / 'val' / 'same.jpg'}",)
    assert found(report, "look the same").places == (f"{images / 'train' / '1.jpg'} ~ {images / 'val' / 'smaller.jpg'}",)
    assert found(report, "name of one in train").places == (f"{images / 'train' / 'street.jpg'} and {images / 'val' / 'street.jpg'}",)
    assert not report.has_errors


def test_one_folder_for_both_splits_is_told(build_set: BuildSet) -> None:
    path = build_set([BOTH], yaml="train: images/train\nval: images\nnames: [a, b]\n")
    assert len(found(check(path), "the same files").places) == 1


def test_dark_pictures_that_differ_are_no_leak(tmp_path: Path) -> None:
    for split, spot in (("train", (2, 2)), ("val", (40, 50))):
        pixels = np.full((48, 64), 4, np.uint8)
        pixels[spot[0] : spot[0] + 3, spot[1] : spot[1] + 3] = 60
        (tmp_path / split).mkdir()
        Image.fromarray(pixels).save(tmp_path / split / f"{split}.png")
    report = check(write_text(tmp_path / "data.yaml", "train: train\nval: val\nnames: [a]\n"))
    assert not [finding for finding in report.findings if "look the same" in finding.what]


def test_odd_pictures_are_noted_by_kind(tmp_path: Path) -> None:
    images = tmp_path / "images"
    images.mkdir()
    exif = Image.Exif()
    exif[0x0112] = 6
    Image.new("RGB", (40, 20)).save(images / "turned.jpg", exif=exif)
    Image.new("CMYK", (16, 16)).save(images / "print.jpg")
    Image.new("L", (16, 16), 9).save(images / "moving.gif", save_all=True, append_images=[Image.new("L", (16, 16), 200)])
    Image.new("RGB", (300, 20)).save(images / "long.png")
    write_text(images / "phone.heic", "x")
    report = check(write_text(tmp_path / "data.yaml", "train: images\nnames: [a]\n"))
    assert found(report, "of mode CMYK").places == (str(images / "print.jpg"),)
    assert found(report, "turned by EXIF").places == (f"{images / 'turned.jpg'} (orientation 6)",)
    assert found(report, "several frames").places == (f"{images / 'moving.gif'} (2)",)
    assert found(report, "times as long").places == (f"{images / 'long.png'} (300x20)",)
    assert found(report, "not read").places == (str(images / "phone.heic"),)
    assert found(report, "no val: key")
    assert found(report, "no picture has a label file")


def test_odd_labels_are_told_by_kind(build_set: BuildSet) -> None:
    twice = "0 0.5 0.5 0.5 0.5\n0 0.501 0.5 0.5 0.5\n1 0.5 0.5 0.5 0.5\n"
    path = build_set([twice, "0 0.5 0.5 0.05 0.5\n"], [BOTH], nc=3)
    train = path.parent / "images" / "train"
    save_picture(train / "00.png")
    write_text(path.parent / "labels" / "train" / "lost.txt", BOX)
    write_text(path.parent / "labels" / "train" / "classes.txt", "a\nb\n")
    report = check(path)
    assert found(report, "nearly the same").places == (f"{train / '00.jpg'} (1)", f"{train / '00.png'} (1)")
    assert found(report, "below 2 pixels").places == (f"{train / '01.jpg'} (1)",)
    assert found(report, "of several pictures each").places == (str(path.parent / "labels" / "train" / "00.txt"),)
    assert found(report, "belong to no picture").places == (str(path.parent / "labels" / "train" / "lost.txt"),)
    assert found(report, "without a box").places == ("2 name2",)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("names: [a]\n", "no train: key"),
        ("train: nowhere\nnames: [a]\n", "'nowhere' was not found"),
        ("train: images/train\nannotations: {train: data.yaml}\nnames: [a]\n", "is no JSON"),
        ("train: [\n", "not valid YAML"),
    ],
)
def test_a_set_that_cannot_be_read_is_an_error_and_no_exception(build_set: BuildSet, text: str, words: str) -> None:
    report = check(build_set([BOX], yaml=text))
    assert report.has_errors
    assert found(report, words)


def test_half_of_the_pictures_gone_is_the_error_that_it_is_in_training(build_set: BuildSet) -> None:
    path = build_set([BOX] * 3, [BOTH])
    for name in ("00.jpg", "01.jpg"):
        (path.parent / "images" / "train" / name).write_bytes(b"")
    assert len(found(check(path), "more than half").places) == 2


def test_an_unknown_task_is_refused_with_the_known_ones() -> None:
    with pytest.raises(UserError, match="detect"):
        check("data.yaml", task="detekt")


def test_nothing_of_the_data_is_written(build_set: BuildSet) -> None:
    path = build_set([BOTH, "9 1 1 1 1\n"], [BOTH])
    before = {file: hashlib.sha256(file.read_bytes()).digest() for file in path.parent.rglob("*") if file.is_file()}
    check(path)
    assert {file: hashlib.sha256(file.read_bytes()).digest() for file in path.parent.rglob("*") if file.is_file()} == before


# --- the command ----------------------------------------------------------------------------------------------------------------------------


def test_the_command_prints_the_report_draws_samples_and_leaves_with_0(
    build_set: BuildSet, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = build_set([BOTH, BOTH], [BOTH])
    page = tmp_path / "out" / "page.png"
    assert main(["check", str(path), "--save", str(page)]) == 0
    told = capsys.readouterr().out
    assert re.search(r"^train +2 +4 +0", told, re.MULTILINE)
    assert re.search(r"^1 name1 +2 +1$", told, re.MULTILINE)
    assert told.rstrip().splitlines()[-2].endswith("a training would start.")
    with Image.open(page) as drawn:
        assert drawn.width > 3 * 320
        assert np.asarray(drawn).std() > 10


def test_the_command_leaves_with_1_where_a_training_would_stop(build_set: BuildSet, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", str(build_set(["9 0.5 0.5 0.1 0.1\n"] * 8, [BOTH])), "--places", "2"]) == 1
    told = capsys.readouterr().out
    assert "ERROR  train: label rows that are wrong: 8." in told
    assert told.count("00.txt:1") == told.count("01.txt:1") == 1
    assert "02.txt" not in told
    assert "and 6 more" in told
    assert "a training would stop." in told


def test_samples_that_cannot_be_written_are_told_after_the_report(build_set: BuildSet, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "file").touch()
    assert main(["check", str(build_set([BOTH], [BOTH])), "--save", str(tmp_path / "file" / "page.png")]) == 1
    told = capsys.readouterr()
    assert "a training would start." in told.out
    assert told.err.startswith(f"{tmp_path / 'file' / 'page.png'} could not be written (")
    assert told.err.count("\n") == 1


@pytest.mark.parametrize("terminal", [False, True])
def test_names_are_shown_as_text_and_never_obeyed(terminal: bool) -> None:
    report = DataReport("a\x1b[31m/data.yaml", {"train": {"pictures": 1}}, [(0, "[red]x[/red]", {"train": 1})])
    report.add("note", "train", "odd", ["line\nbreak.png", "\x1b]0;title\x07.png"])

    class Stream(io.StringIO):
        encoding = "utf-8"

        def isatty(self) -> bool:
            return terminal

    stream = Stream()
    write_report(report, stream)
    told = re.sub(r"\x1b\[[0-9;]*m", "", stream.getvalue()) if terminal else stream.getvalue()
    assert "[red]x[/red]" in told
    assert "\\x1b]0;title\\x07.png" in told
    assert "line\\nbreak.png" in told
    assert "\x07" not in told
    assert "\x1b]0" not in told
    assert "a\\x1b[31m/data.yaml" in told


def test_a_name_beyond_the_terminal_s_letters_is_escaped() -> None:
    buffer = io.BytesIO()
    stream = io.TextIOWrapper(buffer, encoding="ascii")
    write_report(DataReport("数据.yaml"), stream)
    stream.flush()
    assert buffer.getvalue().startswith(b"\\u6570\\u636e.yaml")


def test_every_task_that_can_be_trained_can_be_checked() -> None:
    for task in {family.task for family in families().values()}:
        assert callable(import_module(f"libreyolo.assembly.{task}").ASSEMBLY.check), task
