"""Label text of one picture -> boxes. k boxes kept.

The rules, kept to everywhere:

- A row is `class cx cy w h` (5 fields, normalised by the picture's width and height) or `class x1 y1 x2 y2 x3 y3 ...` (an odd number of
  fields, at least 7): a polygon, of which a detector takes the min/max envelope (oriented boxes, four corners, are such). Both kinds may stand
  in one file.
- Where the data.yaml has `kpt_shape: [K, D]`, a row of 5 + K * D fields is a box with K points, of which the box is taken, and there are no
  polygons: nothing else tells a pose row from a polygon.
- Fields are separated by any white space; CRLF, a byte order mark, blank lines and trailing spaces mean nothing. `1.0` is a class id.
- A box that sticks out of the picture is clipped to it.
- A row is DROPPED, with a warning, and the picture and its other rows stay, when a coordinate is not finite, when the box has no area
  (w or h <= 0, or nothing left after clipping), when it is clearly not normalised (cx, cy, w, h or a vertex above 1.1, or cx, cy or a
  vertex below -0.1), or when it repeats an earlier row of the file exactly (same class, same box).
- A row is an ERROR, and the set is refused at load, when it can't be read as numbers, has another number of fields (six, say: a box with its
  confidence is a prediction), or has a class id that is no integer of 0..nc-1. So is a file that can't be read, is no UTF-8 text, or is larger
  than MAX_BYTES.
- A file without rows and a picture without a file both mean background.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

# How far outside [0, 1] a coordinate may lie and still be a box that sticks out rather than one in other units.
TOLERANCE = 0.1
ROUNDING = 1e-5  # what a box may stick out for having been written with few digits
MAX_BYTES = 64 << 20  # a million boxes; what is larger is a list, a table or a log that lies where a label is looked for


@dataclass
class LabelFile:
    """What one label file says.

    boxes: float32 [k, 4] xyxy normalised to [0, 1], x2 > x1 and y2 > y1. labels: int64 [k] in 0..nc-1.
    warnings: (line, why the row was dropped); errors: (line, what is wrong). Lines count from 1.
    ids: smallest and largest integer class id of all rows, bad ones too; None where there is none.
    is_empty: the file has no row at all. clipped: lines of boxes that stuck out of the picture by more than rounding.
    """

    boxes: NDArray[np.float32]
    labels: NDArray[np.int64]
    is_empty: bool
    warnings: list[tuple[int, str]] = field(default_factory=list)
    errors: list[tuple[int, str]] = field(default_factory=list)
    ids: tuple[int, int] | None = None
    clipped: list[int] = field(default_factory=list)


class LabelSource(Protocol):
    """Where the labels of a listing's pictures are."""

    files: Sequence[str]  # every file that a change of the labels would change

    def prepare(self) -> None:
        """Read what is read once for all pictures. Raises UserError."""

    def skipped(self) -> list[tuple[str, str]]:
        """Return labelled pictures that are not in the listing, with the reason."""

    def is_used(self, place: int) -> bool:
        """Whether the picture is one of the set's: COCO files choose among those of a folder."""

    def read(self, place: int, hw: tuple[int, int]) -> LabelFile | str | None:
        """Return the labels of a picture of (h, w), None where there is no file, or why the picture can't be used with its labels."""

    def where(self, place: int, line: int) -> str:
        """Return how a message names a row."""


def read_label_file(path: str, nc: int, keypoint_numbers: int = 0) -> LabelFile | None:
    """Read a picture's label file; None where there is none. Nothing is raised."""
    file = Path(path)
    try:
        size = file.stat().st_size
        if not file.is_file():
            return _unreadable("is no regular file")
        if size > MAX_BYTES:
            return _unreadable(f"has {size} bytes, more than a label file can have ({MAX_BYTES}); remove what lies there")
        return parse_labels(file.read_bytes(), nc, keypoint_numbers)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        return _unreadable(f"cannot be read ({error.strerror})")


def _unreadable(why: str) -> LabelFile:
    return LabelFile(np.zeros((0, 4), np.float32), np.zeros(0, np.int64), is_empty=False, errors=[(1, why)])


def parse_labels(raw: bytes, nc: int, keypoint_numbers: int = 0) -> LabelFile:
    """Read a label file's bytes by the rules above. Nothing is raised: bad rows come back as `warnings` and `errors`.

    keypoint_numbers: K * D of the data.yaml's `kpt_shape`, 0 where there is none.
    """
    try:
        text = raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        found = _unreadable("is not UTF-8 text")
        found.errors = [(raw[: error.start].count(b"\n") + 1, "is not UTF-8 text; save the file as UTF-8")]
        return found
    rows = Rows(nc)
    for line, row in enumerate(text.replace("\r\n", "\n").replace("\r", "\n").split("\n"), start=1):
        fields = row.split()
        if fields:
            rows.take(line, _shown(fields), lambda fields=fields: _read_row(fields, rows, keypoint_numbers))  # type: ignore[misc]
    return rows.result()


class Rows:
    """Collects the rows of one picture, whatever file they come from: drops repeats, keeps warnings and errors by line."""

    def __init__(self, nc: int) -> None:
        self.nc = nc
        self.ids: list[int] = []
        self._kept: dict[tuple[int, bytes], NDArray[np.float32]] = {}  # ordered, and finds repeats
        self._warnings: list[tuple[int, str]] = []
        self._errors: list[tuple[int, str]] = []
        self._clipped: list[int] = []
        self._any = False

    def take(self, line: int, shown: str, read: Callable[[], tuple[int, tuple[float, float, float, float]]]) -> None:
        """Take one row: `read` returns its class id and normalised xyxy, or raises RowError or UselessRowError."""
        self._any = True
        try:
            class_id, edges = read()
            box = np.clip(np.array(edges), 0.0, 1.0).astype(np.float32)
            if not (box[2] > box[0] and box[3] > box[1]):
                raise UselessRowError("has no area inside the picture")
        except RowError as problem:
            self._errors.append((line, str(problem)))
        except UselessRowError as problem:
            self._warnings.append((line, f"{problem} ({shown})"))
        else:
            if min(edges) < -ROUNDING or max(edges) > 1 + ROUNDING:
                self._clipped.append(line)
            if (class_id, box.tobytes()) in self._kept:
                self._warnings.append((line, f"repeats an earlier row ({shown})"))
            self._kept.setdefault((class_id, box.tobytes()), box)

    def result(self) -> LabelFile:
        """Return what was collected."""
        boxes = np.stack(list(self._kept.values())) if self._kept else np.zeros((0, 4), np.float32)
        labels = np.array([class_id for class_id, _ in self._kept], np.int64)
        ids = (min(self.ids), max(self.ids)) if self.ids else None
        return LabelFile(boxes, labels, not self._any, self._warnings, self._errors, ids, self._clipped)


def format_labels(boxes: NDArray[np.floating], labels: NDArray[np.integer]) -> str:
    """Return label text, one `class cx cy w h` row a box, from normalised xyxy [k, 4] and class ids [k]; "" for no boxes."""
    rows = []
    for (x1, y1, x2, y2), class_id in zip(np.asarray(boxes, np.float64).tolist(), labels.tolist(), strict=True):
        numbers = ((x1 + x2) / 2, (y1 + y2) / 2, x2 - x1, y2 - y1)
        rows.append(" ".join([str(class_id), *(repr(number) for number in numbers)]) + "\n")
    return "".join(rows)


class RowError(ValueError):
    """The set can't be trusted with such a row in it."""


class UselessRowError(ValueError):
    """The row is left out."""


def edges_of_box(cx: float, cy: float, w: float, h: float) -> tuple[float, float, float, float]:
    """Return xyxy of a normalised box. Raises UselessRowError where it is not finite, not normalised or has no area."""
    if not all(map(math.isfinite, (cx, cy, w, h))):
        raise UselessRowError("has a coordinate that is not finite")
    if max(cx, cy, w, h) > 1 + TOLERANCE or min(cx, cy) < -TOLERANCE:
        raise UselessRowError("is not normalised to the picture's width and height")
    if w <= 0 or h <= 0:
        raise UselessRowError("has no area")
    return cx - w / 2, cy - h / 2, cx + w / 2, cy + h / 2


def _read_row(fields: list[str], rows: Rows, keypoint_numbers: int) -> tuple[int, tuple[float, float, float, float]]:
    """Return class id and edges; notes every integer id in `rows.ids`, for the hint about ids that start at 1."""
    class_id = _class_id(fields[0], rows)
    num = len(fields)
    if keypoint_numbers:
        if num not in (5, 5 + keypoint_numbers):
            raise RowError(f"has {num} fields, but with this kpt_shape a row has 5 or {5 + keypoint_numbers}: {_shown(fields)}")
        num = 5
    elif num != 5 and (num < 7 or num % 2 == 0):
        hint = " (if the last one is a confidence or a track number, remove it)" if num == 6 else ""
        raise RowError(f"has {num} fields, but a box has 5 (class cx cy w h) and a polygon an odd number from 7 on{hint}: {_shown(fields)}")
    numbers = [_number(text) for text in fields[1:]]
    if num == 5:
        return class_id, edges_of_box(numbers[0], numbers[1], numbers[2], numbers[3])
    return class_id, _edges_of_polygon(numbers)


def _class_id(text: str, rows: Rows) -> int:
    value = _number(text)
    if not value.is_integer():
        raise RowError(f"has class id {text[:40]}, which is no integer (valid ids are 0..{rows.nc - 1})")
    rows.ids.append(int(value))
    if not 0 <= value < rows.nc:
        raise RowError(f"has class id {text[:40]}, valid ids are 0..{rows.nc - 1}")
    return int(value)


def _number(text: str) -> float:
    try:
        if "_" in text:  # float() would read 0_1 as 1
            raise ValueError(text)
        return float(text)
    except ValueError:
        hint = " (fields are separated by spaces, not by commas)" if "," in text.strip(",") or text.endswith(",") else ""
        raise RowError(f"holds {text[:40]!r}, which is no number{hint}") from None


def _edges_of_polygon(numbers: list[float]) -> tuple[float, float, float, float]:
    if not all(map(math.isfinite, numbers)):
        raise UselessRowError("has a coordinate that is not finite")
    if max(numbers) > 1 + TOLERANCE or min(numbers) < -TOLERANCE:
        raise UselessRowError("is not normalised to the picture's width and height")
    xs, ys = numbers[0::2], numbers[1::2]
    return min(xs), min(ys), max(xs), max(ys)


def _shown(fields: list[str]) -> str:
    """The row as written, cut where a polygon would fill the screen."""
    text = " ".join(fields)
    return text if len(text) <= 80 else f"{text[:77]}..."
