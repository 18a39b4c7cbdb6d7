"""Label rows as areas: polygons painted into a mask, for sets that have no mask files.

A row is `class x1 y1 x2 y2 x3 y3 ...` or a box `class cx cy w h`, which paints its rectangle (so does that of a row with key points); what makes a
row wrong or useless is as in labels.py. Rows are painted in the order of the file, later ones over earlier ones. What no row covers is the
background, whose id comes after all others.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw

from libreyolo.data.labels import parse_labels, read_label_file


@dataclass
class Outlines:
    """What one label file says.

    points: of each row that is kept, float64 [v, 2] x and y in fractions of the sides, v at least 3. labels: their class ids.
    num_boxes: how many of them are boxes. warnings, errors: (line, text), as in labels.py. ids: smallest and largest class id, None without rows.
    """

    points: list[NDArray[np.float64]] = field(default_factory=list)
    labels: list[int] = field(default_factory=list)
    num_boxes: int = 0
    is_empty: bool = True
    warnings: list[tuple[int, str]] = field(default_factory=list)
    errors: list[tuple[int, str]] = field(default_factory=list)
    ids: tuple[int, int] | None = None


def read_outlines(path: str | Path, nc: int, keypoint_numbers: int = 0) -> Outlines:
    """Read a picture's label file; without one there is no row. Nothing is raised: what is wrong comes back as `warnings` and `errors`."""
    whole = read_label_file(str(path), nc, keypoint_numbers)
    if whole is None:
        return Outlines()
    if whole.errors:
        return Outlines(is_empty=whole.is_empty, errors=whole.errors, ids=whole.ids)
    return parse_outlines(Path(path).read_bytes(), nc, keypoint_numbers)


def parse_outlines(raw: bytes, nc: int, keypoint_numbers: int = 0) -> Outlines:
    """Read a label file's bytes. Nothing is raised: bad rows come back as `warnings` and `errors`."""
    whole = parse_labels(raw, nc, keypoint_numbers)
    result = Outlines(is_empty=whole.is_empty, errors=whole.errors, ids=whole.ids)
    if whole.errors:
        return result
    for line, row in enumerate(raw.decode("utf-8-sig").replace("\r\n", "\n").replace("\r", "\n").split("\n"), start=1):
        # Row by row: two polygons with one envelope are no repetition here.
        one = parse_labels(row.encode(), nc, keypoint_numbers)
        result.warnings += [(line, text) for _, text in one.warnings]
        if not len(one.labels):
            continue
        numbers = [float(text) for text in row.split()[1:]][: 4 if keypoint_numbers else None]
        if len(numbers) == 4:
            cx, cy, w, h = numbers
            numbers = [cx - w / 2, cy - h / 2, cx + w / 2, cy - h / 2, cx + w / 2, cy + h / 2, cx - w / 2, cy + h / 2]
            result.num_boxes += 1
        result.points.append(np.array(numbers, np.float64).reshape(-1, 2))
        result.labels.append(int(one.labels[0]))
    return result


def paint(outlines: Outlines, hw: tuple[int, int], background: int) -> NDArray[np.uint8]:
    """Return the mask [h, w] of a picture of that size; all background where there is no row."""
    canvas = Image.new("L", (hw[1], hw[0]), background)
    pen = ImageDraw.Draw(canvas)
    for points, label in zip(outlines.points, outlines.labels, strict=True):
        pen.polygon([(x * hw[1], y * hw[0]) for x, y in points.tolist()], fill=label)
    return np.array(canvas)
