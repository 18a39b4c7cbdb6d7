"""Open every picture's header and read every label file, once. n usable pictures, M boxes.

A picture that can't be used is skipped, by name and reason, the same on every rank since only the files decide. Nothing of the user's is
written. The result goes to the cache (scan_cache.py); a set whose files have the sizes and times of then is not opened again.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from libreyolo.data import scan_cache
from libreyolo.data.coco_labels import CocoLabels
from libreyolo.data.counterparts import label_paths, shared_files
from libreyolo.data.dataset_yaml import DatasetYaml
from libreyolo.data.decode import PictureError, probe_picture
from libreyolo.data.labels import LabelFile, LabelSource, parse_labels, read_label_file
from libreyolo.data.scan_result import Scan, SplitReport
from libreyolo.data.scan_work import parallel, progress, refuse_unusable, stamp
from libreyolo.data.sources import Listing
from libreyolo.errors import UserError, printable

logger = logging.getLogger(__name__)

READER_VERSION = 3  # raise it when a rule of labels.py, coco_labels.py or decode.py changes: it makes every cached scan stale


@dataclass(frozen=True)
class Problem:
    """A row that makes the set refused: which picture, where it stands, what is wrong."""

    picture: str
    where: str
    text: str


@dataclass(frozen=True)
class Findings:
    """A scan with what would refuse the set. ids: smallest and largest class id of all rows, () where there is none.

    clipped: where every box stands that sticks out of its picture.
    """

    scan: Scan
    problems: list[Problem]
    ids: tuple[int, ...]
    clipped: list[str]


class TextLabels:
    """A LabelSource of one text file a picture."""

    def __init__(self, pictures: Sequence[str], nc: int, keypoint_numbers: int = 0) -> None:
        self.files: Sequence[str] = label_paths(pictures)
        self._nc, self._keypoint_numbers = nc, keypoint_numbers

    def prepare(self) -> None:
        """Nothing is read before it is asked for."""

    def skipped(self) -> list[tuple[str, str]]:
        return []

    def is_used(self, place: int) -> bool:
        return True

    def read(self, place: int, hw: tuple[int, int]) -> LabelFile | str | None:
        return read_label_file(self.files[place], self._nc, self._keypoint_numbers)

    def where(self, place: int, line: int) -> str:
        return f"{self.files[place]}:{line}"


def label_source(description: DatasetYaml, split: str, pictures: Sequence[str]) -> LabelSource:
    """Return where the labels of a split's pictures are."""
    if split in description.annotations:
        return CocoLabels(description.annotations[split], pictures, description.names)
    return TextLabels(pictures, description.nc, description.keypoint_numbers)


def scan_pictures(listing: Listing, *, split: str, description: DatasetYaml) -> Scan:
    """Return the usable pictures of a listing with their boxes, from the cache where it is fresh.

    Raises UserError when a label row is an error by the rules of labels.py, when no picture is usable, and when more than half are not.
    """
    labels = label_source(description, split, listing.pictures)
    picture_stamps, label_stamps = stamps_of(listing.pictures), stamps_of(labels.files)
    key = _key(listing, labels.files, np.concatenate([picture_stamps, label_stamps]), split, description)
    shared = shared_files(labels.files)
    if shared:
        files = f"{len(shared)} label files belong to several pictures each, one name with two suffixes (for example {shared[0]})"
        logger.warning("%s: %s; their boxes are used for each.", split, printable(files))
    cache_name = f"{description.path} {split}"
    scan = scan_cache.load(cache_name, key)
    if scan is None:
        found = read_split(listing, labels, split, description.nc)
        refuse_split(found.scan.report, split)
        _refuse_problems(found, description.nc, split)
        scan = found.scan
        scan_cache.save(cache_name, key, scan)
    return scan


def stamps_of(paths: Sequence[str]) -> NDArray[np.int64]:
    """Return int64 [n, 2], size and mtime in ns of each file; -1 where there is none."""
    return np.array(list(parallel(stamp, paths)), np.int64).reshape(-1, 2)


def _key(listing: Listing, label_files: Sequence[str], stamps: NDArray[np.int64], split: str, description: DatasetYaml) -> str:
    """A digest of all that the result depends on."""
    facts = ["detect", READER_VERSION, split, list(description.names.items()), description.keypoint_numbers, listing.skipped]
    digest = hashlib.sha256(json.dumps(facts).encode())
    for path in (*listing.pictures, *label_files):
        digest.update(os.fsencode(path) + b"\0")
    digest.update(stamps.tobytes())
    return digest.hexdigest()


def read_split(listing: Listing, labels: LabelSource, split: str, nc: int) -> Findings:
    """Open every picture and read every label now. Raises UserError only for labels that can't be read at all."""
    stamps = stamps_of(listing.pictures)  # before the reading: a file that changes meanwhile has another stamp at the next start
    labels.prepare()
    report = SplitReport(split, skipped=[*listing.skipped, *labels.skipped()])
    places = [place for place in range(len(listing.pictures)) if labels.is_used(place)]
    report.num_left_out = len(listing.pictures) - len(places)
    kept: list[int] = []
    sizes: list[tuple[int, int]] = []
    files: list[LabelFile] = []
    problems: list[Problem] = []
    ids: set[int] = set()
    clipped: list[str] = []

    def read(place: int) -> tuple[tuple[int, int], LabelFile | None] | str:
        return _read_one(listing.pictures[place], labels, place)

    for number, found in progress(parallel(read, places), len(places), split):
        place = places[number]
        if isinstance(found, str):
            report.skipped.append((listing.pictures[place], found))
            continue
        size, file = found
        if file is None:
            report.num_missing_labels += 1
            file = parse_labels(b"", nc)
        else:
            report.num_empty_labels += file.is_empty
        report.row_warnings += [f"{labels.where(place, line)} {text}" for line, text in file.warnings]
        problems += [Problem(listing.pictures[place], labels.where(place, line), text) for line, text in file.errors]
        clipped += [labels.where(place, line) for line in file.clipped]
        ids.update(file.ids or ())
        kept.append(place)
        sizes.append(size)
        files.append(file)
    counts = [len(file.labels) for file in files]
    report.num_pictures, report.num_boxes, report.num_background = len(kept), sum(counts), counts.count(0)
    scan = Scan(
        kept=np.array(kept, np.int64),
        sizes=np.array(sizes, np.int32).reshape(-1, 2),
        boxes=np.concatenate([np.zeros((0, 4), np.float32), *(file.boxes for file in files)]),
        labels=np.concatenate([np.zeros(0, np.int64), *(file.labels for file in files)]),
        offsets=np.cumsum([0, *counts], dtype=np.int64),
        stamps=stamps[kept],
        report=report,
    )
    return Findings(scan, problems, (min(ids), max(ids)) if ids else (), clipped)


def _read_one(picture: str, labels: LabelSource, place: int) -> tuple[tuple[int, int], LabelFile | None] | str:
    """A picture's size and labels (None without a file), or why the picture can't be used."""
    try:
        size = probe_picture(picture)
    except PictureError as error:
        return str(error)
    found = labels.read(place, size)
    return found if isinstance(found, str) else (size, found)


def refuse_split(report: SplitReport, split: str) -> None:
    """Raise UserError where no picture is usable, or more than half are not."""
    if not report.skipped and not report.num_pictures:
        raise UserError(f"{split}: the annotations name none of the {report.num_left_out} pictures; correct annotations: or {split}:.")
    refuse_unusable(report.skipped, report.num_pictures, split)


def _refuse_problems(found: Findings, nc: int, split: str) -> None:
    problems = found.problems
    if not problems:
        return
    shown = "; ".join(f"{problem.where} {problem.text}" for problem in problems[:5])
    more = f"; and {len(problems) - 5} more" if len(problems) > 5 else ""
    rows = "row is" if len(problems) == 1 else "rows are"
    raise UserError(f"{split}: {len(problems)} label {rows} wrong: {shown}{more}{hint_of_ids(found.ids, nc)}; correct the labels or names.")


def hint_of_ids(ids: tuple[int, ...], nc: int) -> str:
    """Return a note where class ids seem to start at 1, else ""."""
    if ids != (1, nc):
        return ""
    return f" (the ids run from 1 to nc={nc}, so they seem to start at 1: subtract 1 from each)"
