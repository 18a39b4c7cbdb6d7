"""Label text of one picture -> boxes. k boxes kept.

The rules, kept to everywhere:

- A row is `class cx cy w h` (5 fields, normalised by the picture's width and height) or `class x1 y1 x2 y2 x3 y3 ...` (an odd number of
  fields, at least 7): a polygon, of which a detector takes the min/max envelope. Both kinds may stand in one file.
- Fields are separated by any white space; CRLF, a byte order mark, blank lines and trailing spaces mean nothing. `1.0` is a class id.
- A box that sticks out of the picture is clipped to it.
- A row is DROPPED, with a warning, and the picture and its other rows stay, when a coordinate is not finite, when the box has no area
  (w or h <= 0, or nothing left after clipping), when it is clearly not normalised (cx, cy, w, h or a vertex above 1.1, or cx, cy or a
  vertex below -0.1), or when it repeats an earlier row of the file exactly (same class, same box).
- A row is an ERROR, and the set is refused at load, when it can't be read as numbers, has another number of fields, or has a class id that
  is no integer of 0..nc-1.
- A file without rows and a picture without a file both mean background.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

# How far outside [0, 1] a coordinate may lie and still be a box that sticks out rather than one in other units.
TOLERANCE = 0.1


@dataclass
class LabelFile:
    """What one label file says.

    boxes: float32 [k, 4] xyxy normalised to [0, 1], x2 > x1 and y2 > y1. labels: int64 [k] in 0..nc-1.
    warnings: (line, why the row was dropped); errors: (line, what is wrong). Lines count from 1.
    ids: smallest and largest integer class id of all rows, bad ones too; None where there is none.
    is_empty: the file has no row at all.
    """

    boxes: NDArray[np.float32]
    labels: NDArray[np.int64]
    is_empty: bool
    warnings: list[tuple[int, str]] = field(default_factory=list)
    errors: list[tuple[int, str]] = field(default_factory=list)
    ids: tuple[int, int] | None = None


def parse_labels(raw: bytes, nc: int) -> LabelFile:
    """Read a label file's bytes by the rules above. Nothing is raised: bad rows come back as `warnings` and `errors`."""
    result = LabelFile(np.zeros((0, 4), np.float32), np.zeros(0, np.int64), is_empty=True)
    try:
        text = raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        result.is_empty = False
        result.errors.append((raw[: error.start].count(b"\n") + 1, "is not UTF-8 text"))
        return result
    kept: dict[tuple[int, bytes], NDArray[np.float32]] = {}  # ordered, and finds repeats
    ids: list[int] = []
    for line, row in enumerate(text.replace("\r\n", "\n").replace("\r", "\n").split("\n"), start=1):
        fields = row.split()
        if not fields:
            continue
        result.is_empty = False
        try:
            class_id, box = _read_row(fields, nc, ids)
        except _RowError as problem:
            result.errors.append((line, str(problem)))
        except _UselessRowError as problem:
            result.warnings.append((line, str(problem)))
        else:
            if (class_id, box.tobytes()) in kept:
                result.warnings.append((line, f"repeats an earlier row ({_shown(fields)})"))
            kept.setdefault((class_id, box.tobytes()), box)
    if kept:
        result.boxes = np.stack(list(kept.values()))
        result.labels = np.array([class_id for class_id, _ in kept], np.int64)
    if ids:
        result.ids = min(ids), max(ids)
    return result


def format_labels(boxes: NDArray[np.floating], labels: NDArray[np.integer]) -> str:
    """Return label text, one `class cx cy w h` row a box, from normalised xyxy [k, 4] and class ids [k]; "" for no boxes."""
    rows = []
    for (x1, y1, x2, y2), class_id in zip(np.asarray(boxes, np.float64).tolist(), labels.tolist(), strict=True):
        numbers = ((x1 + x2) / 2, (y1 + y2) / 2, x2 - x1, y2 - y1)
        rows.append(" ".join([str(class_id), *(repr(number) for number in numbers)]) + "\n")
    return "".join(rows)


class _RowError(ValueError):
    """The set can't be trusted with such a row in it."""


class _UselessRowError(ValueError):
    """The row is left out."""


def _read_row(fields: list[str], nc: int, ids: list[int]) -> tuple[int, NDArray[np.float32]]:
    """Return class id and clipped box; notes every integer id in `ids`, for the hint about ids that start at 1."""
    class_id = _class_id(fields[0], nc, ids)
    if len(fields) != 5 and (len(fields) < 7 or len(fields) % 2 == 0):
        hint = " (if the last one is a confidence or a track number, remove it)" if len(fields) == 6 else ""
        raise _RowError(f"has {len(fields)} fields, but a box has 5 (class cx cy w h) and a polygon an odd number from 7 on{hint}: {_shown(fields)}")
    numbers = [_number(text) for text in fields[1:]]
    if not all(math.isfinite(number) for number in numbers):
        raise _UselessRowError(f"has a coordinate that is not finite ({_shown(fields)})")
    x1, y1, x2, y2 = _edges_of_box(numbers, fields) if len(fields) == 5 else _edges_of_polygon(numbers, fields)
    box = np.clip(np.array([x1, y1, x2, y2]), 0.0, 1.0).astype(np.float32)
    if not (box[2] > box[0] and box[3] > box[1]):
        raise _UselessRowError(f"has no area inside the picture ({_shown(fields)})")
    return class_id, box


def _class_id(text: str, nc: int, ids: list[int]) -> int:
    value = _number(text)
    if not value.is_integer():
        raise _RowError(f"has class id {text}, which is no integer (valid ids are 0..{nc - 1})")
    ids.append(int(value))
    if not 0 <= value < nc:
        raise _RowError(f"has class id {text}, valid ids are 0..{nc - 1}")
    return int(value)


def _number(text: str) -> float:
    try:
        if "_" in text:  # float() would read 0_1 as 1
            raise ValueError(text)
        return float(text)
    except ValueError:
        raise _RowError(f"holds {text[:40]!r}, which is no number") from None


def _edges_of_box(numbers: list[float], fields: list[str]) -> tuple[float, float, float, float]:
    cx, cy, w, h = numbers
    if max(numbers) > 1 + TOLERANCE or min(cx, cy) < -TOLERANCE:
        raise _UselessRowError(f"is not normalised to the picture's width and height ({_shown(fields)})")
    if w <= 0 or h <= 0:
        raise _UselessRowError(f"has no area ({_shown(fields)})")
    return cx - w / 2, cy - h / 2, cx + w / 2, cy + h / 2


def _edges_of_polygon(numbers: list[float], fields: list[str]) -> tuple[float, float, float, float]:
    if max(numbers) > 1 + TOLERANCE or min(numbers) < -TOLERANCE:
        raise _UselessRowError(f"is not normalised to the picture's width and height ({_shown(fields)})")
    xs, ys = numbers[0::2], numbers[1::2]
    return min(xs), min(ys), max(xs), max(ys)


def _shown(fields: list[str]) -> str:
    """The row as written, cut where a polygon would fill the screen."""
    text = " ".join(fields)
    return text if len(text) <= 80 else f"{text[:77]}..."
