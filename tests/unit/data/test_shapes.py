"""The generated demo set: what is drawn is what is labelled."""

from __future__ import annotations

import hashlib
import threading
from pathlib import Path

import numpy as np
import pytest

from libreyolo.data import dataset_yaml, shapes
from libreyolo.data.detection import load_detection
from libreyolo.data.shape_scene import HIDDEN_SHARE, SHAPES, _half_planes, draw_scene
from libreyolo.data.shapes import make_shapes
from libreyolo.errors import UserError

# Of the first eight default scenes. A change means that every user gets another demo set: raise shapes.VERSION with it.
PINNED = "25b29c12371ee46a4c836fb202db970bcfd39340f2582ef018c8757e8804f852"
SMALL = {"num_train": 4, "num_val": 2, "size": 64}


def bytes_of(root: Path) -> dict[str, bytes]:
    return {str(path.relative_to(root)): path.read_bytes() for path in sorted(root.rglob("*")) if path.is_file()}


# --- scenes -----------------------------------------------------------------------------------------------------------------------------


def test_a_seed_always_draws_the_same_array() -> None:
    digest = hashlib.sha256()
    for seed in range(8):
        scene = draw_scene(seed)
        digest.update(scene.picture.tobytes() + scene.boxes.tobytes() + scene.labels.tobytes())
    assert digest.hexdigest() == PINNED


@pytest.mark.parametrize("label", range(len(SHAPES)))
def test_a_lone_object_is_boxed_tightly_to_a_pixel(label: int) -> None:
    for seed in range(20):
        scene = draw_scene((7, label, seed), labels=(label,), clutter=False)
        assert scene.labels.tolist() == [label]
        assert scene.visible.tolist() == [1.0]
        rows, columns = np.flatnonzero(scene.masks[0].any(1)), np.flatnonzero(scene.masks[0].any(0))
        extent = [columns[0], rows[0], columns[-1] + 1, rows[-1] + 1]
        # The mask holds pixels at least half covered; the tip of a star or triangle is thinner than that for a few pixels.
        assert np.abs(scene.boxes[0] - extent).max() <= (6 if SHAPES[label] in ("star", "triangle") else 1.5)
        assert np.all(scene.boxes[0, :2] <= np.add(extent[:2], 1))
        assert np.all(scene.boxes[0, 2:] >= np.subtract(extent[2:], 1))


def test_boxes_lie_inside_the_picture_and_hidden_objects_have_none() -> None:
    num_hidden = 0
    for seed in range(60):
        scene = draw_scene((1, seed), size=128, labels=(0, 1, 2, 3, 4, 5, 0, 1, 2))
        assert np.all(scene.boxes >= 0)
        assert np.all(scene.boxes <= 128)
        assert np.all(scene.boxes[:, 2:] > scene.boxes[:, :2])
        assert np.all(scene.visible > 1 - HIDDEN_SHARE)
        assert scene.masks.shape == (len(scene.labels), 128, 128)
        assert not np.any(scene.masks.sum(0) > 1)  # a pixel shows one object
        num_hidden += 9 - len(scene.labels)
    assert num_hidden > 0


def test_objects_number_one_to_six_of_all_classes_and_many_sizes() -> None:
    scenes = [draw_scene((2, seed)) for seed in range(120)]
    labels = np.concatenate([scene.labels for scene in scenes])
    assert np.bincount(labels, minlength=len(SHAPES)).min() > 30
    assert max(len(scene.labels) for scene in scenes) == 6
    sides = np.concatenate([(scene.boxes[:, 2:] - scene.boxes[:, :2]).max(1) for scene in scenes]) / 192
    assert np.percentile(sides, 10) < 0.25  # they start at a fifth of the side
    assert np.percentile(sides, 90) > 0.4


def test_colour_tells_nothing_of_the_class() -> None:
    """The mean colours of the classes differ by no more than chance does."""
    colours: list[list[np.ndarray]] = [[] for _ in SHAPES]
    for seed in range(200):
        scene = draw_scene((3, seed), size=96)
        for label, mask in zip(scene.labels, scene.masks, strict=True):
            colours[label].append(scene.clean[mask].mean(0))
    means = np.array([np.mean(group, 0) for group in colours])
    errors = np.array([np.std(group, 0) / len(group) ** 0.5 for group in colours])
    assert np.all(np.abs(means - means.mean(0)) < 4 * errors)


def test_a_star_has_five_points() -> None:
    angle = np.linspace(0, 2 * np.pi, 720, endpoint=False)
    u, v = (0.7 * np.cos(angle)).astype(np.float32), (0.7 * np.sin(angle)).astype(np.float32)
    inside = _half_planes(u, v, 5, np.cos(2 * np.pi / 5)) >= 4
    assert np.sum(inside & ~np.roll(inside, 1)) == 5


def test_the_clean_picture_is_the_picture_without_noise() -> None:
    scene = draw_scene(4)
    difference = scene.picture.astype(int) - scene.clean
    assert 0 < np.abs(difference).mean() < 15


# --- the set ----------------------------------------------------------------------------------------------------------------------------


def test_the_set_is_read_back_as_it_was_drawn(tmp_path: Path) -> None:
    data = load_detection(make_shapes(tmp_path / "s", seed=5, **SMALL))
    assert data.names == dict(enumerate(SHAPES))
    assert data.val is not None
    for place, images in enumerate((data.train, data.val)):
        assert len(images) == (4, 2)[place]
        for index in range(len(images)):
            scene = draw_scene((5, place, index), size=64)
            boxes, labels = images.truth(index)
            np.testing.assert_allclose(boxes, scene.boxes, atol=1e-4)
            np.testing.assert_array_equal(labels, scene.labels)
            assert np.abs(images.image(index).astype(int) - scene.picture).mean() < 12
    assert data.report["train"].skipped == data.report["train"].row_warnings == []


def test_the_same_arguments_give_the_same_bytes_and_another_seed_does_not(tmp_path: Path) -> None:
    first, second, other = (make_shapes(tmp_path / name, seed=seed, **SMALL).parent for name, seed in (("a", 0), ("b", 0), ("c", 1)))
    assert bytes_of(first) == bytes_of(second)
    assert bytes_of(first)["images/train/00000.jpg"] != bytes_of(other)["images/train/00000.jpg"]
    assert len({content for name, content in bytes_of(first).items() if name.endswith(".jpg")}) == 6


def test_a_finished_set_is_used_as_it_is_and_anything_else_is_left_alone(tmp_path: Path) -> None:
    make_shapes(tmp_path / "s", **SMALL)
    mark = tmp_path / "s" / "images" / "train" / "00000.jpg"
    mark.write_bytes(b"mine")
    make_shapes(tmp_path / "s", **SMALL)
    assert mark.read_bytes() == b"mine"
    with pytest.raises(UserError, match="something else"):
        make_shapes(tmp_path / "s", seed=1, **SMALL)
    assert mark.read_bytes() == b"mine"


def test_many_at_once_make_one_whole_set(tmp_path: Path) -> None:
    errors: list[BaseException] = []

    def make() -> None:
        try:
            make_shapes(tmp_path / "s", **SMALL)
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=make) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []
    assert [path.name for path in tmp_path.iterdir()] == ["s"]
    assert bytes_of(tmp_path / "s") == bytes_of(make_shapes(tmp_path / "t", **SMALL).parent)


def test_an_unfinished_set_never_shows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []

    def fail_at_third(*args, **kwargs):
        calls.append(args)
        if len(calls) == 3:
            raise OSError(28, "No space left on device")
        return draw_scene(*args, **kwargs)

    monkeypatch.setattr(shapes, "draw_scene", fail_at_third)
    with pytest.raises(UserError, match="No space left"):
        make_shapes(tmp_path / "s", **SMALL)
    assert list(tmp_path.iterdir()) == []


def test_the_built_in_name_makes_the_set_in_the_cache_folder_once(cache_root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(make_shapes, "__kwdefaults__", {"seed": 0, **SMALL})
    data = load_detection("shapes", cwd=tmp_path)
    assert data.yaml_path == cache_root / "sets" / f"shapes-v{shapes.VERSION}" / "data.yaml"
    assert dataset_yaml.find_yaml("shapes", tmp_path) == data.yaml_path
    assert list(tmp_path.iterdir()) == []
    assert len(data.train) == 4
