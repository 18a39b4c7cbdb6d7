"""ImageSet as workers get it."""

from __future__ import annotations

import os
import pickle
from pathlib import Path

import numpy as np
import pytest

from libreyolo.data.decode import decode_picture
from libreyolo.data.detection import load_detection
from libreyolo.data.path_table import PathTable
from tests.unit.data.conftest import BuildSet, save_picture

BOX = "0 0.5 0.5 0.5 0.5\n"


def test_paths_survive_in_arrays_whatever_their_bytes() -> None:
    paths = ["/a/b.jpg", "/ü/名.png", os.fsdecode(b"/x/\xff\xfe.jpg"), "/a b/c"]
    table = pickle.loads(pickle.dumps(PathTable(paths)))
    assert [str(table[index]) for index in range(len(table))] == paths
    assert len(PathTable([])) == 0
    assert table.content() == PathTable(paths).content()
    assert PathTable(["ab", "c"]).content() != PathTable(["a", "bc"]).content()


def test_a_pickled_set_gives_the_same_answers(build_set: BuildSet) -> None:
    images = load_detection(build_set([BOX, "", BOX + "1 0.2 0.2 0.1 0.1\n"])).train
    copy = pickle.loads(pickle.dumps(images))
    for index in range(3):
        assert copy.path(index) == images.path(index)
        np.testing.assert_array_equal(copy.truth(index)[0], images.truth(index)[0])
        np.testing.assert_array_equal(copy.image(index), images.image(index))


def test_the_index_is_held_in_arrays_alone(build_set: BuildSet) -> None:
    images = load_detection(build_set([BOX] * 3)).train
    held = [*vars(images).values(), *vars(images.paths).values()]
    assert not [value for value in held if isinstance(value, (list, dict, set, tuple))]


def test_what_is_handed_out_can_be_changed_without_harm(build_set: BuildSet) -> None:
    images = load_detection(build_set([BOX])).train
    boxes, labels = images.boxes(0)
    boxes += 9
    labels += 9
    assert images.boxes(0)[0].tolist() == [[0.25, 0.25, 0.75, 0.75]]
    assert images.boxes(0)[1].tolist() == [0]


@pytest.mark.parametrize("index", [-1, 2])
def test_an_index_outside_is_an_error(build_set: BuildSet, index: int) -> None:
    images = load_detection(build_set([BOX, BOX])).train
    for ask in (images.path, images.size, images.boxes, images.truth, images.image):
        with pytest.raises(IndexError):
            ask(index)


def test_a_picture_is_shrunk_to_fit_and_never_enlarged(build_set: BuildSet) -> None:
    path = build_set([BOX])
    save_picture(path.parent / "images" / "train" / "00.jpg", (60, 90))
    images = load_detection(path).train
    assert images.image(0, (40, 45)).shape == (30, 45, 3)
    np.testing.assert_array_equal(images.image(0, (200, 200)), decode_picture(images.path(0)))
    np.testing.assert_array_equal(images.image(0, (40, 45)), decode_picture(images.path(0), (30, 45)))


def test_truth_is_in_pixels_of_the_original_also_when_the_picture_is_shrunk(build_set: BuildSet, tmp_path: Path) -> None:
    images = load_detection(build_set([BOX])).train
    images.image(0, (12, 12))
    assert images.truth(0)[0].tolist() == [[8, 6, 24, 18]]
