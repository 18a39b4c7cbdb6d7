"""A restoration set looked at from end to end: everything that is wrong with it at once, where a training stops at the first.

Reads every file and writes none; nothing comes from a cache.
"""

from __future__ import annotations

from pathlib import Path

from libreyolo.data.counterparts import shared_files
from libreyolo.data.dataset_yaml import SPLITS, DatasetYaml, find_yaml, read_yaml
from libreyolo.data.pair_scan import read_pairs, stamps_of, unequal_sentence
from libreyolo.data.pairs import PairFolders, find_pairs, pair_folders
from libreyolo.data.picture_check import evenly, find_leaks, listing_of, look_at_all, note_no_val, note_skipped
from libreyolo.data.picture_facts import PictureFacts
from libreyolo.data.scan_work import refuse_unusable
from libreyolo.errors import UserError
from libreyolo.interfaces.data_report import DataReport

NUM_SAMPLES = 16


def check_restore(data: str | Path, *, cwd: Path) -> tuple[DataReport, list[tuple[Path, Path]]]:
    """Return the report, and pairs (input, target) to draw, spread over train and val. What is wrong with the set is in the report, nothing is raised
    for it."""
    report = DataReport(str(data))
    try:
        description = read_yaml(find_yaml(data, cwd.absolute()), with_classes=False)
        folders = pair_folders(description)
    except UserError as error:
        report.refuse("", error)
        return report, []
    report.data = str(description.path)
    inputs: dict[str, dict[str, PictureFacts]] = {}
    samples: list[tuple[Path, Path]] = []
    for split in SPLITS:
        pairs = _check_split(description, folders, split, report)
        if pairs is None:
            continue
        facts = look_at_all([given for given, _ in pairs], split, report)
        whole_targets = look_at_all([target for _, target in pairs], split, report)
        inputs[split] = facts
        able = [pair for pair in pairs if pair[0] in facts and pair[1] in whole_targets]
        if split != "test":
            samples += [(Path(given), Path(target)) for given, target in evenly(able, NUM_SAMPLES // 2)]
    note_no_val(description, report)
    find_leaks(inputs, report)
    return report, samples


def _check_split(description: DatasetYaml, folders: PairFolders, split: str, report: DataReport) -> list[tuple[str, str]] | None:
    """Read one split, note what is found, and return its usable pairs; None where it has none."""
    listing = listing_of(description, split, report)
    if listing is None:
        return None
    try:
        pairs = find_pairs(listing, folders, split, description.path)
    except UserError as error:
        report.refuse(split, error)
        return None
    scan, unequal = read_pairs(pairs, stamps_of(pairs), split)
    report.counts[split] = {"pairs": len(scan.kept), "skipped": len(scan.report.skipped), "16-bit pictures": scan.report.num_deep}
    if unequal:
        report.add("error", split, unequal_sentence(unequal, split).rstrip("."), [str(pair) for pair in unequal])
    skipped, num_usable = scan.report.skipped, len(scan.kept) + len(unequal)
    note_skipped(skipped, lambda: refuse_unusable(skipped, num_usable, split), split, report, what="pairs")
    report.add_all("warning", split, "targets of several inputs each (one name, two suffixes)", shared_files(pairs.targets))
    report.add_all("warning", split, "targets without an input, which would not be used", pairs.alone)
    report.add_all("warning", split, "pictures that are neither inputs nor targets, which would not be used", pairs.outside)
    return [(pairs.inputs[place], pairs.targets[place]) for place in scan.kept]
