"""`val` reads the split that it judges and no other: whatever is wrong with the rest of a set says nothing of its metrics."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from libreyolo import LibreYOLO
from libreyolo.__main__ import main
from libreyolo.errors import UserError

SIDE = 32


def save(path: Path, value: int = 128, side: int = SIDE) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    pixels = np.full((side, side, 3), value, np.uint8)
    pixels[8:24, 8:24] = 255 - value
    Image.fromarray(pixels).save(path)


def save_mask(path: Path, value: int) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(np.full((SIDE, SIDE), value, np.uint8)).save(path)


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def boxes(root: Path, split: str) -> None:
    save(root / "images" / split / "0.png", 60)
    write(root / "labels" / split / "0.txt", "0 0.5 0.5 0.5 0.5\n")


def classes(root: Path, split: str) -> None:
    for name, value in (("class_3", 40), ("class_7", 90)):
        save(root / split / name / "0.png", value)


def masks(root: Path, split: str) -> None:
    save(root / "images" / split / "0.png", 60)
    save_mask(root / "masks" / split / "0.png", 1)


def pairs(root: Path, split: str) -> None:
    save(root / split / "inputs" / "0.png", 60)
    save(root / split / "targets" / "0.png", 64)


def wrong_row(root: Path, split: str) -> None:
    write(root / "labels" / split / "0.txt", "99 0.5 0.5 0.5 0.5\n")


def no_pictures(root: Path, split: str) -> None:
    for path in (root / split).rglob("*.png"):
        path.write_bytes(b"no picture")


def no_mask(root: Path, split: str) -> None:
    (root / "masks" / split / "0.png").unlink()


def no_targets(root: Path, split: str) -> None:
    shutil.rmtree(root / split / "targets")


def no_folder(root: Path, split: str) -> None:
    for place in (root / "images" / split, root / split):
        shutil.rmtree(place, ignore_errors=True)


@cache
def model_of(name: str, *classes: str) -> LibreYOLO:
    """Return a model of random weights with these classes, made once."""
    torch.manual_seed(0)
    model = LibreYOLO(name)
    if classes:
        model.names, model.net = dict(enumerate(classes)), model.family.network.build(model.size, len(classes))
    return model


@dataclass(frozen=True)
class Kind:
    """A task's set. place: of a split, from the set's folder. yaml: what its data.yaml says beside the splits; None where the folder is the set.
    spoil: makes a split one that can't be trained on, and `error` is in the sentence about it."""

    model: str
    classes: tuple[str, ...]
    make: Callable[[Path, str], None]
    place: str
    yaml: str | None
    spoil: Callable[[Path, str], None]
    error: str

    def data(self, root: Path) -> Path:
        for split in ("train", "val", "test"):
            self.make(root, split)
        return self.described(root, "train", "val", "test")

    def described(self, root: Path, *splits: str) -> Path:
        """Write the data.yaml, with these splits."""
        if self.yaml is None:
            return root
        lines = [f"{split}: {self.place.format(split)}" for split in splits]
        write(root / "data.yaml", "\n".join(["path: .", *lines, self.yaml]))
        return root / "data.yaml"

    def val(self, data: Path, split: str = "val") -> dict[str, float]:
        size = {"imgsz": SIDE} if self.classes else {}
        found = model_of(self.model, *self.classes).val(data, split=split, batch=2, workers=0, device="cpu", **size)
        return {name: value for name, value in found.items() if not name.startswith("speed/")}

    def train(self, data: Path) -> None:
        model_of(self.model, *self.classes).train(
            data=str(data), imgsz=64, epochs=1, batch=2, workers=0, device="cpu", project=str(data.parent / "outputs")
        )


KINDS = {
    "boxes": Kind("yolo9t", ("box",), boxes, "images/{}", "names: [box]", wrong_row, "label row is wrong"),
    "points": Kind("fomos", ("box",), boxes, "images/{}", "names: [box]", wrong_row, "label row is wrong"),
    "classes": Kind("resnet18", ("class_3", "class_7"), classes, "{}", None, no_pictures, "usable"),
    "classes with a yaml": Kind("resnet18", ("class_3", "class_7"), classes, "{}", "names: [class_3, class_7]", no_pictures, "usable"),
    "masks": Kind("unets", ("ground", "thing"), masks, "images/{}", "names: [ground, thing]", no_mask, "have no mask"),
    "pairs": Kind("nafnets", (), pairs, "{}", "", no_targets, "usable"),
}


@pytest.fixture(params=KINDS.values(), ids=list(KINDS))
def kind(request: pytest.FixtureRequest) -> Kind:
    found: Kind = request.param
    return found


def test_what_is_wrong_with_the_training_pictures_changes_no_number_of_another_split(kind: Kind, tmp_path: Path) -> None:
    data = kind.data(tmp_path)
    before = {split: kind.val(data, split) for split in ("val", "test")}
    kind.spoil(tmp_path, "train")
    with pytest.raises(UserError, match=kind.error):
        kind.train(data)
    with pytest.raises(UserError, match=kind.error):
        kind.val(data, "train")
    assert {split: kind.val(data, split) for split in ("val", "test")} == before
    no_folder(tmp_path, "train")
    with pytest.raises(UserError):
        kind.train(data)
    assert kind.val(data) == before["val"]
    assert kind.val(kind.described(tmp_path, "val")) == before["val"]
    no_folder(tmp_path, "val")  # and the test split needs no other
    assert kind.val(data, "test") == before["test"] if kind.yaml is None else kind.val(kind.described(tmp_path, "test"), "test") == before["test"]


def test_what_is_wrong_with_the_split_itself_is_told(kind: Kind, tmp_path: Path) -> None:
    data = kind.data(tmp_path)
    kind.spoil(tmp_path, "val")
    with pytest.raises(UserError, match=kind.error):
        kind.val(data)
    no_folder(tmp_path, "val")
    with pytest.raises(UserError, match="val"):
        kind.val(data)


def test_a_class_folder_that_the_model_does_not_know_is_named(tmp_path: Path) -> None:
    kind = KINDS["classes"]
    data = kind.data(tmp_path)
    no_folder(tmp_path, "train")
    (tmp_path / "val" / "class_7").rename(tmp_path / "val" / "class_8")
    with pytest.raises(UserError, match=r"class_8 is a class that the model does not have\. Did you mean 'class_7'\? Rename or remove it\."):
        kind.val(data)
    shutil.rmtree(tmp_path / "val" / "class_8")  # a class that the split lacks keeps its id
    assert kind.val(data)["metrics/accuracy_top1"] in (0.0, 1.0)


def test_masks_are_looked_for_as_a_training_looks_for_them(tmp_path: Path) -> None:
    """Label files beside the masks of another split are no masks."""
    kind = KINDS["masks"]
    data = kind.data(tmp_path)
    write(tmp_path / "labels" / "val" / "0.txt", "0 0.1 0.1 0.9 0.1 0.9 0.9\n")
    no_mask(tmp_path, "val")
    with pytest.raises(UserError, match="val: 1 of 1 pictures have no mask"):
        kind.val(data)


def test_boxes_of_a_coco_file_need_no_other_file(tmp_path: Path) -> None:
    kind = KINDS["boxes"]
    before = kind.val(kind.data(tmp_path))
    content = {
        "images": [{"id": 1, "file_name": "0.png", "width": SIDE, "height": SIDE}],
        "annotations": [{"id": 1, "image_id": 1, "category_id": 1, "bbox": [8, 8, 16, 16]}],
        "categories": [{"id": 1, "name": "box"}],
    }
    write(tmp_path / "val.json", json.dumps(content))
    write(tmp_path / "data.yaml", "train: 7\nval: images/val\nnames: [box]\nannotations: {train: nowhere.json, val: val.json}\n")
    assert kind.val(tmp_path / "data.yaml") == before


def test_labels_of_pictures_that_are_not_read_are_no_strays(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """All splits in one folder, told apart by lists; a picture of each lacks its label."""
    kind = KINDS["boxes"]
    for number in range(3):
        save(tmp_path / "images" / f"{number}.png")
        write(tmp_path / f"{number}.txt", f"images/{number}.png\n")
    write(tmp_path / "labels" / "0.txt", "0 0.5 0.5 0.5 0.5\n")
    write(tmp_path / "data.yaml", "train: 0.txt\nval: 1.txt\ntest: 2.txt\nnames: [box]\n")
    kind.val(tmp_path / "data.yaml")
    assert "without a picture" not in caplog.text
    write(tmp_path / "labels" / "1b.txt", "0 0.5 0.5 0.5 0.5\n")
    kind.val(tmp_path / "data.yaml")
    assert "pictures without a label file: 1, label files without a picture: 1" in caplog.text


def test_the_shell_validates_a_set_that_has_no_training_split(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    kind = KINDS["pairs"]
    kind.data(tmp_path)
    data = kind.described(tmp_path, "val")
    assert main(["val", "nafnets", "--data", str(data), "--workers", "0", "--device", "cpu"]) == 0
    assert "metrics/PSNR" in capsys.readouterr().out
    assert main(["val", "nafnets", "--data", str(data), "--split", "test"]) == 1
    assert f"{data} has no test split to validate on." in capsys.readouterr().err
    with pytest.raises(UserError, match="split=dev is not known: choose train, val or test"):
        kind.val(data, "dev")
