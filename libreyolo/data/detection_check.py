"""A detection set looked at from end to end: everything that is wrong with it at once, where a training stops at the first.

Reads every file and writes none; nothing comes from a cache.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from libreyolo.data.counterparts import shared_files
from libreyolo.data.dataset_yaml import SPLITS, DatasetYaml, find_yaml, read_yaml
from libreyolo.data.picture_check import evenly, find_leaks, listing_of, look_at_all, note_no_val, note_skipped
from libreyolo.data.picture_facts import PictureFacts
from libreyolo.data.scan import Findings, TextLabels, hint_of_ids, label_source, read_split, refuse_split
from libreyolo.data.strays import stray_labels
from libreyolo.errors import UserError
from libreyolo.interfaces.data_report import DataReport

TINY = 2.0  # pixels of the stored picture; what is smaller than that vanishes in any network input
SAME_BOX = 0.95  # IoU from which two boxes of one class are most likely one object labelled twice


@dataclass(frozen=True)
class LabelledPicture:
    """A picture to draw: boxes float32 [k, 4] xyxy in pixels, upright; labels int64 [k]."""

    path: Path
    boxes: NDArray[np.float32]
    labels: NDArray[np.int64]


@dataclass(frozen=True)
class _Split:
    """A split that could be read. facts: by picture that decodes, in the order of `pictures`, the usable ones."""

    pictures: list[str]
    found: Findings
    facts: dict[str, PictureFacts]
    label_files: Sequence[str]


def check_detection(data: str | Path, *, cwd: Path, num_samples: int = 16) -> tuple[DataReport, list[LabelledPicture], dict[int, str]]:
    """Return the report, labelled pictures to draw (spread over train and val), and the class names. What is wrong with the set is in the report,
    nothing is raised for it."""
    report = DataReport(str(data))
    try:
        description = read_yaml(find_yaml(data, cwd.absolute()))
    except UserError as error:
        report.refuse("", error)
        return report, [], {}
    report.data = str(description.path)
    splits: dict[str, _Split] = {}
    for split in SPLITS:
        checked = _check_split(description, split, report)
        if checked is not None:
            splits[split] = checked
    note_no_val(description, report)
    _count_classes(description, splits, report)
    find_leaks({split: checked.facts for split, checked in splits.items()}, report)
    _find_orphans(splits, report)
    samples = [sample for split in ("train", "val") if split in splits for sample in _samples(splits[split], num_samples // 2)]
    return report, samples, description.names


def _check_split(description: DatasetYaml, split: str, report: DataReport) -> _Split | None:
    """Read one split and note what is found; None where it has no usable picture."""
    listing = listing_of(description, split, report)
    if listing is None:
        return None
    try:
        labels = label_source(description, split, listing.pictures)
        found = read_split(listing, labels, split, description.nc)
    except UserError as error:
        report.refuse(split, error)
        return None
    pictures = [listing.pictures[place] for place in found.scan.kept]
    _note_scan(found, split, report, description)
    used = [labels.files[place] for place in found.scan.kept] if isinstance(labels, TextLabels) else []
    _note_labels(found, pictures, used, split, report)
    facts = look_at_all(pictures, split, report)
    return _Split(pictures, found, facts, labels.files if isinstance(labels, TextLabels) else [])


def _note_scan(found: Findings, split: str, report: DataReport, description: DatasetYaml) -> None:
    """Counts, and what a training would say of the split."""
    told = found.scan.report
    report.counts[split] = {
        "pictures": told.num_pictures,
        "boxes": told.num_boxes,
        "background": told.num_background,
        "empty label files": told.num_empty_labels,
        "no label file": told.num_missing_labels,
        "skipped": len(told.skipped),
        "rows dropped": len(told.row_warnings),
    }
    if told.num_left_out:
        report.add("note", split, f"pictures of the sources that the annotations do not name, which are left out: {told.num_left_out}")
    note_skipped(told.skipped, lambda: refuse_split(told, split), split, report)
    wrong = [f"{problem.where} {problem.text}" for problem in found.problems]
    report.add_all("error", split, f"label rows that are wrong{hint_of_ids(found.ids, description.nc)}", wrong)
    report.add_all("warning", split, "label rows that would be dropped, their pictures stay", told.row_warnings)
    report.add_all("note", split, "boxes that stick out of their picture and would be clipped", found.clipped)


def _note_labels(found: Findings, pictures: list[str], label_files: list[str], split: str, report: DataReport) -> None:
    """What is odd about the boxes that are kept."""
    told, scan = found.scan.report, found.scan
    if told.num_pictures and told.num_missing_labels == told.num_pictures:
        report.add("warning", split, "no picture has a label file; they are looked for at these places", label_files[:3])
    elif told.num_pictures and not told.num_boxes:
        report.add("warning", split, "no picture has a box")
    report.add_all("warning", split, "label files of several pictures each (one name, two suffixes)", shared_files(label_files))
    tiny, twice = [], []
    for place, picture in enumerate(pictures):
        rows = slice(scan.offsets[place], scan.offsets[place + 1])
        h, w = scan.sizes[place].tolist()
        boxes = scan.boxes[rows].astype(np.float64) * np.array([w, h, w, h])
        num_tiny = int(((boxes[:, 2:] - boxes[:, :2]).min(axis=1, initial=np.inf) < TINY).sum())
        tiny += [f"{picture} ({num_tiny})"] if num_tiny else []
        num_twice = _num_nearly_equal(boxes, scan.labels[rows])
        twice += [f"{picture} ({num_twice})"] if num_twice else []
    report.add_all("warning", split, f"pictures with boxes of which a side is below {TINY:g} pixels", tiny)
    report.add_all("warning", split, "pictures with boxes of one class that are nearly the same", twice)


def _num_nearly_equal(boxes: NDArray[np.float64], labels: NDArray[np.int64]) -> int:
    """Return the number of pairs of one class with an IoU of SAME_BOX or more."""
    if len(boxes) < 2:
        return 0
    left, right = np.triu_indices(len(boxes), 1)
    overlap = np.minimum(boxes[left, 2:], boxes[right, 2:]) - np.maximum(boxes[left, :2], boxes[right, :2])
    shared = overlap.clip(min=0).prod(axis=1)
    areas = (boxes[:, 2:] - boxes[:, :2]).prod(axis=1)
    return int(((shared >= SAME_BOX * (areas[left] + areas[right] - shared)) & (labels[left] == labels[right])).sum())


def _count_classes(description: DatasetYaml, splits: dict[str, _Split], report: DataReport) -> None:
    counts = {split: np.bincount(checked.found.scan.labels, minlength=description.nc).tolist() for split, checked in splits.items()}
    report.classes = [(class_id, name, {split: counts[split][class_id] for split in splits}) for class_id, name in description.names.items()]
    if "train" not in splits:
        return
    unseen = [f"{class_id} {name}" for class_id, name, count in report.classes if not count["train"]]
    report.add_all("warning", "train", f"classes (of {description.nc}) without a box", unseen)


def _find_orphans(splits: dict[str, _Split], report: DataReport) -> None:
    """Label files that belong to no picture of any split."""
    with_files = [checked for checked in splits.values() if checked.label_files]
    pictures = [picture for checked in with_files for picture in checked.pictures]
    strays = stray_labels(pictures, [file for checked in with_files for file in checked.label_files])
    report.add_all("warning", "", "label files that belong to no picture", strays)


def _samples(checked: _Split, count: int) -> list[LabelledPicture]:
    """Return up to `count` pictures spread evenly over those with boxes (over all where none has any)."""
    scan = checked.found.scan
    able = [place for place, picture in enumerate(checked.pictures) if picture in checked.facts]
    with_boxes = [place for place in able if scan.offsets[place + 1] > scan.offsets[place]] or able
    samples = []
    for place in evenly(with_boxes, count):
        rows = slice(scan.offsets[place], scan.offsets[place + 1])
        h, w = scan.sizes[place].tolist()
        samples.append(LabelledPicture(Path(checked.pictures[place]), scan.boxes[rows] * np.array([w, h, w, h], np.float32), scan.labels[rows]))
    return samples
