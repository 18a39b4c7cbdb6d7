"""A classification set looked at from end to end: everything that is wrong with it at once, where a training stops at the first.

Reads every file and writes none; nothing comes from a cache.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from libreyolo.data.class_folders import ClassFolders, find_class_folders, list_split
from libreyolo.data.class_scan import read_classes
from libreyolo.data.dataset_yaml import SPLITS
from libreyolo.data.picture_check import evenly, find_leaks, look_at_all, note_skipped, note_unread
from libreyolo.data.picture_facts import PictureFacts
from libreyolo.data.scan import refuse_split
from libreyolo.data.scan_result import Scan
from libreyolo.errors import UserError
from libreyolo.interfaces.data_report import DataReport


@dataclass(frozen=True)
class _Split:
    """A split that could be read. pictures: the usable ones, with the rows of `scan`; facts: of those that decode."""

    pictures: list[str]
    scan: Scan
    facts: dict[str, PictureFacts]


def check_classes(data: str | Path, *, cwd: Path, num_samples: int = 16) -> tuple[DataReport, list[tuple[Path, str]]]:
    """Return the report, and pictures to draw with their class (spread over train and val). What is wrong with the set is in the report, nothing is
    raised for it."""
    report = DataReport(str(data))
    try:
        found = find_class_folders(data, cwd.absolute())
    except UserError as error:
        report.refuse("", error)
        return report, []
    report.data = str(found.place)
    splits = {split: checked for split in SPLITS if (checked := _check_split(found, split, report)) is not None}
    if "val" not in splits:
        report.add("warning", "", "there are no validation pictures, so nothing would be validated")
    if len(found.names) == 1:
        report.add("warning", "", f"there is one class only, {found.names[0]}: nothing to tell it from")
    _count_classes(found, splits, report)
    find_leaks({split: checked.facts for split, checked in splits.items()}, report)
    samples = [sample for split in ("train", "val") if split in splits for sample in _samples(splits[split], found.names, num_samples // 2)]
    return report, samples


def _check_split(found: ClassFolders, split: str, report: DataReport) -> _Split | None:
    """Read one split and note what is found; None where it has no usable picture."""
    try:
        listed = list_split(found, split)
    except UserError as error:
        report.refuse(split, error)
        return None
    note_unread(listed.listing, split, report)
    if not listed.listing.pictures and not listed.listing.skipped:
        return None
    scan = read_classes(listed.listing, np.array(listed.classes, np.int64), split, len(found.names)).scan
    told = scan.report
    report.counts[split] = {"pictures": told.num_pictures, "classes": len(np.unique(scan.labels)), "skipped": len(told.skipped)}
    note_skipped(told.skipped, lambda: refuse_split(told, split), split, report)
    pictures = [listed.listing.pictures[place] for place in scan.kept]
    return _Split(pictures, scan, look_at_all(pictures, split, report))


def _count_classes(found: ClassFolders, splits: dict[str, _Split], report: DataReport) -> None:
    counts = {split: np.bincount(checked.scan.labels, minlength=len(found.names)).tolist() for split, checked in splits.items()}
    report.classes = [(class_id, name, {split: counts[split][class_id] for split in splits}) for class_id, name in found.names.items()]
    for split in splits:
        lacking = [name for _, name, count in report.classes if not count[split]]
        report.add_all("error" if split == "train" else "warning", split, "classes without a usable picture", lacking)


def _samples(checked: _Split, names: dict[int, str], count: int) -> list[tuple[Path, str]]:
    """Return up to `count` pictures that decode, spread evenly, with the names of their classes."""
    able = [place for place, picture in enumerate(checked.pictures) if picture in checked.facts]
    return [(Path(checked.pictures[place]), names[int(checked.scan.labels[place])]) for place in evenly(able, count)]
