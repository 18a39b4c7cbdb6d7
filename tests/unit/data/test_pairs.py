"""Restoration sets in the forms that users have: read right, or refused in one sentence."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from libreyolo.assembly import check
from libreyolo.data import pair_scan
from libreyolo.data.restore import RestoreData, load_restore
from libreyolo.errors import UserError
from tests.unit.data.conftest import save_picture, write_text


def pairs_below(root: Path, inputs: str, targets: str, names: list[str], *, suffix: str = "") -> None:
    """Write a pair for each name; a target's first value is 100 more than its input's seed, so that it can be told."""
    for seed, name in enumerate(names):
        save_picture(root / inputs / name, seed=seed)
        path = Path(name)
        save_picture(root / targets / path.with_name(f"{path.stem}{suffix}{path.suffix}"), seed=100 + seed)


def told(yaml: Path) -> str:
    with pytest.raises(UserError) as caught:
        load_restore(yaml)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def paths(data: RestoreData, split: str = "train") -> list[tuple[str, str]]:
    pairs = getattr(data, split)
    root = data.yaml_path.parent
    return [(str(pairs.inputs.path(i).relative_to(root)), str(pairs.targets.path(i).relative_to(root))) for i in range(len(pairs))]


@pytest.mark.parametrize(
    ("inputs", "targets", "yaml"),
    [
        ("inputs/train", "targets/train", "train: inputs/train\n"),
        ("train/inputs", "train/targets", "train: train\n"),
        ("train/inputs", "train/targets", "train: train/inputs\n"),
        ("train/lq", "train/gt", "train: train\nlq: lq\ngt: gt\n"),
        ("low/x1/train", "high/train", "train: low/x1/train\ninput_dir: low/x1\ntarget_dir: high\n"),
        ("train/scene1/blur", "train/scene1/sharp", "train: train\ninput_dir: blur\ntarget_dir: sharp\n"),
        ("inputs/train", "targets/train", "train: 'inputs/*'\nnc: 1\nnames: [image]\n"),
        ("inputs/train", "targets/train", "train: [inputs/train/a.png, inputs/train/b.png]\n"),
        ("inputs/train", "targets/train", "train: list.txt\n"),
        ("inputs/train", "targets/train", "path: .\ntrain: .\n"),
    ],
)
def test_every_layout_gives_the_same_pairs(inputs: str, targets: str, yaml: str, tmp_path: Path) -> None:
    pairs_below(tmp_path, inputs, targets, ["a.png", "b.png"])
    write_text(tmp_path / "list.txt", f"# inputs\n{inputs}/a.png\r\n\n{inputs}/b.png\n")
    data = load_restore(write_text(tmp_path / "data.yaml", yaml))
    assert paths(data) == [(f"{inputs}/{n}.png", f"{targets}/{n}.png") for n in "ab"]
    given, target = data.train.pair(1)
    assert (given == np.asarray(Image.open(tmp_path / inputs / "b.png"))).all()
    assert (target == np.asarray(Image.open(tmp_path / targets / "b.png"))).all()
    assert data.val is None


def test_the_last_folder_of_either_name_decides(tmp_path: Path) -> None:
    """A set may lie below a folder that is itself called inputs."""
    pairs_below(tmp_path / "inputs" / "targets", "train/inputs", "train/targets", ["a.png"])
    data = load_restore(write_text(tmp_path / "inputs" / "targets" / "data.yaml", "train: train\n"))
    assert paths(data) == [("train/inputs/a.png", "train/targets/a.png")]


@pytest.mark.parametrize(("given", "suffixes"), [("_gt", "_gt"), ("_gt", "['', _gt]"), ("", "[_gt, '']")])
def test_a_target_s_name_may_go_on(given: str, suffixes: str, tmp_path: Path) -> None:
    pairs_below(tmp_path, "inputs", "targets", ["a.png"], suffix=given)
    data = load_restore(write_text(tmp_path / "data.yaml", f"train: inputs\ntarget_stem_suffix: {suffixes}\n"))
    assert paths(data) == [("inputs/a.png", f"targets/a{given}.png")]


def test_pictures_of_other_formats_are_partners(tmp_path: Path) -> None:
    save_picture(tmp_path / "inputs" / "a.jpg")
    save_picture(tmp_path / "targets" / "a.PNG", seed=1)
    save_picture(tmp_path / "inputs" / "b.png")
    save_picture(tmp_path / "targets" / "b.png", seed=1)
    save_picture(tmp_path / "targets" / "b.jpg", seed=2)  # the one of the input's own format is meant
    data = load_restore(write_text(tmp_path / "data.yaml", "train: inputs\n"))
    assert paths(data) == [("inputs/a.jpg", "targets/a.PNG"), ("inputs/b.png", "targets/b.png")]


def test_what_has_no_partner_is_named_and_the_rest_is_used(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    pairs_below(tmp_path, "train/inputs", "train/targets", ["a.png", "b.png", "c.png", "d.png", "e.png"])
    (tmp_path / "train/targets/b.png").unlink()
    (tmp_path / "train/inputs/c.png").unlink()
    save_picture(tmp_path / "train" / "other" / "x.png")
    for name in ("d.jpg", "d.bmp"):
        save_picture(tmp_path / "train" / "targets" / name)
    (tmp_path / "train/targets/d.png").unlink()
    with caplog.at_level(logging.INFO):
        data = load_restore(write_text(tmp_path / "data.yaml", "train: train\n"))
    assert [given for given, _ in paths(data)] == ["train/inputs/a.png", "train/inputs/e.png"]
    assert "train: 2 pairs of pictures, 2 skipped" in caplog.text
    assert f"{tmp_path}/train/inputs/b.png: it has no target: there is no b with a picture's suffix in {tmp_path}/train/targets" in caplog.text
    assert "d.png: it has 2 targets" in caplog.text
    assert f"3 targets have no input and are not used (for example {tmp_path}/train/targets/c.png)" in caplog.text
    assert f"1 pictures are in no folder called inputs nor targets and are not used (for example {tmp_path}/train/other/x.png)" in caplog.text


def test_broken_pictures_are_skipped_by_name_and_no_file_is_touched(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    pairs_below(tmp_path, "inputs", "targets", [f"{n}.png" for n in "abcdef"])
    whole = (tmp_path / "inputs/a.png").read_bytes()
    (tmp_path / "inputs/a.png").write_bytes(whole[: len(whole) * 6 // 10])
    (tmp_path / "targets/b.png").write_bytes(b"")
    before = {p: hashlib.sha256(p.read_bytes()).digest() for p in tmp_path.rglob("*") if p.is_file()}
    with caplog.at_level(logging.WARNING):
        data = load_restore(write_text(tmp_path / "data.yaml", "train: inputs\n"))
    assert len(data.train) == 4
    assert f"{tmp_path}/inputs/a.png: " in caplog.text
    assert f"{tmp_path}/inputs/b.png: its target {tmp_path}/targets/b.png: the file is empty" in caplog.text
    assert {p: hashlib.sha256(p.read_bytes()).digest() for p in before} == before


def test_pictures_of_two_sizes_stop_the_run(tmp_path: Path) -> None:
    pairs_below(tmp_path, "inputs", "targets", ["a.png", "b.png"])
    save_picture(tmp_path / "targets" / "b.png", (25, 32))
    sentence = told(write_text(tmp_path / "data.yaml", "train: inputs\n"))
    assert f"train: 1 pairs differ in size: {tmp_path}/inputs/b.png is 32x24, its target {tmp_path}/targets/b.png is 32x25" in sentence
    assert "enlarging" not in sentence


def test_targets_that_are_larger_by_one_factor_are_told_as_such(tmp_path: Path) -> None:
    for name in ("a.png", "b.png"):
        save_picture(tmp_path / "inputs" / name)
        save_picture(tmp_path / "targets" / name, (96, 128))
    assert "enlarging by 4 is not trained here, give each input a target of its own size" in told(
        write_text(tmp_path / "data.yaml", "train: inputs\n")
    )


def test_deep_grey_and_turned_pictures_are_read(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "inputs").mkdir(), (tmp_path / "targets").mkdir()
    deep = np.arange(24 * 32, dtype=np.uint16).reshape(24, 32) * 80
    Image.fromarray(deep).save(tmp_path / "inputs" / "a.png")
    Image.fromarray((deep >> 8).astype(np.uint8)).save(tmp_path / "targets" / "a.png")  # grey
    turned = Image.new("RGB", (24, 32), (9, 9, 9))
    exif = turned.getexif()
    exif[0x0112] = 6
    turned.save(tmp_path / "inputs" / "b.jpg", exif=exif)
    save_picture(tmp_path / "targets" / "b.png")
    with caplog.at_level(logging.WARNING):
        data = load_restore(write_text(tmp_path / "data.yaml", "train: inputs\n"))
    assert "train: 1 pictures have 16 bits a channel and are read with 8." in caplog.text
    given, target = data.train.pair(0)
    assert given.shape == target.shape == (24, 32, 3)
    assert abs(given[..., 0].astype(int) - deep / 257).max() <= 0.5
    assert data.train.pair(1)[0].shape == (24, 32, 3)


@pytest.mark.parametrize(
    ("yaml", "words"),
    [
        ("train: inputs\ninput_dir: x\ntarget_dir: x\n", "input_dir and target_dir are both 'x'"),
        ("train: inputs\ninput_dir: a\nlq: b\n", "input_dir: and lq: mean the same; keep one of them"),
        ("train: inputs\ninput_dir: ../a\n", "input_dir: must be the name of a folder, like inputs, not '../a'"),
        ("train: inputs\ntarget_stem_suffix: {a: b}\n", "target_stem_suffix must be what a target's name ends with"),
        ("train: inputs\nscale: 4\n", "scale: 4 asks for pictures to be enlarged, which is not trained here"),
        ("val: inputs\n", "there is no train: key"),
        ("train: nowhere\n", "'nowhere' was not found"),
        ("train: inputs\ninput_dir: noisy\n", "holds 2 pictures but none in a folder called noisy"),
        ("train: targets\n", "holds 2 pictures but none in a folder called inputs"),
        ("train: inputs\ntarget_dir: clean\n", "none of the 2 pictures is usable"),
        ("train: empty\n", "train: holds no picture; correct it"),
    ],
)
def test_a_mistake_in_the_description_is_one_sentence(yaml: str, words: str, tmp_path: Path) -> None:
    pairs_below(tmp_path, "inputs", "targets", ["a.png", "b.png"])
    (tmp_path / "empty").mkdir()
    sentence = told(write_text(tmp_path / "data.yaml", yaml))
    assert words in sentence
    assert str(tmp_path) in sentence


def test_a_detection_set_is_told_from_a_restoration_set(tmp_path: Path) -> None:
    save_picture(tmp_path / "images" / "train" / "a.jpg")
    sentence = told(write_text(tmp_path / "data.yaml", "train: images/train\nnames: [a]\n"))
    assert "say where the pictures to be restored are: input_dir: NAME, and target_dir: NAME for their targets" in sentence


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The files whose headers were read."""
    seen: list[str] = []
    original: Callable[..., Any] = pair_scan.probe_picture

    def probe(path: str) -> Any:
        seen.append(Path(path).name)
        return original(path)

    monkeypatch.setattr(pair_scan, "probe_picture", probe)
    return seen


def test_a_set_is_scanned_once_and_again_when_a_file_of_either_side_changes(tmp_path: Path, opened: list[str]) -> None:
    pairs_below(tmp_path, "inputs", "targets", ["a.png", "b.png", "c.png"])
    (tmp_path / "targets/c.png").write_bytes(b"broken")
    yaml = write_text(tmp_path / "data.yaml", "train: inputs\n")
    first = load_restore(yaml)
    assert len(opened) == 6
    again = load_restore(yaml)
    assert len(opened) == 6
    assert paths(again) == paths(first)
    assert again.report["train"] == first.report["train"]
    save_picture(tmp_path / "targets" / "c.png", seed=7)
    assert len(load_restore(yaml).train) == 3
    assert len(opened) == 12


def test_a_picture_that_changes_after_the_scan_is_named(tmp_path: Path) -> None:
    pairs_below(tmp_path, "inputs", "targets", ["a.png"])
    data = load_restore(write_text(tmp_path / "data.yaml", "train: inputs\n"))
    save_picture(tmp_path / "targets" / "a.png", (10, 10))
    for ask in (lambda: data.train.pair(0), lambda: data.train.parts(0, (0, 0, 4, 4))):
        with pytest.raises(UserError, match=r"targets/a\.png was 32x24 at the scan and has changed since"):
            ask()
    (tmp_path / "targets" / "a.png").write_bytes(b"<html>")
    with pytest.raises(UserError, match=r"targets/a\.png was fine at the scan, now it is not a picture; restore or remove it"):
        data.train.parts(0, (0, 0, 4, 4))


@pytest.mark.parametrize("cache", ["auto", "ram", "disk"])
def test_a_cache_gives_the_same_pixels(cache: Any, tmp_path: Path) -> None:
    pairs_below(tmp_path, "inputs", "targets", ["a.png", "b.png"])
    yaml = write_text(tmp_path / "data.yaml", "train: inputs\nval: inputs\n")
    plain, cached = load_restore(yaml), load_restore(yaml, cache=cache)
    for _ in range(2):
        for one, other in zip(plain.train.pair(1), cached.train.pair(1), strict=True):
            assert (one == other).all()
            assert one.shape == (24, 32, 3)
        for whole, one, other in zip(plain.train.pair(1), plain.train.parts(1, (2, 3, 20, 31)), cached.train.parts(1, (2, 3, 20, 31)), strict=True):
            assert (one == whole[2:20, 3:31]).all()
            assert (one == other).all()
    cached.train.close()
    assert cached.val is not None
    cached.val.close()


def test_a_check_tells_everything_at_once_and_raises_nothing(tmp_path: Path) -> None:
    pairs_below(tmp_path, "train/inputs", "train/targets", [f"{n}.png" for n in "abcdef"])
    pairs_below(tmp_path, "val/inputs", "val/targets", ["a.png", "x.png"])
    save_picture(tmp_path / "train" / "targets" / "b.png", (48, 64))
    (tmp_path / "train/targets/c.png").unlink()
    (tmp_path / "train/inputs/d.png").unlink()
    report = check(write_text(tmp_path / "data.yaml", "train: train\nval: val\n"), task="restore", cwd=tmp_path)
    told = {(f.level, f.split): f.what for f in report.findings}
    assert report.has_errors
    assert report.counts["train"] == {"pairs": 3, "skipped": 1, "16-bit pictures": 0}
    assert "train: 1 pairs differ in size" in told["error", "train"]
    words = " | ".join(f"{f.level} {f.what}" for f in report.findings)
    assert "warning pairs that cannot be used and would be skipped: 1" in words
    assert "warning targets without an input, which would not be used: 1" in words
    assert "warning pictures of val that are in train too (the same bytes): 1" in words
    assert report.draw_samples is not None
    report.draw_samples(tmp_path / "samples.png")
    assert Image.open(tmp_path / "samples.png").width > 600
    assert check(tmp_path / "nothing.yaml", task="restore", cwd=tmp_path).has_errors


def test_names_in_other_code_points_are_a_pair(tmp_path: Path) -> None:
    save_picture(tmp_path / "inputs" / "e\u0301.png", seed=0)
    save_picture(tmp_path / "targets" / "\u00e9_gt.png", seed=1)
    data = load_restore(write_text(tmp_path / "data.yaml", "train: inputs\ntarget_stem_suffix: _gt\n"))
    assert paths(data) == [("inputs/e\u0301.png", "targets/\u00e9_gt.png")]


@pytest.mark.parametrize("folder", ["/sets/inputs", "C:\\sets\\inputs", "~/inputs"])
def test_a_folder_that_begins_at_a_root_is_refused(folder: str, tmp_path: Path) -> None:
    assert f"input_dir: must be the name of a folder, like inputs, not {folder!r}" in told(
        write_text(tmp_path / "data.yaml", f"train: train\ninput_dir: {folder}\n")
    )


def test_a_set_of_unread_formats_is_told_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    write_text(tmp_path / "inputs" / "a.heic", "x")
    assert "train: holds no picture (1 files are pictures of a format that is not read (.heic;" in told(
        write_text(tmp_path / "data.yaml", "train: inputs\n")
    )
    assert caplog.text.count("a.heic") == 1


def test_a_target_of_two_inputs_is_told_by_a_training_and_by_the_check(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    pairs_below(tmp_path, "inputs", "targets", ["a.png", "b.png"])
    save_picture(tmp_path / "inputs" / "a.bmp")
    yaml = write_text(tmp_path / "data.yaml", "train: inputs\n")
    assert paths(load_restore(yaml))[:2] == [("inputs/a.bmp", "targets/a.png"), ("inputs/a.png", "targets/a.png")]
    shared = str(tmp_path / "targets" / "a.png")
    assert f"train: 1 targets belong to several inputs each, one name with two suffixes (for example {shared})" in caplog.text
    assert [f.places for f in check(yaml, task="restore").findings if "of several inputs each" in f.what] == [(shared,)]
