"""Open every picture's header and read every label file, once. n usable pictures, M boxes.

A picture that can't be used is skipped, by name and reason, the same on every rank since only the files decide. Nothing of the user's is
written. The result goes to the cache (scan_cache.py); a set whose files have the sizes and times of then is not opened again.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from libreyolo.data import scan_cache
from libreyolo.data.decode import PictureError, probe_picture
from libreyolo.data.labels import LabelFile, parse_labels
from libreyolo.data.scan_result import Scan, SplitReport
from libreyolo.data.scan_work import parallel, progress, refuse_unusable, stamp
from libreyolo.data.sources import Listing
from libreyolo.errors import UserError

READER_VERSION = 1  # raise it when a rule of labels.py or decode.py changes: it makes every cached scan stale


def label_paths(pictures: Iterable[str]) -> list[str]:
    """Return each picture's label file: the last folder called `images` in its path becomes `labels`, the suffix .txt.

    Where there is no such folder, or its `labels` counterpart does not exist, the label is looked for beside the picture.
    """
    label_folder: dict[str, str] = {}
    result = []
    for picture in pictures:
        folder, name = os.path.split(picture)
        if folder not in label_folder:
            label_folder[folder] = _label_folder(folder)
        result.append(os.path.join(label_folder[folder], os.path.splitext(name)[0] + ".txt"))  # noqa: PTH118, PTH122 - a million times
    return result


def scan_pictures(listing: Listing, *, split: str, names: dict[int, str], cache_name: str) -> Scan:
    """Return the usable pictures of a listing with their boxes, from the cache where it is fresh.

    Raises UserError when a label row is an error by the rules of labels.py, when no picture is usable, and when more than half are not.
    """
    pictures, labels = listing.pictures, label_paths(listing.pictures)
    stamps = np.array(list(parallel(stamp, [*pictures, *labels])), np.int64).reshape(2, len(pictures), 2)
    key = _key(listing, labels, stamps, split, names)
    scan = scan_cache.load(cache_name, key)
    if scan is None:
        scan = _scan(listing, labels, stamps, split, len(names))
        scan_cache.save(cache_name, key, scan)
    return scan


def _label_folder(folder: str) -> str:
    parts = Path(folder).parts
    if "images" not in parts:
        return folder
    last = len(parts) - 1 - parts[::-1].index("images")
    replaced = Path(*parts[:last], "labels", *parts[last + 1 :])
    return str(replaced) if replaced.is_dir() else folder


def _key(listing: Listing, labels: list[str], stamps: NDArray[np.int64], split: str, names: dict[int, str]) -> str:
    """A digest of all that the result depends on."""
    digest = hashlib.sha256(json.dumps(["detect", READER_VERSION, split, list(names.items()), listing.skipped]).encode())
    for path in (*listing.pictures, *labels):
        digest.update(os.fsencode(path) + b"\0")
    digest.update(stamps.tobytes())
    return digest.hexdigest()


def _scan(listing: Listing, labels: list[str], stamps: NDArray[np.int64], split: str, nc: int) -> Scan:
    report = SplitReport(split, skipped=list(listing.skipped))
    kept: list[int] = []
    sizes: list[tuple[int, int]] = []
    files: list[LabelFile] = []
    errors: list[str] = []
    ids: list[int] = []

    def read(place: int) -> tuple[tuple[int, int], LabelFile | None] | str:
        return _read_one(listing.pictures[place], labels[place], nc, has_label=bool(stamps[1, place, 0] >= 0))

    for place, found in progress(parallel(read, range(len(labels))), len(labels), split):
        if isinstance(found, str):
            report.skipped.append((listing.pictures[place], found))
            continue
        size, file = found
        if file is None:
            report.num_missing_labels += 1
            file = parse_labels(b"", nc)
        else:
            report.num_empty_labels += file.is_empty
        report.row_warnings += [f"{labels[place]}:{line} {text}" for line, text in file.warnings]
        errors += [f"{labels[place]}:{line} {text}" for line, text in file.errors]
        ids += file.ids or ()
        kept.append(place)
        sizes.append(size)
        files.append(file)
    refuse_unusable(report.skipped, len(kept), split)
    _refuse_errors(errors, ids, nc, split)
    counts = [len(file.labels) for file in files]
    report.num_pictures, report.num_boxes, report.num_background = len(kept), sum(counts), counts.count(0)
    return Scan(
        kept=np.array(kept, np.int64),
        sizes=np.array(sizes, np.int32).reshape(-1, 2),
        boxes=np.concatenate([file.boxes for file in files]),
        labels=np.concatenate([file.labels for file in files]),
        offsets=np.cumsum([0, *counts], dtype=np.int64),
        stamps=stamps[0, kept],
        report=report,
    )


def _read_one(picture: str, label: str, nc: int, *, has_label: bool) -> tuple[tuple[int, int], LabelFile | None] | str:
    """A picture's size and labels (None without a file), or why the picture can't be used."""
    try:
        size = probe_picture(picture)
    except PictureError as error:
        return str(error)
    if not has_label:
        return size, None
    try:
        return size, parse_labels(Path(label).read_bytes(), nc)
    except OSError as error:
        raise UserError(f"{label} cannot be read ({error.strerror}); correct or remove it.") from error


def _refuse_errors(errors: list[str], ids: list[int], nc: int, split: str) -> None:
    if not errors:
        return
    more = f"; and {len(errors) - 5} more" if len(errors) > 5 else ""
    hint = ""
    if min(ids, default=0) == 1 and max(ids, default=0) == nc:
        hint = f" (the ids run from 1 to nc={nc}, so they seem to start at 1: subtract 1 from each)"
    rows = "row is" if len(errors) == 1 else "rows are"
    raise UserError(f"{split}: {len(errors)} label {rows} wrong: {'; '.join(errors[:5])}{more}{hint}; correct the labels or names.")
