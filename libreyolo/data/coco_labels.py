"""COCO json -> the boxes of a split's pictures. The same rows as label files give, by the same rules (labels.py).

- The pictures of the split are those that the json's `images` names and the split's sources hold; an image is found by its `file_name`: a
  source's picture whose path ends so, else the one of that name. Other pictures of the sources are left out, counted and told: a folder may
  hold the pictures of several such files. An image of the json without annotations is background.
- `bbox` is [x, y, w, h] in pixels of the stored picture. Where the json's width and height are not those of the file, upright, the picture is
  skipped with both sizes: its boxes would lie elsewhere. An annotation without `bbox` takes the envelope of its polygons.
- A category is the class of the same name in the data.yaml; ids mean nothing outside their file. One that is used and has no such class is an
  error, since to leave it out would teach that its objects are background.
- Crowd regions (`iscrowd: 1`) are no boxes of an object and are left out, with a warning each; evaluation does not know them either.
- An annotation that can't be read, or is of an image or category that is not there, is an error with its id.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import Any

from libreyolo.data.counterparts import composed
from libreyolo.data.dataset_yaml import shown
from libreyolo.data.labels import LabelFile, RowError, Rows, UselessRowError, edges_of_box
from libreyolo.errors import UserError


class CocoLabels:
    """A LabelSource that reads one json for all pictures of a split."""

    def __init__(self, path: Path, pictures: Sequence[str], names: Mapping[int, str]) -> None:
        self.files: Sequence[str] = [str(path)]
        self._path, self._pictures, self._names = path, pictures, names
        self._images: dict[int, dict[str, Any]] = {}  # by place in the listing
        self._annotations: dict[Any, list[tuple[int, dict[str, Any]]]] = defaultdict(list)  # by image id
        self._class_of: dict[Any, int | str] = {}  # category id -> class id, or the name that the data.yaml lacks
        self._missing: list[tuple[str, str]] = []

    def prepare(self) -> None:
        content = self._content()
        for number, category in enumerate(self._records(content, "categories")):
            identity = self._identity(category, "id", f"categories[{number}]")
            if identity in self._class_of:
                raise UserError(f"{self._path}: categories[{number}] has the id {shown(identity)} of an earlier category; give each its own.")
            self._class_of[identity] = self._class_named(str(category.get("name", identity)))
        images = self._records(content, "images")
        self._place_images(images)
        known = {self._identity(image, "id", f"images[{number}]") for number, image in enumerate(images)}
        for number, annotation in enumerate(self._records(content, "annotations")):
            identity = self._identity(annotation, "image_id", f"annotations[{number}]")
            if identity not in known:
                raise UserError(f"{self.where(0, _number_of(annotation, number))} is of image {shown(identity)}, which images lacks; correct it.")
            self._annotations[identity].append((_number_of(annotation, number), annotation))

    def skipped(self) -> list[tuple[str, str]]:
        return self._missing

    def is_used(self, place: int) -> bool:
        return place in self._images

    def read(self, place: int, hw: tuple[int, int]) -> LabelFile | str | None:
        image = self._images[place]
        width, height = image.get("width"), image.get("height")
        if width is not None and height is not None and (height, width) != hw:
            return f"{self._path.name} says it is {shown(width)}x{shown(height)}, the file is {hw[1]}x{hw[0]}"
        rows = Rows(len(self._names))
        for number, annotation in self._annotations.get(image["id"], []):
            rows.take(number, shown(annotation.get("bbox")), lambda annotation=annotation: self._row(annotation, hw))  # type: ignore[misc]
        return rows.result()

    def where(self, place: int, line: int) -> str:
        return f"{self._path}: annotation {line}"

    def _content(self) -> dict[str, Any]:
        try:
            content = json.loads(self._path.read_bytes().decode("utf-8-sig"))
        except OSError as error:
            raise UserError(f"{self._path} cannot be read ({error.strerror}); correct annotations: or the file's permissions.") from error
        except (ValueError, RecursionError) as error:  # ValueError: no JSON, no UTF-8, a number with thousands of digits
            raise UserError(f"{self._path} is no JSON ({error}); annotations: takes COCO files.") from error
        if not isinstance(content, dict):
            raise UserError(f"{self._path} holds a {type(content).__name__}; a COCO file is an object with images, annotations and categories.")
        return content

    def _records(self, content: dict[str, Any], key: str) -> list[dict[str, Any]]:
        records = content.get(key)
        if not isinstance(records, list) or not all(isinstance(record, dict) for record in records):
            parts = "a COCO file has images, annotations and categories"
            raise UserError(f"{self._path}: {key} must be a list of objects, not {shown(records)}; {parts}.")
        return records

    def _identity(self, record: dict[str, Any], key: str, where: str) -> int | str:
        value = record.get(key)
        if isinstance(value, float) and value.is_integer():  # as tables write whole numbers
            return int(value)
        if isinstance(value, bool) or not isinstance(value, (int, str)):
            raise UserError(f"{self._path}: {where} has no {key} that is a whole number or a text, but {shown(value)}; correct it.")
        return value

    def _class_named(self, name: str) -> int | str:
        """Return the class of that name, in any case where no name fits exactly; the name itself where there is none."""
        for alike in (lambda text: text, lambda text: composed(text.strip()).casefold()):
            found = [class_id for class_id, other in self._names.items() if alike(other) == alike(name)]
            if len(found) == 1:
                return found[0]
        return name

    def _place_images(self, images: list[dict[str, Any]]) -> None:
        by_name: dict[str, list[int]] = defaultdict(list)
        for place, picture in enumerate(self._pictures):
            by_name[composed(PurePosixPath(picture).name)].append(place)
        seen: set[Any] = set()
        for number, image in enumerate(images):
            file_name = image.get("file_name")
            if not isinstance(file_name, str) or not file_name:
                raise UserError(f"{self._path}: images[{number}] has no file_name; correct it.")
            identity = self._identity(image, "id", f"images[{number}]")
            found = self._place_of(file_name, by_name)
            if identity in seen or found in self._images:
                raise UserError(f"{self._path}: images[{number}] ({shown(file_name)}) has an id or a file of an earlier image; remove one.")
            seen.add(identity)
            if found is None:
                self._missing.append((file_name, f"{self._path.name} names it but it is not among the pictures of the split"))
            else:
                self._images[found] = image

    def _place_of(self, file_name: str, by_name: dict[str, list[int]]) -> int | None:
        parts = [composed(part) for part in file_name.replace("\\", "/").split("/") if part not in ("", ".")]
        named = by_name.get(parts[-1], []) if parts else []
        ending = [place for place in named if PurePosixPath(composed(self._pictures[place])).parts[-len(parts) :] == tuple(parts)]
        found = ending or named
        if len(found) > 1:
            two = f"{self._pictures[found[0]]} or {self._pictures[found[1]]}"
            raise UserError(f"{self._path}: {shown(file_name)} may be {two}; write more of its path in file_name.")
        return found[0] if found else None

    def _row(self, annotation: dict[str, Any], hw: tuple[int, int]) -> tuple[int, tuple[float, float, float, float]]:
        crowd = annotation.get("iscrowd")
        if crowd not in (None, 0, 1, "0", "1"):
            raise RowError(f"has iscrowd {shown(crowd)}, which is neither 0 nor 1")
        if crowd in (1, "1"):
            raise UselessRowError("is a crowd region, not an object")
        category = annotation.get("category_id")
        if isinstance(category, (list, dict)) or category not in self._class_of:
            raise RowError(f"has category_id {shown(category)}, which categories lacks")
        class_id = self._class_of[category]
        if isinstance(class_id, str):
            raise RowError(f"is of category {shown(class_id)}, which is none of the data.yaml's names; add the class, or correct the name")
        x, y, w, h = _pixels(annotation)
        return class_id, edges_of_box((x + w / 2) / hw[1], (y + h / 2) / hw[0], w / hw[1], h / hw[0])


def _number_of(annotation: dict[str, Any], number: int) -> int:
    """Return the annotation's id, its place in the list where it has none."""
    found = annotation.get("id")
    return found if isinstance(found, int) and not isinstance(found, bool) else number


def _pixels(annotation: dict[str, Any]) -> tuple[float, float, float, float]:
    """Return x, y, w, h in pixels. Raises RowError where there is neither a box nor a polygon."""
    box = annotation.get("bbox")
    if box:
        numbers = _numbers(box, "bbox")
        if len(numbers) != 4:
            raise RowError(f"has a bbox of {len(numbers)} numbers: {shown(box)}, but a bbox is [x, y, width, height]")
        return numbers[0], numbers[1], numbers[2], numbers[3]
    polygons = annotation.get("segmentation")
    if not isinstance(polygons, list) or not polygons:
        raise RowError("has neither a bbox nor polygons")
    numbers = [number for polygon in polygons for number in _numbers(polygon, "segmentation")]
    if len(numbers) < 6 or len(numbers) % 2:
        raise RowError(f"has a segmentation of {len(numbers)} numbers, which is no polygon")
    xs, ys = numbers[0::2], numbers[1::2]
    return min(xs), min(ys), max(xs) - min(xs), max(ys) - min(ys)


def _numbers(values: Any, what: str) -> list[float]:
    if not isinstance(values, list) or not all(isinstance(value, (int, float)) and not isinstance(value, bool) for value in values):
        raise RowError(f"has a {what} that is no list of numbers: {shown(values)}")
    try:
        return [float(value) for value in values]
    except OverflowError:
        raise RowError(f"has a {what} beyond all numbers: {shown(values)}") from None
