"""What `python -m libreyolo check --task semantic` finds, and what it prints."""

from __future__ import annotations

import hashlib
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from libreyolo import check
from libreyolo.__main__ import main
from libreyolo.data.semantic_shapes import make_semantic_shapes
from libreyolo.interfaces.data_report import DataReport
from tests.unit.data.conftest import save_picture, write_text


def found(report: DataReport) -> dict[tuple[str, str, str], tuple[str, ...]]:
    return {(f.level, f.split, f.what): f.places for f in report.findings}


def save_mask(path: Path, values: int | np.ndarray) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(np.broadcast_to(np.asarray(values, np.uint8), (24, 32)).copy()).save(path)


def test_a_clean_set_has_counts_by_split_and_class_and_nothing_to_say(tmp_path: Path) -> None:
    report = check(make_semantic_shapes(tmp_path / "set", num_train=6, num_val=2, size=40), task="semantic")
    assert report.findings == []
    assert not report.has_errors
    assert {k: v for k, v in report.counts["val"].items() if v} == {"pictures": 2, "labelled pixels": 2 * 40 * 40}
    assert [name for _, name, _ in report.classes][:2] == ["background", "circle"]
    assert sum(count["train"] for _, _, count in report.classes) == 6 * 40 * 40


def test_every_problem_is_told_at_once_with_its_file_and_no_file_is_touched(tmp_path: Path) -> None:
    pictures, masks = tmp_path / "images" / "train", tmp_path / "masks" / "train"
    for index in range(6):
        save_picture(pictures / f"{index}.jpg", seed=index)
        if index != 1:
            save_mask(masks / f"{index}.png", [7, 9][index == 3])
    save_mask(masks / "2.png", 200)
    Image.new("RGB", (32, 24)).save(masks / "4.png")
    (pictures / "5.jpg").write_bytes(b"<html>")
    save_mask(masks / "spare.png", 7)
    path = write_text(tmp_path / "data.yaml", "train: images/train\nnames: [a, b]\nlabel_mapping: {7: 0, 200: 255}\n")
    before = {p: hashlib.sha256(p.read_bytes()).hexdigest() for p in tmp_path.rglob("*") if p.is_file()}
    report = check(path, task="semantic")
    assert {p: hashlib.sha256(p.read_bytes()).hexdigest() for p in tmp_path.rglob("*") if p.is_file()} == before
    told = found(report)
    assert report.has_errors
    [missing] = told["error", "train", "pictures without a mask: 1"]
    assert f"there is no {masks / '1.png'}" in missing
    [wrong] = told["error", "train", "masks that are wrong: 1"]
    assert f"{masks / '4.png'}: it is a picture of mode RGB" in wrong
    assert told["warning", "train", "values that label_mapping leaves out, whose pixels are ignored: 1"] == ("9 (768 px)",)
    [skipped] = told["warning", "train", "pictures that cannot be used and would be skipped: 1"]
    assert str(pictures / "5.jpg") in skipped
    assert told["warning", "", "masks that belong to no picture: 1"] == (str(masks / "spare.png"),)
    assert ("warning", "", "there is no val: key, so nothing would be validated") in told
    assert any(what.startswith("no pixel of the training masks has the class b") for _, _, what in told)
    assert report.counts["train"]["pictures"] == 3


@pytest.mark.parametrize(
    ("yaml", "words"),
    [
        ("train: images/train\nnames: [a]\nlabel_mapping: {7: 4}\n", "label_mapping gives 7 the class id 4"),
        ("train: nowhere\nnames: [a]\nmasks_dir: masks\n", "'nowhere' was not found"),
        ("train: images/train\nnames: [a]\n", "no picture has a mask or a label file"),
        ("train: images/train\nnames: [a]\nannotations: {train: a.json}\n", "annotations"),
        ("names: [a\n", "is not valid YAML"),
    ],
)
def test_what_stops_the_reading_is_a_finding(yaml: str, words: str, tmp_path: Path) -> None:
    save_picture(tmp_path / "images" / "train" / "0.jpg")
    write_text(tmp_path / "a.json", "{}")
    report = check(write_text(tmp_path / "data.yaml", yaml), task="semantic")
    assert any(words in finding.what and finding.level == "error" for finding in report.findings), report.findings


def test_the_command_prints_the_report_and_writes_samples(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data = make_semantic_shapes(tmp_path / "set", num_train=6, num_val=1, size=40)
    assert main(["check", str(data), "--task", "semantic", "--save", str(tmp_path / "samples.png")]) == 0
    assert "circle" in capsys.readouterr().out
    assert Image.open(tmp_path / "samples.png").width > 1000
    save_mask(data.parent / "masks" / "train" / "00002.png", 0)
    assert main(["check", str(data), "--task", "semantic"]) == 1
    assert "00002.png is 32x24, its picture 40x40" in capsys.readouterr().out
