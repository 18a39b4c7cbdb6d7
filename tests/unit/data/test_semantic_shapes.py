"""The generated semantic set: what is drawn is what is labelled, the same every time."""

from __future__ import annotations

import hashlib
from pathlib import Path

import numpy as np

from libreyolo.data.semantic import load_semantic
from libreyolo.data.semantic_shapes import COLORS, NAMES, class_mask, leaning, make_semantic_shapes
from libreyolo.data.shape_scene import SHAPES, draw_scene

# Of the masks of the first eight scenes. A change means that every user gets another demo set: raise shapes.VERSION with it.
PINNED = "f37eaada9c33eff91bebaa9de955c2b483f78fe0b6ec9a3983edef3de7e83fdc"


def test_a_pixel_has_the_class_of_the_object_that_is_seen_there() -> None:
    digest = hashlib.sha256()
    for seed in range(8):
        scene = draw_scene((0, 0, seed), size=48)
        mask = class_mask(scene)
        digest.update(mask.tobytes())
        for label, seen in zip(scene.labels.tolist(), scene.masks, strict=True):
            assert (mask[seen] == label + 1).all()
        assert (mask[~scene.masks.any(axis=0)] == 0).all()
    assert digest.hexdigest() == PINNED


def test_a_pixel_leans_half_way_to_the_colour_of_its_class() -> None:
    scene = draw_scene((0, 0, 3), size=48)
    drawn, mask = leaning(scene).astype(int), class_mask(scene)
    assert len(np.unique(mask)) > 2
    assert np.abs(drawn - (scene.picture + COLORS[mask]) / 2).max() <= 1


def test_the_set_is_read_back_as_it_was_drawn_and_used_again(tmp_path: Path) -> None:
    path = make_semantic_shapes(tmp_path / "set", num_train=3, num_val=1, size=48)
    data = load_semantic(path)
    assert tuple(data.names.values()) == NAMES == ("background", *SHAPES)
    assert np.array_equal(data.train.mask(2), class_mask(draw_scene((0, 0, 2), size=48)))
    before = path.stat().st_mtime_ns
    assert make_semantic_shapes(tmp_path / "set", num_train=3, num_val=1, size=48).stat().st_mtime_ns == before


def test_it_is_found_by_its_name(tmp_path: Path, monkeypatch) -> None:
    from libreyolo.data import dataset_yaml

    made = make_semantic_shapes(tmp_path / "made", num_train=2, num_val=1)
    monkeypatch.setitem(dataset_yaml.BUILT_IN, "shapes-semantic", lambda: made)
    assert load_semantic("shapes-semantic", cwd=tmp_path).yaml_path == made
