"""What a check says of a set of class folders: everything at once, nothing raised, nothing written."""

from __future__ import annotations

from pathlib import Path

import pytest
from PIL import Image

from libreyolo.assembly import check
from tests.unit.data.conftest import save_picture, write_text
from tests.unit.data.test_class_folders import PETS, build, digest


def said(root: Path) -> dict[tuple[str, str], str]:
    """Return (level, split) and the beginning of each finding -> its places, joined."""
    return {(f.level, f"{f.split}: {f.what}"): "; ".join(f.places) for f in check(root, task="classify").findings}


def test_a_good_set_is_counted_by_split_and_class_and_drawn(tmp_path: Path) -> None:
    root = tmp_path / "pets"
    for split, seed in (("train", 10), ("val", 90)):
        for i, name in enumerate(("cat", "dog")):
            save_picture(root / split / name / f"{split}-{name}.png", seed=seed + i)
    report = check(root, task="classify")
    assert (report.has_errors, report.findings) == (False, [])
    assert report.counts["train"] == {"pictures": 2, "classes": 2, "skipped": 0}
    assert report.classes == [(0, "cat", {"train": 1, "val": 1}), (1, "dog", {"train": 1, "val": 1})]
    assert report.draw_samples is not None
    report.draw_samples(tmp_path / "samples.png")
    assert Image.open(tmp_path / "samples.png").size[0] > 600


def test_everything_odd_is_named_and_nothing_is_written(tmp_path: Path) -> None:
    build(tmp_path, PETS)  # the pictures of one number are the same in both splits and both classes
    write_text(tmp_path / "train" / "cat" / "page.jpg", "<html>")
    save_picture(tmp_path / "train" / "loose.png", seed=50)
    write_text(tmp_path / "train" / "dog" / "phone.heic", "x")
    before = digest(tmp_path)
    found = said(tmp_path)
    assert "page.jpg: it is not a picture" in found["warning", "train: pictures that cannot be used and would be skipped: 2"]
    assert "loose.png: it lies beside the class folders" in found["warning", "train: pictures that cannot be used and would be skipped: 2"]
    assert "phone.heic" in found["warning", "train: pictures of a format that is not read; convert them to JPEG or PNG: 1"]
    assert any(what.startswith(": pictures of val that are in train too (the same bytes)") for _, what in found)
    assert digest(tmp_path) == before


@pytest.mark.parametrize(
    ("splits", "level", "beginning"),
    [
        ({"train": {"cat": 1, "dog": 0}}, "error", "train: PLACE: there is no training picture of class dog"),
        ({**PETS, "val": {"emu": 1}}, "error", "val: PLACE/val/emu is a class that the training split of PLACE does not have"),
        ({"train": PETS["train"]}, "warning", ": there are no validation pictures"),
        ({"train": {"cat": 2}, "val": {"cat": 1}}, "warning", ": there is one class only, cat"),
        ({}, "error", ": PLACE holds neither train/CLASS"),
    ],
)
def test_what_stops_or_spoils_a_training_is_a_finding(tmp_path: Path, splits: dict[str, dict[str, int]], level: str, beginning: str) -> None:
    report = check(build(tmp_path, splits), task="classify")
    assert report.has_errors == (level == "error")
    wanted = beginning.replace("PLACE", str(tmp_path))
    assert any(f.level == level and f"{f.split}: {f.what}".startswith(wanted) for f in report.findings)
