"""A semantic set looked at from end to end: everything that is wrong with it at once, where a training stops at the first.

Reads every file and writes none; nothing comes from a cache.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from libreyolo.data.counterparts import shared_files
from libreyolo.data.dataset_yaml import SPLITS, DatasetYaml, find_yaml, read_yaml
from libreyolo.data.mask_scan import Look, MaskScan, look_at_masks, refuse_masks
from libreyolo.data.mask_source import FromPolygons, MaskSource, source_of
from libreyolo.data.masked_set import MaskedSet
from libreyolo.data.masks import MASK_SUFFIXES
from libreyolo.data.path_table import PathTable
from libreyolo.data.picture_check import evenly, find_leaks, listing_of, look_at_all, note_no_val
from libreyolo.data.picture_facts import PictureFacts
from libreyolo.data.semantic import absent_classes
from libreyolo.data.sources import Listing
from libreyolo.data.strays import stray_labels
from libreyolo.errors import UserError
from libreyolo.interfaces.data_report import DataReport


@dataclass(frozen=True)
class _Split:
    """A split that could be read. facts: by picture that decodes. targets: every file that is or could be a mask of it."""

    pictures: MaskedSet
    scan: MaskScan
    facts: dict[str, PictureFacts]
    targets: list[str]


def check_semantic(data: str | Path, *, cwd: Path, num_samples: int = 16) -> tuple[DataReport, list[tuple[MaskedSet, int]], dict[int, str]]:
    """Return the report, pictures to draw (a set and a place in it, spread over train and val), and the class names. What is wrong with the set is in
    the report, nothing is raised for it."""
    report = DataReport(str(data))
    try:
        description = read_yaml(find_yaml(data, cwd.absolute()))
        report.data = str(description.path)
        listings = _listings(description, report)
        source = source_of(description, [p for split in ("train", "val") if split in listings for p in listings[split].pictures])
    except UserError as error:
        report.refuse("", error)
        return report, [], {}
    splits = {split: _check_split(listing, split, source, report) for split, listing in listings.items()}
    note_no_val(description, report)
    report.classes = [
        (class_id, name, {split: int(checked.scan.class_pixels[class_id]) for split, checked in splits.items()})
        for class_id, name in source.names.items()
    ]
    if "train" in splits and len(splits["train"].pictures):
        said = absent_classes(splits["train"].pictures, source.names)
        if said:
            report.add("warning", "train", said)
    find_leaks({split: checked.facts for split, checked in splits.items()}, report)
    _find_orphans(splits, source, report)
    samples = [sample for split in ("train", "val") if split in splits for sample in _samples(splits[split], num_samples // 2)]
    return report, samples, source.names


def _listings(description: DatasetYaml, report: DataReport) -> dict[str, Listing]:
    """Return the pictures of each split that has any; note the others."""
    found = {split: listing_of(description, split, report) for split in SPLITS}
    return {split: listing for split, listing in found.items() if listing is not None}


def _check_split(listing: Listing, split: str, source: MaskSource, report: DataReport) -> _Split:
    """Read one split and note what is found."""
    targets, lacking = source.targets(listing.pictures)
    report.add_all("error", split, "pictures without a mask", lacking)
    report.add_all(
        "warning", split, "masks of several pictures each (one name, two suffixes)", shared_files([target for target in targets if target])
    )
    places = [place for place, target in enumerate(targets) if target]
    looked_at = Listing([listing.pictures[place] for place in places], listing.skipped)
    behind = [targets[place] for place in places]

    def look(place: int, hw: tuple[int, int]) -> Look:
        return source.look(behind[place], hw)

    scan, wrong = look_at_masks(looked_at, behind, look, split=split, num_classes=len(source.names))
    _note_scan(scan, wrong, len(lacking), report)
    pictures = [looked_at.pictures[place] for place in scan.kept]
    masks = source.masks([behind[place] for place in scan.kept])
    held = MaskedSet(
        PathTable(pictures),
        sizes=scan.sizes,
        stamps=scan.stamps,
        masks=masks,
        class_pixels=scan.class_pixels,
        class_pictures=scan.class_pictures,
    )
    return _Split(held, scan, look_at_all(pictures, split, report), behind)


def _note_scan(scan: MaskScan, wrong: list[str], num_lacking: int, report: DataReport) -> None:
    """Counts, and what a training would say of the split."""
    told, split = scan.report, scan.report.split
    report.counts[split] = {
        "pictures": len(scan.kept),
        "labelled pixels": int(scan.class_pixels[:-1].sum()),
        "ignored pixels": int(scan.class_pixels[-1]),
        "no mask": num_lacking,
        "wrong masks": len(wrong),
        "skipped": len(told.skipped),
        "rows dropped": len(told.row_warnings),
    }
    skipped = [f"{path}: {reason}" for path, reason in told.skipped]
    try:
        refuse_masks(scan, [] if len(scan.kept) else wrong)
    except UserError as error:
        if skipped:
            report.refuse(split, error, skipped)
    else:
        report.add_all("warning", split, "pictures that cannot be used and would be skipped", skipped)
    report.add_all("error", split, "masks that are wrong", wrong)
    report.add_all("warning", split, "label rows that would be dropped, their pictures stay", told.row_warnings)
    left_out = [f"{value} ({pixels} px)" for value, pixels in sorted(scan.unmapped.items())]
    report.add_all("warning", split, "values that label_mapping leaves out, whose pixels are ignored", left_out)


def _find_orphans(splits: dict[str, _Split], source: MaskSource, report: DataReport) -> None:
    """Masks, or the label files that are painted, that belong to no picture of any split."""
    if isinstance(source, FromPolygons):
        pictures = [str(checked.pictures.path(i)) for checked in splits.values() for i in range(len(checked.pictures))]
        strays = stray_labels(pictures, [target for checked in splits.values() for target in checked.targets])
        report.add_all("warning", "", "label files that belong to no picture", strays)
        return
    used = {target for checked in splits.values() for target in checked.targets}
    orphans = []
    for folder in sorted({Path(target).parent for target in used}):
        masks = (path for path in folder.iterdir() if path.suffix.lower() in MASK_SUFFIXES and not path.name.startswith("."))
        orphans += sorted(str(path) for path in masks if str(path) not in used)
    report.add_all("warning", "", "masks that belong to no picture", orphans)


def _samples(checked: _Split, count: int) -> list[tuple[MaskedSet, int]]:
    """Return up to `count` pictures spread evenly over those that decode."""
    able = [i for i in range(len(checked.pictures)) if str(checked.pictures.path(i)) in checked.facts]
    return [(checked.pictures, place) for place in evenly(able, count)]
