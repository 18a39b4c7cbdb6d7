"""Mask files -> class ids of pixels. h w the mask, K classes.

- A mask is one channel of class ids: PNG, TIFF or BMP with grey levels (1, 2, 4, 8 or 16 bits, as stored), or a palette, whose indices are meant.
- It lies where the picture lies, with the last folder called `images` (in small or large letters) replaced by `masks_dir`, under the picture's name
  (counterparts.py says when two names are one) and its own suffix.
- `label_mapping` ({raw value: class id}) says what raw values mean; a value that it leaves out is ignored. Without it a raw value is the class id.
- 255 is ignored, and so is the raw value `ignore_index`. Any other value that is no class is an error.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from libreyolo.data.counterparts import composed, images_place
from libreyolo.data.dataset_yaml import is_absolute, shown
from libreyolo.errors import UserError
from libreyolo.ops.pixels import IGNORED

DEFAULT_FOLDER = "masks"
MASK_SUFFIXES = (".png", ".tif", ".tiff", ".bmp")
MAX_CLASSES = IGNORED  # ids 0..254
_NUM_VALUES = 65536
_WRONG, _UNMAPPED = -1, -2
_FORMATS = ("PNG", "TIFF", "BMP", "JPEG")  # the last one to be told by its name; what else Pillow knows may start other programs
# Pillow spreads grey levels of 2 and 4 bits over 0..255.
_SPREAD = {"L;2": 85, "L;4": 17}


class MaskError(ValueError):
    """A file that is no usable mask; the text is the reason, without the file's name."""


@dataclass(frozen=True)
class MaskRules:
    """What raw pixel values mean.

    folder: `masks_dir`. is_named: whether the data.yaml says so itself. table: int16 [65536], raw value -> class id, 255 for ignored, -2 for a value
    that the mapping leaves out, -1 for one that is wrong.
    """

    folder: str
    is_named: bool
    num_classes: int
    table: NDArray[np.int16]

    @cached_property
    def ids(self) -> NDArray[np.uint8]:
        """uint8 [65536], raw value -> what a training sees: a class id or 255."""
        return np.where(self.table < 0, IGNORED, self.table).astype(np.uint8)


def read_rules(path: Path, content: Mapping[str, Any], names: Mapping[int, str]) -> MaskRules:
    """Return what the data.yaml at `path` says of masks. Raises UserError for what contradicts itself."""
    folder = None if content.get("masks_dir") is None else _folder(path, content["masks_dir"])
    num_classes = len(names)
    if num_classes > MAX_CLASSES:
        raise UserError(f"{path}: {num_classes} classes are more than a mask can tell apart: at most {MAX_CLASSES}, for 255 is ignored.")
    ignored = _value(path, "ignore_index", content.get("ignore_index", str(IGNORED)))
    mapping = content.get("label_mapping")
    table = np.full(_NUM_VALUES, _WRONG, np.int16)
    if mapping is None:
        if ignored < num_classes:
            raise UserError(
                f"{path}: ignore_index={ignored} is also the id of the class {names[ignored]!r}: give the classes other ids by label_mapping."
            )
        table[:num_classes] = np.arange(num_classes)
    else:
        table[:] = _UNMAPPED
        for raw, class_id in _pairs(path, mapping, num_classes):
            table[raw] = class_id
    if mapping is None or table[IGNORED] == _UNMAPPED:
        table[IGNORED] = IGNORED
    if mapping is None or table[ignored] == _UNMAPPED:
        table[ignored] = IGNORED
    return MaskRules(DEFAULT_FOLDER if folder is None else folder, folder is not None, num_classes, table)


def _folder(path: Path, value: Any) -> str:
    text = value.replace("\\", "/").strip() if isinstance(value, str) else ""
    if not text.strip("/. "):
        raise UserError(f"{path}: masks_dir must be the name of a folder, not {shown(value)}.")
    if is_absolute(text):
        raise UserError(f"{path}: masks_dir must be the name that stands in a mask's path where images stands in its picture's, not {shown(value)}.")
    return text.strip("/")


def _pairs(path: Path, mapping: Any, num_classes: int) -> list[tuple[int, int]]:
    if not isinstance(mapping, dict) or not mapping:
        raise UserError(f"{path}: label_mapping must map raw pixel values to class ids ({{7: 0, 8: 1}}), not {shown(mapping)}.")
    found = [(_value(path, "a key of label_mapping", raw), _value(path, "a value of label_mapping", class_id)) for raw, class_id in mapping.items()]
    for raw, class_id in found:
        if class_id >= num_classes and class_id != IGNORED:
            raise UserError(f"{path}: label_mapping gives {raw} the class id {class_id}, outside 0..{num_classes - 1} (255: ignored); correct it.")
    return found


def _value(path: Path, what: str, text: Any) -> int:
    try:
        value = int(str(text))
    except ValueError:
        value = -1
    if not 0 <= value < _NUM_VALUES:
        raise UserError(f"{path}: {what} must be a whole number from 0 to {_NUM_VALUES - 1}, not {shown(text)}.")
    return value


class MaskFolders:
    """Finds masks; each folder is listed once."""

    def __init__(self, masks_dir: str) -> None:
        self.masks_dir = masks_dir
        self._listed: dict[str, dict[str, str]] = {}

    def folder(self, picture: str) -> str | None:
        """Return the folder in which the mask of a picture belongs; None where no folder of its path is called `images`."""
        parts = Path(picture).parts[:-1]
        last = images_place(parts)
        return None if last is None else str(Path(*parts[:last], self.masks_dir, *parts[last + 1 :]))

    def find(self, picture: str) -> str | None:
        """Return the mask of a picture, None where there is none."""
        folder = self.folder(picture)
        if folder is None:
            return None
        stem = Path(picture).stem
        names = self._names(folder)
        wanted = [one + suffix for one in dict.fromkeys((stem, composed(stem))) for suffix in MASK_SUFFIXES]
        found = next((names[name] for name in wanted if name in names), None)
        return None if found is None else str(Path(folder) / found)

    def lacking(self, picture: str) -> str:
        """Return where a mask was looked for in vain, and what lies there instead, for an error."""
        folder = self.folder(picture)
        if folder is None:
            return f"{picture} does not lie below a folder called images, which masks_dir could replace"
        stem = Path(picture).stem
        other = next((name for lower, name in self._names(folder).items() if Path(lower).stem == stem), None)
        hint = f"; {other} is there, but only {', '.join(MASK_SUFFIXES)} are read, which keep class ids exact" if other else ""
        return f"{picture}: there is no {Path(folder) / stem}.png{hint}"

    def _names(self, folder: str) -> dict[str, str]:
        """Return the files of a folder by their names with the suffix in small letters, as written and composed."""
        if folder not in self._listed:
            try:
                entries = sorted(os.listdir(folder))  # noqa: PTH208 - names are all that is wanted, of perhaps a million files
            except OSError:
                entries = []
            found = {Path(name).stem + Path(name).suffix.lower(): name for name in entries}
            self._listed[folder] = {composed(name): file for name, file in found.items()} | found
        return self._listed[folder]


def read_raw(path: str | Path) -> NDArray[Any]:
    """Return the raw values of a mask, [h, w] of a whole-number type, as stored. Raises MaskError."""
    try:
        with Image.open(path, formats=_FORMATS) as image:
            return _raw(image)
    except MaskError:
        raise
    except FileNotFoundError as error:
        raise MaskError("there is no such file") from error
    except Exception as error:  # on garbage, Pillow's readers raise anything from SyntaxError to struct.error
        raise MaskError(f"it cannot be decoded ({str(error) or type(error).__name__})") from error


def _raw(image: Image.Image) -> NDArray[Any]:
    if image.format == "JPEG":
        raise MaskError("it is a JPEG, whose values are not exact: save it as PNG")
    if image.mode not in ("1", "L", "P") and not image.mode.startswith("I"):
        raise MaskError(
            f"it is a picture of mode {image.mode}, but a mask has one channel of class ids: replace each colour by its id and save a grey PNG"
        )
    spread = _SPREAD.get(_raw_mode(image), 1)
    values = np.asarray(image)
    return values.astype(np.uint8) if values.dtype == bool else values // spread if spread > 1 else values


def _raw_mode(image: Image.Image) -> str:
    """Return how the file stores its pixels, as Pillow names it: "L;4"."""
    tile: Any = getattr(image, "tile", None)
    arguments = tile[0][3] if tile else ""
    return str(arguments[0] if isinstance(arguments, tuple) else arguments)


def count_values(raw: NDArray[Any]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the values that occur in a mask, rising, and how many pixels have each. Raises MaskError for one outside 0..65535."""
    low, high = (int(raw.min()), int(raw.max())) if raw.size else (0, 0)
    if low < 0 or high >= _NUM_VALUES:
        raise MaskError(f"it holds the value {low if low < 0 else high}, outside 0..{_NUM_VALUES - 1}")
    counts = histogram(raw) if raw.dtype == np.uint8 and raw.size else np.bincount(raw.reshape(-1), minlength=1)
    values = np.flatnonzero(counts)
    return values.astype(np.int64), counts[values].astype(np.int64)


def histogram(values: NDArray[np.uint8]) -> NDArray[np.int64]:
    """Return how often each value occurs in an array [h, w] that is not empty, int64 [256]."""
    # Pillow counts bytes as they are, NumPy widens each to eight of them first.
    return np.array(Image.fromarray(values).histogram(), np.int64)


def wrong_values(values: NDArray[np.int64], rules: MaskRules) -> NDArray[np.int64]:
    """Return those of the values that are neither a class nor ignored."""
    return values[rules.table[values] == _WRONG]


def classes_of(raw: NDArray[Any], values: NDArray[np.int64], rules: MaskRules) -> NDArray[np.uint8]:
    """Return a mask as a training sees it, uint8 [h, w], perhaps read-only. values: all that occur in `raw`."""
    if raw.dtype == np.uint8 and np.array_equal(rules.ids[values], values):
        return raw
    return rules.ids[raw]


def unmapped_values(values: NDArray[np.int64], rules: MaskRules) -> NDArray[np.int64]:
    """Return those of the values that `label_mapping` leaves out."""
    return values[rules.table[values] == _UNMAPPED]


def shrink_mask(mask: NDArray[np.uint8], hw: tuple[int, int]) -> NDArray[np.uint8]:
    """Return a mask [h, w] at another size: each pixel takes the value at its centre."""
    if mask.shape == hw:
        return mask
    rows = ((np.arange(hw[0]) + 0.5) * (mask.shape[0] / hw[0])).astype(np.int64)
    columns = ((np.arange(hw[1]) + 0.5) * (mask.shape[1] / hw[1])).astype(np.int64)
    return mask[rows].take(columns, axis=1)


def find_masks(pictures: Sequence[str], rules: MaskRules) -> tuple[list[str | None], MaskFolders]:
    """Return each picture's mask, None where there is none, and what can tell why."""
    folders = MaskFolders(rules.folder)
    return [folders.find(picture) for picture in pictures], folders
