"""Throw whole broken data sets at the check and at the readers of every task, and count what happens.

    python -m benchmarks.fuzz_sets --seconds 300 --seed 2

A number becomes a set: pictures of any mode and format, some cut or spoilt, labels, masks and pairs under names that clash, links to nowhere and in
circles, and a data.yaml that may fit. Allowed are an answer and a UserError of one line, as in fuzz.py; what is read must keep its promises, and the
check must find an error exactly where a training refuses the set. Figures: fuzz.md.
"""

from __future__ import annotations

import argparse
import io
import json
import logging
import random
import shutil
import sys
import tempfile
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from benchmarks.fuzz import Count, Target
from libreyolo.assembly import check
from libreyolo.data.classify import load_classify
from libreyolo.data.detection import load_detection
from libreyolo.data.restore import load_restore
from libreyolo.data.semantic import load_semantic
from libreyolo.errors import UserError
from libreyolo.record.data_report import write_report

STEMS = ("a", "b", "A", "\u00e9", "e\u0301", "x y", "a.b", "._z", "0", "classes", "train", " ", "\u202e", "n\n")
SUFFIXES = (".jpg", ".png", ".JPG", ".tif", ".txt", ".TXT", ".gif", ".heic", ".json", "")
FOLDERS = (
    *("images/train", "images/val", "images/train/images", "labels/train", "Labels/train", "Images/train", "masks/train", "masks/val"),
    *("train/cat", "train/dog", "val/cat", "train/inputs", "train/targets", "val/inputs", "val/targets", "inputs", "targets"),
)
ROWS = ("0 .5 .5 .2 .2\n", "1 0 0 1 0 1 1\n", "", "\n\n", "0 .5\n", "9 .5 .5 .1 .1\n", "\ufeff0 .5 .5 .1 .1\r\n", "nan nan\n", "0 -1 2 3 4\n")
SOURCES = (
    *("images/train", "images/val", "Images/train", "images", "train", "val", "inputs", "train/inputs", "images/*", "'**/*.png'", "list.txt"),
    *("[images/train, images/val]", ".", "../images/train", "nowhere", "null", "train/cat", "images\\train", "a.json", "' train '", "{a: b}", "[]"),
)
KEYS = {
    "path": (0.2, (".", "~", "x", "/nowhere", "''", "[a]")),
    "annotations": (0.15, ("{train: a.json}", "{train: a.json, val: a.json}", "a.json", "{train: b.json}")),
    "kpt_shape": (0.15, ("[1, 3]", "[17, 2]", "[0, 3]", "x")),
    "masks_dir": (0.2, ("masks", "labels", "..", "\\masks", "/x", "masks/", "''", "images")),
    "label_mapping": (0.2, ("{0: 0, 1: 1}", "{2: 0}", "{a: b}", "{0: 255}", "[1]", "{}", "{-1: 0}")),
    "ignore_index": (0.1, ("0", "254", "x", "-1", "70000")),
    "input_dir": (0.15, ("inputs", "images", "masks", "train", "targets", "a/b", "..")),
    "target_dir": (0.15, ("inputs", "labels", "masks", "Targets")),
    "target_stem_suffix": (0.1, ("_gt", "['', _gt]", "/", "[]")),
}
NAMES = (
    "names: [a, b]",
    "names: {0: a, 1: b}",
    "names: [cat, dog]",
    "nc: 2",
    "names: {1: a}",
    "names: a",
    "names:",
    "names: [a, a]",
    "names: [a, b, c]",
)
GOOD = {
    "detect": ("images/train",),
    "semantic": ("images/train", "masks/train"),
    "restore": ("train/inputs", "train/targets"),
    "classify": ("train/cat", "train/dog"),
}
TASKS: dict[str, Callable[[Path], Any]] = {
    "detect": load_detection,
    "semantic": load_semantic,
    "restore": load_restore,
    "classify": lambda path: load_classify(path, cwd=path.parent),
}


class Sets(Target):
    """Any bytes are the number of a set."""

    seeds = (b"0",)

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def read(self, raw: bytes) -> None:
        root = self.folder / "set"
        shutil.rmtree(root, ignore_errors=True)
        draw = random.Random(raw)
        task = draw.choice(tuple(TASKS))
        build(root, task, draw)
        report = check(str(root / "data.yaml"), task=task)
        write_report(report, io.StringIO())
        # The check looks further: it decodes every picture, and reads the test split, which a training does not.
        errors = [f for f in report.findings if f.level == "error" and f.split != "test" and "cannot be decoded" not in f.what]
        try:
            data = TASKS[task](root / "data.yaml")
        except UserError:
            assert errors or report.has_errors, "a training refuses what the check passes"
            raise
        assert not errors, "a training takes what the check refuses"
        for pictures in (data.train, data.val):
            for index in range(len(pictures or ())):
                assert_promises(pictures, index)


def assert_promises(pictures: Any, index: int) -> None:
    """Check one picture of a set, and what is known of it."""
    try:
        held = pictures.pair(index) if hasattr(pictures, "pair") else (pictures.image(index),)
    except UserError:  # it looked whole and was not
        return
    assert all(picture.shape == (*pictures.size(index), 3) for picture in held)
    if hasattr(pictures, "mask"):
        assert pictures.mask(index).shape == pictures.size(index)
    if hasattr(pictures, "boxes"):
        boxes, labels = pictures.boxes(index)
        assert (boxes[:, 2:] > boxes[:, :2]).all() and ((boxes >= 0) & (boxes <= 1)).all()
        assert ((labels >= 0) & (labels < pictures.nc)).all()


def build(root: Path, task: str, draw: random.Random) -> None:
    """Write a set below `root`: three sound pictures of a task, and whatever else."""
    for name in GOOD[task]:
        for number in range(3):
            path = root / name / f"good{number}.png"
            path.parent.mkdir(parents=True, exist_ok=True)
            Image.new("L", (9, 4), number % 2).save(path)
    for _ in range(draw.randrange(16)):
        path = root / draw.choice((*FOLDERS, *GOOD[task] * 4)) / (draw.choice(STEMS) + draw.choice(SUFFIXES))
        path.parent.mkdir(parents=True, exist_ok=True)
        if path.exists() or path.is_symlink():
            continue
        if (kind := draw.random()) < 0.03:
            path.mkdir()
        elif kind < 0.06:
            path.symlink_to(draw.choice((".", "a.jpg", "/nowhere", "../train")))
        elif path.suffix.lower() == ".txt":
            path.write_text("".join(draw.choice(ROWS) for _ in range(draw.randrange(3))))
        else:
            path.write_bytes(picture_bytes(draw))
    (root / "list.txt").write_text("images/train/a.jpg\n#x\n\nimages\\train\\b.png\n./nowhere.jpg\n/abs\n\x00\n")
    (root / "a.json").write_text(json.dumps(annotations(draw)))
    usual = str(Path(GOOD[task][0]).parent if task in ("restore", "classify") else GOOD[task][0])
    lines = [f"train: {usual if draw.random() < 0.7 else draw.choice(SOURCES)}"]
    lines += [f"{split}: {draw.choice((usual, *SOURCES))}" for split, often in (("val", 0.4), ("test", 0.2)) if draw.random() < often]
    lines += [f"{key}: {draw.choice(values)}" for key, (often, values) in KEYS.items() if draw.random() < often / 3]
    named = "" if task in ("restore", "classify") else NAMES[0]
    (root / "data.yaml").write_text("\n".join((*lines, named if draw.random() < 0.7 else draw.choice(NAMES))) + "\n")


def picture_bytes(draw: random.Random) -> bytes:
    """Return a small picture of any mode and format; one of twelve is cut, spoilt or none."""
    h, w = draw.choice((1, 4, 9)), draw.choice((1, 4, 9))
    pixels = np.array([draw.randrange(3) for _ in range(h * w * 3)], np.uint8).reshape(h, w, 3)
    mode, buffer = draw.choice(("RGB", "L", "L", "L", "1", "P", "RGBA", "LA", "CMYK", "I;16")), io.BytesIO()
    picture = Image.fromarray(pixels[..., 0].astype(np.uint16)) if mode == "I;16" else Image.fromarray(pixels[..., 0] if mode == "L" else pixels)
    try:
        (picture if mode in ("I;16", "L") else picture.convert(mode)).save(buffer, draw.choice(("PNG", "PNG", "JPEG", "BMP", "TIFF", "GIF", "WEBP")))
    except (OSError, ValueError):  # no such conversion, or a format without that mode
        Image.fromarray(pixels).save(buffer, "PNG")
    raw = bytearray(buffer.getvalue())
    match draw.randrange(36):
        case 0:
            raw = raw[: draw.randrange(len(raw))]
        case 1:
            raw[draw.randrange(len(raw))] ^= 1 << draw.randrange(8)
        case 2:
            raw = bytearray(draw.choice((b"", b"<html>", b"\0" * 50, b"\xff\xd8\xff\xe0", b"\0\0\0\x18ftypheic")))
    return bytes(raw)


def annotations(draw: random.Random) -> dict[str, Any]:
    """Return a COCO file's content; little of it need fit."""
    rows = [
        {
            "id": number,
            "image_id": draw.choice((1, 2, "1", None, 1.0)),
            "category_id": draw.choice((1, 2, [1], None, 9)),
            "bbox": draw.choice(([0, 0, 1, 1], [0, 0, 99, 1], None, [], "x", [1, 2], [0, 0, -1, 2], {"a": 1})),
            "iscrowd": draw.choice((0, 1, None, "x")),
            "segmentation": draw.choice(([], [[0, 0, 1, 0, 1, 1]], {"counts": "x"}, None)),
        }
        for number in range(draw.randrange(3))
    ]
    names = ("a.jpg", "train/b.png", "\u00e9.png", None, "", "../a.jpg")
    images = [{"id": number, "file_name": draw.choice(names), "width": draw.choice((9, 4, None, "9"))} for number in (1, 2)]
    categories = [{"id": 1, "name": draw.choice(("a", None, 3))}, {"id": draw.choice((1, 2)), "name": "b"}]
    content: dict[str, Any] = {"images": images[: draw.randrange(3)], "annotations": rows, "categories": categories}
    return {key: draw.choice((None, {}, [1], "x")) if draw.random() < 0.05 else value for key, value in content.items()}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--seed", type=int, default=0)
    chosen = parser.parse_args()
    logging.disable(logging.CRITICAL)
    warnings.simplefilter("ignore")
    with tempfile.TemporaryDirectory(prefix="fuzz") as folder:
        count, end, number = Count(Sets(Path(folder))), time.monotonic() + chosen.seconds, 0
        while time.monotonic() < end:
            count.take(f"{chosen.seed}/{number}".encode())
            number += 1
    print(count.report())
    return 1 if count.failures else 0


if __name__ == "__main__":
    sys.exit(main())
