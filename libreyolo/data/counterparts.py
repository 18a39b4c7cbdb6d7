"""The file that belongs to a picture: how its folder and its name follow from the picture's. Used for labels, masks and pairs.

- A label's folder is the picture's, with the last folder called `images` (in small or large letters) replaced by its neighbour `labels`. Where there
  is no such folder, or no such neighbour, labels lie beside the pictures.
- A label has its picture's name and the suffix .txt. Where that file is not there, one is taken that differs in the case of its suffix alone
  (.TXT), or in the code points of its letters (an é may be one or two; archives made on a Mac hold two).
"""

from __future__ import annotations

import os
import unicodedata
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path

LISTS = frozenset({"classes.txt", "readme.txt", "train.txt", "val.txt", "test.txt", "labels.txt", "notes.txt"})
"""Text files that lie among labels and are none."""


def composed(name: str) -> str:
    """Return a name with every letter in one code point where it can be: what looks the same is the same then."""
    return name if name.isascii() else unicodedata.normalize("NFC", name)


def images_place(parts: Sequence[str]) -> int | None:
    """Return the place of the last folder called `images`, in small or large letters; None where there is none."""
    return next((place for place in reversed(range(len(parts))) if parts[place].lower() == "images"), None)


def label_paths(pictures: Iterable[str]) -> list[str]:
    """Return where each picture's label file is, or would be, by the rules above."""
    folders: dict[str, tuple[str, dict[str, str]]] = {}
    result = []
    for picture in pictures:
        folder, stem = folder_and_stem(picture)
        if folder not in folders:
            place = _label_folder(folder)
            folders[folder] = place, _odd_names(place)
        place, odd = folders[folder]
        exact = os.path.join(place, stem + ".txt")  # noqa: PTH118 - a million times
        other = odd.get(composed(stem)) if odd else None
        result.append(exact if other is None or Path(exact).exists() else os.path.join(place, other))  # noqa: PTH118
    return result


def shared_files(files: Sequence[str]) -> list[str]:
    """Return the files that several pictures have (`a.jpg` and `a.png` share a.txt), each once, sorted; files that are not there do not count."""
    if len(set(files)) == len(files):
        return []
    return sorted(file for file, count in Counter(files).items() if count > 1 and Path(file).exists())


def folder_and_stem(picture: str) -> tuple[str, str]:
    """Return a picture's folder, and its name without the suffix."""
    folder, name = os.path.split(picture)
    return folder, os.path.splitext(name)[0]  # noqa: PTH122 - a million times


def _label_folder(folder: str) -> str:
    parts = Path(folder).parts
    last = images_place(parts)
    if last is None:
        return folder
    above, below = Path(*parts[:last]), parts[last + 1 :]
    exact = Path(above, "labels", *below)
    if exact.is_dir():
        return str(exact)
    try:
        neighbours = sorted(name for name in os.listdir(above) if name.lower() == "labels")  # noqa: PTH208 - names are all that is wanted
    except OSError:  # a folder that may be entered and not listed
        return folder
    places = (Path(above, name, *below) for name in neighbours)
    return next((str(place) for place in places if place.is_dir()), folder)


def _odd_names(folder: str) -> dict[str, str]:
    """Return the label files of a folder whose names may not be their pictures' to the letter, by their composed stem."""
    names = (name for name in text_files(folder) if not (name.endswith(".txt") and name.isascii()))
    return {composed(Path(name).stem): name for name in sorted(names, reverse=True)}


def text_files(folder: str) -> list[str]:
    """Return the names of a folder's text files that may be labels, sorted; [] where it can't be listed."""
    try:
        names = sorted(os.listdir(folder))  # noqa: PTH208 - names are all that is wanted, of perhaps a million files
    except OSError:
        return []
    return [name for name in names if name[-4:].lower() == ".txt" and not name.startswith(".") and name.lower() not in LISTS]
