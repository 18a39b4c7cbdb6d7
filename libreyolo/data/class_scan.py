"""Open the header of every picture of a listing whose classes are known; the result goes to the scan's cache, as for pictures with label files."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from libreyolo.data import scan_cache
from libreyolo.data.labels import LabelFile
from libreyolo.data.scan import Findings, read_split, refuse_split, stamps_of
from libreyolo.data.scan_result import Scan
from libreyolo.data.sources import Listing

READER_VERSION = 2  # raise it when a rule of class_folders.py or decode.py changes: it makes every cached scan stale


class WholePictures:
    """A LabelSource whose only label of a picture is all of it: one box, the picture's class."""

    files: Sequence[str] = ()

    def __init__(self, classes: NDArray[np.int64]) -> None:
        self._classes = classes

    def prepare(self) -> None:
        """There is nothing to read."""

    def skipped(self) -> list[tuple[str, str]]:
        return []

    def is_used(self, place: int) -> bool:
        return True

    def read(self, place: int, hw: tuple[int, int]) -> LabelFile:
        return LabelFile(np.array([[0, 0, 1, 1]], np.float32), self._classes[place : place + 1], is_empty=False)

    def where(self, place: int, line: int) -> str:
        raise AssertionError("a class that a folder gives has no line")


def scan_classes(listing: Listing, classes: NDArray[np.int64], *, split: str, names: dict[int, str], cache_name: str) -> Scan:
    """Return the usable pictures of a listing, each with one box that is all of it, from the cache where it is fresh.

    classes: int64, the class of each listed picture. Raises UserError when no picture is usable, and when more than half are not.
    """
    key = _key(listing, classes, split, names)
    scan = scan_cache.load(cache_name, key)
    if scan is None:
        scan = read_classes(listing, classes, split, len(names)).scan
        refuse_split(scan.report, split)
        scan_cache.save(cache_name, key, scan)
    return scan


def read_classes(listing: Listing, classes: NDArray[np.int64], split: str, nc: int) -> Findings:
    """Open every picture now; nothing is raised."""
    return read_split(listing, WholePictures(classes), split, nc)


def _key(listing: Listing, classes: NDArray[np.int64], split: str, names: dict[int, str]) -> str:
    """A digest of all that the result depends on."""
    digest = hashlib.sha256(json.dumps(["classify", READER_VERSION, split, list(names.items()), listing.skipped]).encode())
    for path in listing.pictures:
        digest.update(os.fsencode(path) + b"\0")
    digest.update(stamps_of(listing.pictures).tobytes())
    digest.update(classes.tobytes())
    return digest.hexdigest()
