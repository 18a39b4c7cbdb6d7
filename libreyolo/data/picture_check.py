"""What a check says of pictures, whatever their task: broken, odd, or in two splits."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from itertools import combinations
from pathlib import Path
from typing import TypeVar

import numpy as np

from libreyolo.data.dataset_yaml import DatasetYaml
from libreyolo.data.picture_facts import PictureFacts, look, near_pairs, same_bytes
from libreyolo.data.scan_work import parallel
from libreyolo.data.sources import Listing, list_pictures
from libreyolo.errors import UserError
from libreyolo.interfaces.data_report import DataReport

T = TypeVar("T")

LONG = 10.0  # an aspect ratio from which most of a square network input is padding
USUAL_MODES = ("RGB", "L", "YCbCr")


def listing_of(description: DatasetYaml, split: str, report: DataReport) -> Listing | None:
    """Return the pictures of a split, None where it has none; note that, and those that are not read. A split without its key is no finding."""
    if not description.sources[split]:
        return None
    try:
        listing = list_pictures(description, split)
    except UserError as error:
        report.refuse(split, error)
        return None
    note_unread(listing, split, report)
    if listing.pictures or listing.skipped:
        return listing
    report.add("error" if split == "train" else "warning", split, f"there is no picture at {', '.join(description.sources[split])}")
    return None


def note_unread(listing: Listing, split: str, report: DataReport) -> None:
    report.add_all("warning", split, "pictures of a format that is not read; convert them to JPEG or PNG", listing.unread)


def note_no_val(description: DatasetYaml, report: DataReport) -> None:
    if not description.sources["val"]:
        report.add("warning", "", "there is no val: key, so nothing would be validated")


def note_skipped(skipped: Sequence[tuple[str, str]], refuse: Callable[[], None], split: str, report: DataReport, what: str = "pictures") -> None:
    """Note what cannot be used, as (path, reason): as the error that `refuse` raises where a training would stop at so many, else as a warning."""
    places = [f"{path}: {reason}" for path, reason in skipped]
    try:
        refuse()
    except UserError as error:
        report.refuse(split, error, places)
    else:
        report.add_all("warning", split, f"{what} that cannot be used and would be skipped", places)


def evenly(items: Sequence[T], count: int) -> list[T]:
    """Return up to `count` of the items, spread evenly from the first to the last, each once; [] for none."""
    places = np.unique(np.linspace(0, len(items) - 1, count).astype(int)) if items else ()
    return [items[place] for place in places]


def look_at_all(pictures: list[str], split: str, report: DataReport) -> dict[str, PictureFacts]:
    """Decode every picture of a split and return the facts of those that can be; note the others and what is odd."""
    facts: dict[str, PictureFacts] = {}
    broken = []
    for picture, seen in zip(pictures, parallel(look, pictures), strict=True):
        if isinstance(seen, str):
            broken.append(f"{picture}: {seen}")
        else:
            facts[picture] = seen
    report.add_all("error", split, "pictures that look whole but cannot be decoded, which would end a training", broken)
    _note_oddities(facts, split, report)
    return facts


def _note_oddities(facts: dict[str, PictureFacts], split: str, report: DataReport) -> None:
    """What is odd about the pictures, none of which keeps them from being used."""
    by_mode: dict[str, list[str]] = defaultdict(list)
    for picture, seen in facts.items():
        if seen.mode not in USUAL_MODES:
            by_mode[seen.mode].append(picture)
    for mode, found in sorted(by_mode.items()):
        report.add_all("note", split, f"pictures of mode {mode}, which become RGB", found)
    turned = [f"{picture} (orientation {seen.orientation})" for picture, seen in facts.items() if seen.orientation != 1]
    report.add_all("note", split, "pictures turned by EXIF, whose boxes must be those of the upright picture", turned)
    several = [f"{picture} ({seen.num_frames})" for picture, seen in facts.items() if seen.num_frames > 1]
    report.add_all("note", split, "pictures with several frames or pages, of which the first is used", several)
    long = [f"{picture} ({seen.hw[1]}x{seen.hw[0]})" for picture, seen in facts.items() if max(seen.hw) > LONG * min(seen.hw)]
    report.add_all("note", split, f"pictures more than {LONG:g} times as long as wide", long)


def find_leaks(splits: dict[str, dict[str, PictureFacts]], report: DataReport) -> None:
    """Note pictures that are in two splits, or twice in one; `splits`: train, val, test -> picture -> facts."""
    split_of = {picture: split for split, facts in reversed(splits.items()) for picture in facts}
    for first, second in combinations(splits, 2):
        shared = sorted(splits[first].keys() & splits[second].keys())
        report.add_all("warning", "", f"pictures of {second} that are in {first} too (the same files)", shared)
    told = set()
    repeats = []
    leaks: dict[tuple[str, str], list[str]] = defaultdict(list)
    for group in same_bytes(list(split_of)):
        members = sorted({split_of[picture] for picture in group}, key=list(splits).index)
        for first, second in combinations(members, 2):
            pair = [next(picture for picture in group if split_of[picture] == split) for split in (first, second)]
            told.add(tuple(pair))
            leaks[first, second].append(" = ".join(pair))
        if len(members) == 1:
            repeats.append(" = ".join(group))
    for (first, second), pairs in leaks.items():
        report.add_all("warning", "", f"pictures of {second} that are in {first} too (the same bytes)", pairs)
    report.add_all("note", "", "pictures that stand several times in one split (the same bytes)", repeats)
    _find_near(splits, told, report)


def _find_near(splits: dict[str, dict[str, PictureFacts]], told: set[tuple[str, ...]], report: DataReport) -> None:
    for first, second in combinations(splits, 2):
        left, right = splits[first], splits[second]
        names = {Path(picture).name: picture for picture in left if not Path(picture).stem.isdigit()}  # numbers say nothing
        alike = [f"{names[Path(picture).name]} and {picture}" for picture in right if names.get(Path(picture).name, picture) != picture]
        report.add_all("note", "", f"pictures of {second} with the name of one in {first}", alike)
        if not left or not right:
            continue
        left_paths, right_paths = list(left), list(right)
        near = near_pairs(np.stack([seen.thumb for seen in left.values()]), np.stack([seen.thumb for seen in right.values()]))
        pairs = [(left_paths[i], right_paths[j]) for i, j in near if left_paths[i] != right_paths[j]]
        new = [" ~ ".join(pair) for pair in pairs if pair not in told]
        report.add_all("warning", "", f"pairs of pictures in {first} and {second} that look the same", new)
