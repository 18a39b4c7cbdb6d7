"""Label text -> arrays, rule by rule. The expected numbers are worked out by hand or in float64 here."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from libreyolo.data.labels import MAX_BYTES, format_labels, parse_labels, read_label_file


def boxes_of(text: str, nc: int = 2) -> list[list[float]]:
    found = parse_labels(text.encode(), nc)
    assert found.errors == []
    return found.boxes.tolist()


def f32(*numbers: float) -> list[float]:
    return np.array(numbers, np.float64).astype(np.float32).tolist()


def test_the_boxes_of_case_b44_survive_and_the_bad_rows_are_told_by_line() -> None:
    text = "0 0.5 0.5 0.2 0.4\n0 0.98 0.5 0.08 0.2\n0 512 300 40 40\n0 0.5 0.5 0 0.1\n0 nan 0.5 0.1 0.1\n"
    found = parse_labels(text.encode(), 2)
    assert found.boxes.dtype == np.float32
    assert found.labels.dtype == np.int64
    assert found.boxes.tolist() == [f32(0.4, 0.3, 0.6, 0.7), f32(0.94, 0.4, 1.0, 0.6)]
    assert found.labels.tolist() == [0, 0]
    assert [line for line, _ in found.warnings] == [3, 4, 5]
    assert [("normalised" in found.warnings[0][1]), ("area" in found.warnings[1][1]), ("finite" in found.warnings[2][1])] == [True] * 3
    assert "512 300 40 40" in found.warnings[0][1]
    assert found.errors == []


def test_the_polygon_of_case_b46_becomes_its_envelope_also_beside_a_box() -> None:
    polygon = "1 0.1 0.1 0.5 0.1 0.5 0.4 0.1 0.4"
    assert boxes_of(polygon) == [f32(0.1, 0.1, 0.5, 0.4)]
    both = parse_labels(f"{polygon}\n0 0.5 0.5 0.5 0.5\n".encode(), 2)
    assert both.boxes.tolist() == [f32(0.1, 0.1, 0.5, 0.4), f32(0.25, 0.25, 0.75, 0.75)]
    assert both.labels.tolist() == [1, 0]


@pytest.mark.parametrize(
    "text",
    [
        "0 0.5 0.5 0.5 0.5",
        "0 0.5 0.5 0.5 0.5\r\n",
        "\ufeff0 0.5 0.5 0.5 0.5\n",
        "\n\n  0\t0.5\t0.5 0.5   0.5  \t\n\n",
        "0.0 .5 5e-1 0.50 5.0E-1",
        "0 0.5 0.5 0.5 0.5\r",
        "+0 0.5 0.5 0.5 0.5",
    ],
    ids=["plain", "crlf", "byte order mark", "blank lines, tabs, trailing spaces", "number forms", "old Mac", "plus sign"],
)
def test_the_way_a_row_is_typed_does_not_matter(text: str) -> None:
    found = parse_labels(text.encode(), 2)
    assert found.boxes.tolist() == [f32(0.25, 0.25, 0.75, 0.75)]
    assert found.labels.tolist() == [0]
    assert (found.warnings, found.errors, found.is_empty) == ([], [], False)


@pytest.mark.parametrize(
    ("row", "expected"),
    [
        ("0 0.02 0.5 0.1 0.2", (0.0, 0.4, 0.07, 0.6)),
        ("0 0.5 1.04 0.2 0.2", (0.4, 0.94, 0.6, 1.0)),
        ("0 0.5 0.5 1.05 1.1", (0.0, 0.0, 1.0, 1.0)),
        ("0 -0.05 0.1 0.3 0.1", (0.0, 0.05, 0.1, 0.15)),
        ("0 -0.1 0.2 1.05 0.2 0.5 0.6", (0.0, 0.2, 1.0, 0.6)),
    ],
)
def test_a_box_that_sticks_out_is_clipped(row: str, expected: tuple[float, ...]) -> None:
    np.testing.assert_allclose(boxes_of(row), [expected], rtol=0, atol=1e-7)


@pytest.mark.parametrize(
    ("row", "word"),
    [
        ("0 1.11 0.5 0.1 0.1", "normalised"),
        ("0 0.5 -0.11 0.1 0.9", "normalised"),
        ("0 0.5 0.5 1.2 0.1", "normalised"),
        ("0 0.5 0.5 0.1 640", "normalised"),
        ("0 0.1 0.1 0.5 0.1 0.5 1.2", "normalised"),
        ("0 0.5 0.5 -0.1 0.1", "area"),
        ("0 0.5 0.5 0.1 0", "area"),
        ("0 0.5 0.5 1e-12 0.1", "area"),
        ("0 1.09 0.5 0.1 0.1", "area"),
        ("0 0.1 0.1 0.1 0.3 0.1 0.5", "area"),
        ("0 inf 0.5 0.1 0.1", "finite"),
        ("0 0.5 0.5 0.1 -inf", "finite"),
        ("0 0.1 0.1 0.5 nan 0.5 0.4", "finite"),
    ],
)
def test_a_useless_row_is_dropped_with_a_reason_and_its_neighbours_stay(row: str, word: str) -> None:
    found = parse_labels(f"1 0.5 0.5 0.5 0.5\n{row}\n1 0.5 0.5 0.25 0.5\n".encode(), 2)
    assert found.labels.tolist() == [1, 1]
    assert [line for line, _ in found.warnings] == [2]
    assert word in found.warnings[0][1]
    assert row in found.warnings[0][1]
    assert found.errors == []


@pytest.mark.parametrize(
    ("row", "words"),
    [
        ("2 0.5 0.5 0.1 0.1", ("class id 2", "0..1")),
        ("-1 0.5 0.5 0.1 0.1", ("class id -1", "0..1")),
        ("1.5 0.5 0.5 0.1 0.1", ("1.5", "no integer")),
        ("nan 0.5 0.5 0.1 0.1", ("nan", "no integer")),
        ("1e300 0.5 0.5 0.1 0.1", ("1e300", "0..1")),
        ("cat 0.5 0.5 0.1 0.1", ("'cat'", "no number")),
        ("0 0.5 0,5 0.1 0.1", ("'0,5'", "no number")),
        ("0 0.5 0_5 0.1 0.1", ("'0_5'", "no number")),
        ("0 0.5 0.5 0.1", ("4 fields",)),
        ("0", ("1 fields",)),
        ("1 0.1 0.1 0.5 0.1 0.5", ("6 fields", "confidence")),
        ("1 0.1 0.1 0.5 0.1 0.5 0.4 0.1", ("8 fields",)),
    ],
)
def test_a_wrong_row_is_an_error_with_its_line(row: str, words: tuple[str, ...]) -> None:
    found = parse_labels(f"1 0.5 0.5 0.5 0.5\n\n{row}\n".encode(), 2)
    assert [line for line, _ in found.errors] == [3]
    for word in words:
        assert word in found.errors[0][1]
    assert found.labels.tolist() == [1]


def test_an_exact_repeat_is_dropped_but_another_class_or_box_is_not() -> None:
    found = parse_labels(b"0 0.5 0.5 0.2 0.2\n1 0.5 0.5 0.2 0.2\n0 0.5 0.5 0.2 0.3\n0.0 .5 .5 .2 .2\n", 2)
    assert found.labels.tolist() == [0, 1, 0]
    assert [line for line, _ in found.warnings] == [4]


@pytest.mark.parametrize("text", ["", "\n", " \t\r\n\n", "\ufeff"])
def test_white_space_alone_is_an_empty_file(text: str) -> None:
    found = parse_labels(text.encode(), 2)
    assert found.is_empty
    assert found.boxes.shape == (0, 4)
    assert found.labels.shape == (0,)


def test_a_file_whose_rows_are_all_dropped_is_not_an_empty_file() -> None:
    found = parse_labels(b"0 0.5 0.5 0 0\n", 2)
    assert not found.is_empty
    assert found.boxes.shape == (0, 4)


def test_bytes_that_are_no_text_are_an_error_at_their_line() -> None:
    found = parse_labels(b"0 0.5 0.5 0.1 0.1\n" + b"\xff\xfe0\x00", 2)
    assert found.errors == [(2, "is not UTF-8 text; save the file as UTF-8")]


def test_the_smallest_and_largest_id_are_known_also_of_wrong_rows() -> None:
    assert parse_labels(b"1 0.5 0.5 0.1 0.1\n2 0.5 0.5 0.1 0.1\n", 2).ids == (1, 2)
    assert parse_labels(b"", 2).ids is None


unit = st.floats(0, 1, allow_nan=False)
side = st.floats(0.01, 1)
number_forms = st.sampled_from([repr, "{:.17g}".format, "{:.17e}".format])
gaps = st.sampled_from([" ", "  ", "\t", " \t "])
ends = st.sampled_from(["\n", "\r\n", " \n", "\n\n"])


@given(st.lists(st.tuples(st.integers(0, 6), unit, unit, side, side, number_forms, gaps, ends), max_size=8))
def test_any_rows_of_boxes_give_exactly_the_clipped_boxes(rows: list[tuple]) -> None:
    text, expected = "", {}
    for class_id, cx, cy, w, h, form, gap, end in rows:
        text += gap.join([str(class_id), *(form(number) for number in (cx, cy, w, h))]) + end
        box = np.clip([cx - w / 2, cy - h / 2, cx + w / 2, cy + h / 2], 0, 1).astype(np.float32)
        expected[(class_id, *box.tolist())] = None  # a repeat counts once
    found = parse_labels(text.encode(), 7)
    assert (found.errors, len(found.warnings)) == ([], len(rows) - len(expected))
    assert [(class_id, *box) for class_id, box in zip(found.labels.tolist(), found.boxes.tolist(), strict=True)] == list(expected)


# Multiples of 2**-20, as pixel coordinates of a picture with such a side would be: float64 sums of them are exact.
grid = st.integers(0, 2**20).map(lambda place: place / 2**20)
spans = st.tuples(grid, grid).filter(lambda ends: ends[0] != ends[1]).map(sorted)


@given(st.lists(st.tuples(st.integers(0, 3), spans, spans), max_size=8, unique_by=repr))
def test_format_then_parse_gives_back_exactly_the_same_arrays(objects: list[tuple]) -> None:
    boxes = np.array([[x[0], y[0], x[1], y[1]] for _, x, y in objects], np.float32).reshape(-1, 4)
    labels = np.array([class_id for class_id, _, _ in objects], np.int64)
    found = parse_labels(format_labels(boxes, labels).encode(), 4)
    assert (found.errors, found.warnings) == ([], [])
    np.testing.assert_array_equal(found.boxes, boxes)
    np.testing.assert_array_equal(found.labels, labels)


@given(st.binary(max_size=60))
def test_no_bytes_raise_and_what_is_kept_is_always_a_proper_box(raw: bytes) -> None:
    found = parse_labels(raw, 3)
    assert np.all(found.boxes[:, 2:] > found.boxes[:, :2])
    assert np.all((found.boxes >= 0) & (found.boxes <= 1))
    assert np.all((found.labels >= 0) & (found.labels < 3))


# --- other people's files -----------------------------------------------------------------------------------------------------------------


def test_four_corners_of_an_oriented_box_give_its_envelope() -> None:
    assert boxes_of("1 0.5 0.1 0.9 0.5 0.5 0.9 0.1 0.5") == [f32(0.1, 0.1, 0.9, 0.9)]


def test_with_kpt_shape_a_pose_row_is_its_box_and_no_polygon() -> None:
    box, points = "1 0.5 0.5 0.2 0.4", " 0.1 0.1 2 0.9 0.9 1 0 0 0"
    for text in (box, box + points):
        found = parse_labels(text.encode(), 2, keypoint_numbers=9)
        assert (found.errors, found.warnings) == ([], [])
        assert found.boxes.tolist() == [f32(0.4, 0.3, 0.6, 0.7)]
    wrong = parse_labels((box + " 0.1 0.1 2").encode(), 2, keypoint_numbers=9)
    assert [(line, text.split(":")[0]) for line, text in wrong.errors] == [(1, "has 8 fields, but with this kpt_shape a row has 5 or 14")]


@pytest.mark.parametrize("text", ["0,0.5,0.5,0.2,0.2", "0, 0.5, 0.5, 0.2, 0.2"])
def test_commas_are_refused_with_what_to_do(text: str) -> None:
    ((line, said),) = parse_labels(text.encode(), 2).errors
    assert line == 1
    assert "separated by spaces, not by commas" in said


@pytest.mark.parametrize(
    ("raw", "said"),
    [
        (b"0 0.5 0.5 0.2 0.2\x00", "no number"),
        (b"\x00" * 64, "no number"),
        ("0 0.5 0.5 0.2 0.2".encode("utf-16"), "is not UTF-8 text"),
        (b"\x89PNG\r\n\x1a\n", "is not UTF-8 text"),
        (b'{"shapes": []}', "no number"),
        (b"<annotation><object/></annotation>", "no number"),
    ],
)
def test_bytes_that_are_no_rows_are_an_error_in_one_line(raw: bytes, said: str) -> None:
    found = parse_labels(raw, 2)
    assert len(found.labels) == 0
    assert said in found.errors[0][1]
    assert "\x00" not in found.errors[0][1]


def test_the_lines_of_clipped_boxes_are_known_and_rounding_is_no_clipping() -> None:
    found = parse_labels(b"0 0.98 0.5 0.08 0.2\n0 0.5 0.5 1.000001 0.2\n0 0.5 0.5 0.2 0.2\n", 1)
    assert (len(found.labels), found.clipped) == (3, [1])


def test_what_lies_in_a_label_s_place_and_is_no_file_is_an_error_and_nothing_is_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.txt")
    (tmp_path / "folder.txt").mkdir()
    for name in ("pipe.txt", "folder.txt"):
        found = read_label_file(str(tmp_path / name), 1)
        assert found is not None
        assert found.errors == [(1, "is no regular file")]
    assert read_label_file(str(tmp_path / "nothing.txt"), 1) is None
    assert read_label_file(str(tmp_path / "folder.txt" / "nothing.txt"), 1) is None


def test_a_huge_file_is_refused_unread(tmp_path: Path) -> None:
    with (tmp_path / "a.txt").open("wb") as file:
        file.truncate(MAX_BYTES + 1)  # a hole: it takes no room
    found = read_label_file(str(tmp_path / "a.txt"), 1)
    assert found is not None
    assert "more than a label file can have" in found.errors[0][1]


corner = st.tuples(unit, unit)


@given(st.lists(st.tuples(st.integers(0, 2), st.lists(corner, min_size=3, max_size=9), number_forms, gaps, ends), max_size=5))
def test_any_polygons_give_exactly_their_envelopes(rows: list[tuple]) -> None:
    text, expected = "", {}
    for class_id, corners, form, gap, end in rows:
        text += gap.join([f"{class_id}.0", *(form(number) for point in corners for number in point)]) + end
        x1, y1, x2, y2 = np.array([*np.min(corners, axis=0), *np.max(corners, axis=0)]).astype(np.float32).tolist()
        if x2 > x1 and y2 > y1:
            expected[(class_id, x1, y1, x2, y2)] = None
    found = parse_labels(text.encode(), 3)
    assert found.errors == []
    assert [(class_id, *box) for class_id, box in zip(found.labels.tolist(), found.boxes.tolist(), strict=True)] == list(expected)
    assert len(found.warnings) == len(rows) - len(expected)
