"""COCO json gives what label files give."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from libreyolo.data.coco_labels import CocoLabels
from libreyolo.data.detection import load_detection
from libreyolo.data.labels import LabelFile, parse_labels
from libreyolo.errors import UserError
from libreyolo.interfaces.batch import Detections
from libreyolo.metrics.detection import DetectionMetric
from tests.unit.data.conftest import save_picture, write_text

CATEGORIES = [{"id": 90, "name": "cat"}, {"id": 3, "name": "dog"}]
WriteSet = Callable[..., Path]


def image(identity: int | str, name: str, **more: Any) -> dict[str, Any]:
    return {"id": identity, "file_name": name, "width": 32, "height": 24} | more


def annotation(identity: int, image_id: int | str, category: Any, bbox: Any, **more: Any) -> dict[str, Any]:
    return {"id": identity, "image_id": image_id, "category_id": category, "bbox": bbox, "iscrowd": 0} | more


@pytest.fixture
def write_set(tmp_path: Path) -> WriteSet:
    """Return a function that writes three pictures, a COCO json (or its bytes) and the data.yaml, and returns the latter."""

    def write(content: dict[str, Any] | bytes, *, names: str = "[dog, cat]", pictures: tuple[str, ...] = ("a.png", "b.png", "c.png")) -> Path:
        for place, name in enumerate(pictures):
            save_picture(tmp_path / "pictures" / name, seed=place)
        raw = content if isinstance(content, bytes) else json.dumps({"categories": CATEGORIES} | content).encode()
        (tmp_path / "train.json").write_bytes(raw)
        return write_text(tmp_path / "data.yaml", f"train: pictures\nannotations: {{train: train.json}}\nnames: {names}\n")

    return write


def test_boxes_classes_and_background_are_read_by_name_whatever_the_ids(write_set: WriteSet) -> None:
    images = [image(7, "a.png"), image(5, "x\\pictures\\b.png"), image("z", "c.png")]
    boxes = [annotation(1, 7, 90, [8, 6, 16, 12]), annotation(2, 7, 3, [0, 0, 32, 24]), annotation(3, "z", 3, [-2, 20, 10, 8])]
    data = load_detection(write_set({"images": images, "annotations": boxes}))
    assert data.names == {0: "dog", 1: "cat"}
    assert [data.train.path(i).name for i in range(3)] == ["a.png", "b.png", "c.png"]
    assert [data.train.boxes(i)[1].tolist() for i in range(3)] == [[1, 0], [], [0]]
    assert data.train.truth(0)[0].tolist() == [[8, 6, 24, 18], [0, 0, 32, 24]]
    assert data.train.truth(2)[0].tolist() == [[0, 20, 8, 24]]


def test_crowds_repeats_and_useless_boxes_are_left_out_with_their_ids(write_set: WriteSet) -> None:
    boxes = [
        annotation(10, 1, 3, [0, 0, 8, 8]),
        annotation(11, 1, 3, [1, 1, 20, 20], iscrowd=1, segmentation={"counts": [1, 2], "size": [24, 32]}),
        annotation(12, 1, 3, [0, 0, 8, 8]),
        annotation(13, 1, 3, [4, 4, 0, 8]),
        annotation(14, 1, 3, [4, 4, float("nan"), 8]),
        annotation(15, 1, 3, [400, 4, 8, 8]),
    ]
    data = load_detection(write_set({"images": [image(1, "a.png")], "annotations": boxes}))
    assert data.train.truth(0)[0].tolist() == [[0, 0, 8, 8]]
    told = data.report["train"].row_warnings
    assert [text.split("annotation ")[1].split(" ")[0] for text in told] == ["11", "12", "13", "14", "15"]
    assert "crowd" in told[0]


def test_ids_as_tables_write_them_and_names_in_other_code_points_are_the_same(write_set: WriteSet) -> None:
    content = {
        "images": [image(1.0, "e\u0301.png"), image(2, "b.png")],  # type: ignore[arg-type]
        "annotations": [annotation(1, 1, 3.0, [0, 0, 8, 8], iscrowd="0"), annotation(2, 2.0, 3, [0, 0, 4, 4], iscrowd="1")],  # type: ignore[arg-type]
        "categories": [{"id": 3, "name": "Ve\u0301lo"}],
    }
    data = load_detection(write_set(content, names="[cat, v\u00e9lo]", pictures=("b.png", "\u00e9.png")))
    assert [(data.train.path(i).name, *(rows.tolist() for rows in data.train.truth(i))) for i in range(2)] == [
        ("b.png", [], []),
        ("\u00e9.png", [[0, 0, 8, 8]], [1]),
    ]
    assert data.report["train"].row_warnings[0].endswith("annotation 2 is a crowd region, not an object ([0, 0, 4, 4])")


def test_an_annotation_without_a_box_takes_the_envelope_of_its_polygons(write_set: WriteSet) -> None:
    polygons = [[2, 3, 10, 3, 10, 9], [20, 1, 22, 1, 22, 21]]
    data = load_detection(write_set({"images": [image(1, "a.png")], "annotations": [annotation(1, 1, 3, None, segmentation=polygons)]}))
    assert data.train.truth(0)[0].tolist() == [[2, 1, 22, 21]]


def test_pictures_that_the_json_does_not_name_are_left_out_and_counted(write_set: WriteSet, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    data = load_detection(write_set({"images": [image(1, "b.png"), image(2, "c.png"), image(3, "gone.png")], "annotations": []}))
    assert [data.train.path(i).name for i in range(len(data.train))] == ["b.png", "c.png"]
    assert "1 not in the annotations" in caplog.text
    assert data.report["train"].skipped == [("gone.png", "train.json names it but it is not among the pictures of the split")]


def test_a_picture_of_another_size_than_the_json_says_is_skipped_with_both(write_set: WriteSet) -> None:
    images = [image(1, "a.png"), image(2, "b.png", width=24, height=32), image(3, "c.png")]
    data = load_detection(write_set({"images": images, "annotations": [annotation(1, 2, 3, [0, 0, 5, 5])]}))
    ((path, reason),) = data.report["train"].skipped
    assert Path(path).name == "b.png"
    assert reason == "train.json says it is 24x32, the file is 32x24"


ONE = {"images": [image(1, "a.png")], "annotations": [annotation(1, 1, 3, [0, 0, 5, 5])]}
MISTAKES = {
    "no json": (b"{", "is no JSON"),
    "not utf-8": (b"\xff\xfe", "is no JSON"),
    "nested": (b"[" * 100_000, "is no JSON"),
    "a list": (b"[]", "holds a list"),
    "no images": ({"images": None, "annotations": []}, "images must be a list of objects"),
    "an image that is a number": ({"images": [3], "annotations": []}, "images must be a list of objects"),
    "no file name": ({"images": [{"id": 1}], "annotations": []}, "images[0] has no file_name"),
    "two of one id": ({"images": [image(1, "a.png"), image(1, "b.png")], "annotations": []}, "images[1] ('b.png') has an id or a file"),
    "two of one file": ({"images": [image(1, "a.png"), image(2, "a.png")], "annotations": []}, "images[1] ('a.png') has an id or a file"),
    "an unknown image": (ONE | {"annotations": [annotation(8, 2, 3, [0, 0, 1, 1])]}, "annotation 8 is of image 2"),
    "an unknown category": (ONE | {"annotations": [annotation(8, 1, 4, [0, 0, 1, 1])]}, "annotation 8 has category_id 4"),
    "a category that is a list": (ONE | {"annotations": [annotation(8, 1, [3], [0, 0, 1, 1])]}, "annotation 8 has category_id [3]"),
    "a class that is not named": (ONE | {"categories": [{"id": 3, "name": "cow"}]}, "annotation 1 is of category 'cow'"),
    "three numbers": (ONE | {"annotations": [annotation(8, 1, 3, [0, 0, 1])]}, "a bbox of 3 numbers"),
    "words": (ONE | {"annotations": [annotation(8, 1, 3, ["0", 0, 1, 1])]}, "no list of numbers"),
    "no box": (ONE | {"annotations": [annotation(8, 1, 3, [], segmentation={"counts": "x"})]}, "neither a bbox nor polygons"),
    "a huge number": (ONE | {"annotations": [annotation(8, 1, 3, [0, 0, 10**400, 1])]}, "beyond all numbers"),
    "two categories of one id": (ONE | {"categories": [*CATEGORIES, {"id": 3, "name": "cat"}]}, "categories[2] has the id 3 of an earlier category"),
    "an id with a fraction": (ONE | {"annotations": [annotation(8, 1.5, 3, [0, 0, 1, 1])]}, "no image_id that is a whole number or a text, but 1.5"),
    "half a crowd": (ONE | {"annotations": [annotation(8, 1, 3, [0, 0, 1, 1], iscrowd="no")]}, "annotation 8 has iscrowd 'no', which is neither"),
    "none of the pictures": ({"images": [], "annotations": []}, "name none of the 3 pictures"),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_is_one_sentence_with_its_place(write_set: WriteSet, mistake: str) -> None:
    content, said = MISTAKES[mistake]
    path = write_set(content)
    with pytest.raises(UserError) as caught:
        load_detection(path)
    assert said in str(caught.value)
    assert "train" in str(caught.value)
    assert len(str(caught.value)) < 1500


def test_one_name_in_two_folders_is_told_apart_by_its_path(write_set: WriteSet) -> None:
    pictures = ("x/a.png", "y/a.png")
    data = load_detection(write_set({"images": [image(1, "y/a.png")], "annotations": []}, pictures=pictures))
    assert data.train.path(0).parent.name == "y"
    with pytest.raises(UserError, match=r"'a\.png' may be .*x/a\.png or .*y/a\.png"):
        load_detection(write_set({"images": [image(1, "a.png")], "annotations": []}, pictures=pictures))


def test_a_changed_json_is_noticed_and_an_unchanged_one_not_read_again(write_set: WriteSet, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write_set(ONE)
    assert len(load_detection(path).train.label_rows) == 1
    with monkeypatch.context() as patch:
        patch.setattr(CocoLabels, "prepare", lambda self: pytest.fail("read again"))
        assert len(load_detection(path).train.label_rows) == 1
    write_set(ONE | {"annotations": []})
    assert len(load_detection(path).train.label_rows) == 0


def both_kinds(folder: Path, boxes: list[list[tuple[int, int, int, int, int]]]) -> tuple[Path, Path]:
    """The same boxes (class, x, y, w, h in pixels of 32 x 24) as label files and as json."""
    images, annotations = [], []
    for place, rows in enumerate(boxes):
        save_picture(folder / "images" / f"{place}.png", seed=place)
        text = "".join(f"{c} {(x + w / 2) / 32!r} {(y + h / 2) / 24!r} {w / 32!r} {h / 24!r}\n" for c, x, y, w, h in rows)
        write_text(folder / "labels" / f"{place}.txt", text)
        images.append(image(100 - place, f"{place}.png"))
        annotations += [annotation(len(annotations) + i, 100 - place, (3, 90)[c], [x, y, w, h]) for i, (c, x, y, w, h) in enumerate(rows)]
    write_text(folder / "a.json", json.dumps({"images": images, "annotations": annotations, "categories": CATEGORIES}))
    text = write_text(folder / "text.yaml", "train: images\nval: images\nnames: [dog, cat]\n")
    return text, write_text(folder / "coco.yaml", "train: images\nval: images\nannotations: {train: a.json, val: a.json}\nnames: [dog, cat]\n")


def test_both_kinds_of_labels_give_the_same_arrays_and_the_same_metrics(tmp_path: Path) -> None:
    draw = np.random.default_rng(3)
    boxes = [
        [(int(draw.integers(2)), *(int(v) for v in draw.integers(0, 12, 2)), *(int(v) for v in draw.integers(1, 12, 2))) for _ in range(5)]
        for _ in range(6)
    ]
    computed = []
    for path in both_kinds(tmp_path, boxes):
        val = load_detection(path).val
        assert val is not None
        metric = DetectionMetric({0: "dog", 1: "cat"}, val.truth, num_pictures=6)
        truths = [val.truth(i) for i in range(6)]
        for index in range(6):
            shifted = torch.from_numpy(truths[index][0]) + torch.tensor([1.0, 0, 0.5, 0])
            found = Detections(shifted, torch.linspace(0.9, 0.2, len(shifted)), torch.from_numpy(truths[index][1]))
            metric.update(_Batch(torch.tensor([index]), torch.ones(1)), [found])  # type: ignore[arg-type]
        computed.append((truths, metric.compute()))
    for (one, one_label), (other, other_label) in zip(computed[0][0], computed[1][0], strict=True):
        np.testing.assert_allclose(one, other, atol=1e-5)
        np.testing.assert_array_equal(one_label, other_label)
    assert computed[0][1]["metrics/mAP50-95"] > 0.2
    assert computed[0][1] == pytest.approx(computed[1][1], abs=1e-6)


class _Batch:
    def __init__(self, index: torch.Tensor, weight: torch.Tensor) -> None:
        self.index, self.weight = index, weight


number = st.integers(-8, 40)


@settings(deadline=None, max_examples=80)
@given(st.lists(st.tuples(st.integers(0, 1), number, number, number, number), max_size=6))
def test_any_boxes_in_pixels_give_what_the_same_rows_give_as_text(tmp_path_factory: pytest.TempPathFactory, boxes: list[tuple]) -> None:
    folder = tmp_path_factory.mktemp("any")
    content = {"images": [image(1, "a.png")], "categories": CATEGORIES}
    content["annotations"] = [annotation(place, 1, (3, 90)[c], [x, y, w, h]) for place, (c, x, y, w, h) in enumerate(boxes)]
    path = write_text(folder / "a.json", json.dumps(content))
    labels = CocoLabels(path, [str(folder / "a.png")], {0: "dog", 1: "cat"})
    labels.prepare()
    found = labels.read(0, (24, 32))
    assert isinstance(found, LabelFile)
    text = "".join(f"{c} {(x + w / 2) / 32!r} {(y + h / 2) / 24!r} {w / 32!r} {h / 24!r}\n" for c, x, y, w, h in boxes)
    expected = parse_labels(text.encode(), 2)
    np.testing.assert_array_equal(found.boxes, expected.boxes)
    np.testing.assert_array_equal(found.labels, expected.labels)
    assert len(found.warnings) == len(expected.warnings)
    assert found.errors == []


def test_the_json_is_in_the_frame_of_the_upright_picture(tmp_path: Path) -> None:
    exif = Image.Exif()
    exif[0x0112] = 6
    (tmp_path / "pictures").mkdir()
    Image.new("RGB", (40, 20)).save(tmp_path / "pictures" / "a.jpg", exif=exif)
    content = {"images": [image(1, "a.jpg", width=20, height=40)], "annotations": [annotation(1, 1, 3, [0, 0, 20, 10])], "categories": CATEGORIES}
    write_text(tmp_path / "a.json", json.dumps(content))
    data = load_detection(write_text(tmp_path / "data.yaml", "train: pictures\nannotations: {train: a.json}\nnames: [dog]\n"))
    assert data.train.truth(0)[0].tolist() == [[0, 0, 20, 10]]
