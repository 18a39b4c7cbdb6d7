"""`predict` of a yolo9t end to end: the published package's detections from the same file and picture, and every kind of source."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from libreyolo import LibreYOLO
from libreyolo.engine import checkpoint
from libreyolo.engine.checkpoint import WeightsMeta
from libreyolo.errors import UserError
from libreyolo.models.yolo9 import network
from libreyolo.results import Result
from tests.family.parity import compare
from tests.family.parity.fill import fill, pictures

SIDE = 160
RECORD: dict[str, Any] = json.loads((compare.DATA / "predict-yolo9-t.json").read_text())
SETTINGS = {key: RECORD[key] for key in ("conf", "iou", "max_det")}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> LibreYOLO:
    """The filled 80-class network, read from a file as a user would."""
    net = network.build("t", 80)
    fill(net)
    compare.take_batch_statistics(net, pictures(SIDE, SIDE))
    path = tmp_path_factory.mktemp("weights") / "LibreYOLO9t.pt"
    meta = WeightsMeta("yolo9", "t", "detect", {i: f"n{i}" for i in range(80)}, SIDE, {"letterbox_pad": "topleft"})
    checkpoint.write(checkpoint.weights_dict(net.state_dict(), meta), path)
    return LibreYOLO(path)


@pytest.fixture(scope="module")
def picture() -> np.ndarray:
    """The recorded picture: 97 high, 131 wide, so that a letterbox cuts its height to whole pixels."""
    drawn = (pictures(97, 131, count=1, seed=99)[0] * 255).round().to(torch.uint8)
    return drawn.permute(1, 2, 0).contiguous().numpy()


@pytest.fixture(scope="module")
def found(model: LibreYOLO, picture: np.ndarray) -> Result:
    return model.predict(picture, **SETTINGS)[0]


def same(one: Result, other: Result) -> bool:
    pairs = ((one.xyxy, other.xyxy), (one.conf, other.conf), (one.cls, other.cls))
    return len(one) > 0 and all(np.array_equal(a, b) for a, b in pairs)


def test_detections_are_those_of_the_published_predict(found: Result) -> None:
    assert len(found) == 300
    assert float(found.conf.sum()) == pytest.approx(RECORD["sum_scores"], rel=1e-4)
    assert np.abs(np.bincount(found.cls, minlength=80) - RECORD["labels"]).sum() <= 2  # two scores at the 300th may change places
    for row, (*box, score, label) in enumerate(RECORD["top"]):
        assert found.cls[row] == label
        assert found.conf[row] == pytest.approx(score, abs=1e-4)
        assert np.allclose(found.xyxy[row], box, atol=1e-2)


def test_boxes_are_mapped_back_with_one_zoom_for_both_sides(found: Result) -> None:
    """The published package's boxes that do not touch the picture's border; a zoom of the cut height (118 / 97) would miss them by 0.2."""
    for *box, score, label in RECORD["inner"]:
        near = (found.cls == label) & (np.abs(found.conf - score) < 1e-4)
        assert np.abs(found.xyxy[near] - box).max(axis=1).min() < 1e-2, f"class {label} at {box}"


def test_a_result_is_best_first_inside_the_picture_and_typed(found: Result) -> None:
    assert (found.conf[:-1] >= found.conf[1:]).all()
    assert found.conf.min() > SETTINGS["conf"]
    assert (found.xyxy >= 0).all()
    assert (found.xyxy <= [131, 97, 131, 97]).all()
    assert (found.xyxy.dtype, found.conf.dtype, found.cls.dtype) == (np.float32, np.float32, np.int64)
    assert found.names[65] == "n65"


def test_every_kind_of_source_gives_the_same(
    model: LibreYOLO, picture: np.ndarray, found: Result, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "set").mkdir()
    for name in ("b.png", "a.PNG"):
        Image.fromarray(picture).save(tmp_path / "set" / name, format="PNG")
    (tmp_path / "set" / "notes.txt").write_text("no picture")
    monkeypatch.chdir(tmp_path)
    sources: list[tuple[Any, list[str | None]]] = [
        ("set/b.png", ["b.png"]),
        (tmp_path / "set" / "b.png", ["b.png"]),
        ("set", ["a.PNG", "b.png"]),
        ("set/*.png", ["b.png"]),
        (str(tmp_path / "set" / "*"), ["a.PNG", "b.png"]),
        (Image.fromarray(picture), [None]),
        ([picture, "set/b.png", Image.fromarray(picture)], [None, "b.png", None]),
    ]
    for source, names in sources:
        results = model.predict(source, batch=2, **SETTINGS)
        assert [r.path.name if r.path else None for r in results] == names
        for result in results:
            assert np.allclose(result.conf, found.conf, atol=1e-5)
            assert np.array_equal(result.picture, picture)


def test_an_array_is_rgb_and_channels_in_another_order_are_another_picture(model: LibreYOLO, picture: np.ndarray, found: Result) -> None:
    assert same(model.predict(picture.copy(), **SETTINGS)[0], found)
    assert not same(model.predict(np.ascontiguousarray(picture[..., ::-1]), **SETTINGS)[0], found)


def test_classes_keeps_these_and_max_det_the_best(model: LibreYOLO, picture: np.ndarray, found: Result) -> None:
    few = model.predict(picture, max_det=5)[0]
    assert np.array_equal(few.conf, found.conf[:5])
    chosen = model.predict(picture, classes=[13, 65])[0]
    assert set(chosen.cls) == {13, 65}
    assert chosen.conf[0] == found.conf[0]


def test_a_rectangular_input_is_height_and_width(model: LibreYOLO, picture: np.ndarray) -> None:
    assert not same(model.predict(picture, imgsz=[96, 160])[0], model.predict(picture, imgsz=[160, 96])[0])
    with pytest.raises(UserError, match=r"imgsz=100 .* Use imgsz=96 or imgsz=128"):
        model.predict(picture, imgsz=100)


def test_predicting_changes_nothing_of_the_model(model: LibreYOLO, picture: np.ndarray) -> None:
    before = {k: v.clone() for k, v in model.net.state_dict().items()}
    model.predict(picture)
    assert all(torch.equal(before[k], v) for k, v in model.net.state_dict().items())


def test_drawn_pictures_are_saved_under_their_own_names(model: LibreYOLO, picture: np.ndarray, tmp_path: Path) -> None:
    for name in ("one/p.png", "two/p.png", "two/p.bmp"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        Image.fromarray(picture).save(tmp_path / name)
    [first, *_] = model.predict([tmp_path / "one", tmp_path / "two", picture], save=tmp_path / "drawn", max_det=3)
    assert {p.name for p in (tmp_path / "drawn").iterdir()} == {"p.png", "p_2.png", "p_3.png", "picture_3.png"}
    drawn = np.asarray(Image.open(tmp_path / "drawn" / "p.png"))
    assert np.array_equal(drawn, first.plot())
    assert drawn.shape == picture.shape
    assert not np.array_equal(drawn, picture)
    assert np.array_equal(first.picture, picture)  # plot draws on a copy


@pytest.mark.parametrize(
    ("source", "settings", "sentence"),
    [
        ("nowhere.jpg", {}, r"nowhere\.jpg: no such picture, folder or pattern \(looked at .*nowhere\.jpg\)"),
        ("empty", {}, r"empty holds no picture \(.*\)\.$"),
        ("outer", {}, r"outer holds no picture \(.*\); for those in its folders give a pattern: .*outer/\*\*/\*\.jpg\.$"),
        ("empty/*.jpg", {}, r"no such picture, folder or pattern"),
        ("text.jpg", {}, r"text\.jpg is no usable picture: it is not a picture"),
        (np.zeros((4, 4), np.uint8), {}, r"uint8 with shape \[H, W, 3\] in RGB order, not uint8 \[4, 4\]"),
        (np.zeros((4, 4, 3), np.float32), {}, r"not float32 \[4, 4, 3\]"),
        (3, {}, r"does not know what to do with a int"),
        (Image.new("F", (4, 4)), {}, r"This PIL picture can't be used"),
        (np.zeros((4, 4, 3), np.uint8), {"conf": 25}, r"conf=25 is out of range: it must lie between 0 and 1"),
        (np.zeros((4, 4, 3), np.uint8), {"iou": -0.1}, r"iou=-0\.1 is out of range"),
        (np.zeros((4, 4, 3), np.uint8), {"batch": 0}, r"batch=0 is too small"),
        (np.zeros((4, 4, 3), np.uint8), {"max_det": 0}, r"max_det=0 is too small"),
        (np.zeros((4, 4, 3), np.uint8), {"max_det": 1.5}, r"max_det=1\.5 must be a whole number"),
        (np.zeros((4, 4, 3), np.uint8), {"batch": "2"}, r"batch='2' must be a number"),
        (np.zeros((4, 4, 3), np.uint8), {"conf": "0.3"}, r"conf='0\.3' must be a number"),
        (np.zeros((4, 4, 3), np.uint8), {"conf": True}, r"conf=True must be a number"),
        (np.zeros((4, 4, 3), np.uint8), {"classes": [80]}, r"classes=\[80\]: this model has no class 80, its classes are 0 to 79"),
        (np.zeros((4, 4, 3), np.uint8), {"classes": [True]}, r"this model has no class True"),
        (np.zeros((4, 4, 3), np.uint8), {"classes": 3}, r"classes=3 must be a list of class ids, like \[0, 2\]"),
        (np.zeros((4, 4, 3), np.uint8), {"classes": "3"}, r"classes='3' must be a list of class ids"),
        (np.zeros((4, 4, 3), np.uint8), {"classes": []}, r"classes=\[\] would keep nothing; leave it out to keep every class"),
        ("https://example.com/a.jpg", {}, r"'https://example\.com/a\.jpg' is no path: predict reads picture files, .* download a picture before"),
        ("", {}, r"'' is no path"),
        ("a" * 300 + ".jpg", {}, r"no such picture, folder or pattern"),
        ("a\0b.jpg", {}, r"is no path"),
        ("film.mp4", {}, r"film\.mp4 is no usable picture: it is a video: take pictures out of it first"),
        ("broken", {}, r"broken: none of its 2 pictures is usable \(for example .*a\.jpg: it is not a picture\)"),
        ("phone", {}, r"phone holds no picture \(.*\) \(1 files are pictures of a format that is not read \(\.heic;"),
        (Image.new("RGB", (0, 5)), {}, r"This PIL picture can't be used: it is 0x5 and has no pixel"),
    ],
)
def test_what_cannot_be_predicted_is_told(
    source: Any, settings: dict[str, Any], sentence: str, model: LibreYOLO, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "outer" / "inner").mkdir(parents=True)
    for folder, names in (("broken", ("a.jpg", "b.png")), ("phone", ("a.heic", "._a.jpg"))):
        (tmp_path / folder).mkdir()
        for name in names:
            (tmp_path / folder / name).write_text("hello")
    (tmp_path / "text.jpg").write_text("hello")
    (tmp_path / "film.mp4").write_bytes(b"\0\0\0\x18ftypmp42")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UserError, match=sentence):
        model.predict(source, **settings)


@pytest.mark.parametrize("source", ["it's [old]", "it's [[]old]/*", "{cwd}/it's [old]"])
def test_what_a_folder_or_pattern_finds_and_cannot_be_used_is_skipped_by_name(
    source: str, model: LibreYOLO, picture: np.ndarray, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    folder = tmp_path / "[x]" / "it's [old]"
    (folder / "folder.jpg").mkdir(parents=True)
    for name in ("b.png", "d.PNG"):
        Image.fromarray(picture).save(folder / name, format="PNG")
    for name in ("a.jpg", "._b.png", "phone.heic"):
        (folder / name).write_text("no picture")
    (folder / "c.jpg").symlink_to("nowhere.jpg")
    monkeypatch.chdir(tmp_path / "[x]")
    results = model.predict(source.format(cwd=tmp_path / "[x]"), max_det=1, batch=2)
    assert [r.path.name for r in results if r.path] == ["b.png", "d.PNG"]
    told = [record.getMessage() for record in caplog.records]
    for reason in ("a.jpg is skipped: it is not a picture", "c.jpg is skipped: there is no such file"):
        assert sum(reason in message for message in told) == 1, reason
    assert sum("format that is not read (.heic;" in message for message in told) == 1
    assert len(told) == 3


@pytest.mark.parametrize("change", ["reversed channels", "read-only", "by columns"])
def test_an_array_may_lie_in_memory_in_any_way(change: str, model: LibreYOLO, picture: np.ndarray) -> None:
    """cv2 gives BGR, and `[..., ::-1]` a view with a negative step."""
    given = {
        "reversed channels": lambda: np.ascontiguousarray(picture[..., ::-1])[..., ::-1],
        "read-only": lambda: np.frombuffer(picture.tobytes(), np.uint8).reshape(picture.shape),
        "by columns": lambda: np.asfortranarray(picture),
    }[change]()
    assert same(model.predict(given, max_det=3)[0], model.predict(picture, max_det=3)[0])


def test_boxes_of_a_turned_picture_are_those_of_the_upright_one(model: LibreYOLO, picture: np.ndarray, tmp_path: Path) -> None:
    exif = Image.Exif()
    exif[0x0112] = 6
    Image.fromarray(picture).save(tmp_path / "a.png", exif=exif)
    [turned], [upright] = model.predict(tmp_path / "a.png"), model.predict(np.rot90(picture, -1))
    assert turned.picture.shape == (131, 97, 3)
    assert same(turned, upright)


def test_no_picture_that_came_in_is_ever_written_over(model: LibreYOLO, picture: np.ndarray, tmp_path: Path) -> None:
    for name in ("a.png", "b.bmp", "c.png"):
        Image.fromarray(picture).save(tmp_path / name)
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    results = model.predict([tmp_path / "a.png", tmp_path / "b.bmp"], save=tmp_path, max_det=3)
    assert {path.name for path in tmp_path.iterdir()} == {*before, "a_2.png", "b.png"}
    for target in (tmp_path / "a.png", tmp_path / "x" / ".." / "a.png"):
        (tmp_path / "x").mkdir(exist_ok=True)
        with pytest.raises(UserError, match=r"a\.png is the picture itself, which is never replaced"):
            results[0].save(target)
    model.predict(tmp_path / "b.bmp", save=tmp_path, max_det=3)
    assert (tmp_path / "b_2.png").exists()  # b.png may be the user's own by now
    assert {name: (tmp_path / name).read_bytes() for name in before} == before


def test_a_name_without_a_file_is_no_place_for_weights(model: LibreYOLO) -> None:
    with pytest.raises(UserError, match=r"'\.' names no file to write to"):
        model.save("")


def test_a_place_or_a_kind_of_file_that_cannot_be_written_is_told(found: Result, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for target in (tmp_path / "a.nothing", tmp_path / "file" / "a.png", tmp_path / ("a" * 300 + ".png"), tmp_path / "a\0.png"):
        with pytest.raises(UserError, match="could not be written"):
            found.save(target)
