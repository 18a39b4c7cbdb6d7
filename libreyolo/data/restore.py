"""A restoration set as users have it -> pairs of pictures for train, val and test.

The rules are written where they are kept: data.yaml in dataset_yaml.py, folders and lists in sources.py, which target belongs to which input in
pairs.py, picture files in decode.py, what is skipped and what is an error in pair_scan.py.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Literal

from libreyolo.data.dataset_yaml import DatasetYaml, absolute, find_yaml, read_yaml
from libreyolo.data.pair_scan import PairReport, scan_pairs
from libreyolo.data.pair_set import PairSet
from libreyolo.data.pairs import PairFolders, find_pairs, log_unused, pair_folders
from libreyolo.data.path_table import PathTable
from libreyolo.data.picture_cache import disk_pictures, ram_pictures
from libreyolo.data.picture_set import PictureSet
from libreyolo.data.sources import Listing, list_pictures
from libreyolo.errors import UserError

logger = logging.getLogger(__name__)

Cache = Literal[False, "ram", "disk"]


@dataclass
class RestoreData:
    """A restoration set; `val` is None where the set has no validation pairs.

    report: what the scans of the splits loaded so far found, by split ("train", "val", and "test" once `test` was asked for).
    """

    yaml_path: Path
    train: PairSet
    val: PairSet | None
    report: dict[str, PairReport]
    description: DatasetYaml
    folders: PairFolders
    cache: Cache

    @cached_property
    def test(self) -> PairSet | None:
        """The test pairs, scanned when first asked for; None where the set has none."""
        return _load_split(list_pictures(self.description, "test"), self.description, "test", self.folders, self.cache, self.report)


def load_restore(data: str | Path, *, cwd: Path | None = None, cache: Cache = False, root: str | Path | None = None) -> RestoreData:
    """Read a restoration set: find it, list its pictures, pair and scan them; log what was found.

    cwd: what a relative `data` is relative to; the working directory of this moment where not given.
    root: a folder that replaces the data.yaml's own `path:`. cache: keep decoded pictures, at their own sizes.
    Raises UserError for anything the user has to correct; nothing of the user's is ever written.
    """
    base = (cwd or Path.cwd()).absolute()
    description = read_yaml(find_yaml(data, base), with_classes=False)
    if root is not None:
        description = replace(description, root=absolute(root, base))
    folders = pair_folders(description)
    report: dict[str, PairReport] = {}
    listings = {split: list_pictures(description, split) for split in ("train", "val")}
    train = _load_split(listings["train"], description, "train", folders, cache, report)
    if train is None:
        unread = listings["train"].unread_note()
        raise UserError(f"{description.path}: train: holds no picture{' (' + unread + ')' if unread else ''}; correct it.")
    val = _load_split(listings["val"], description, "val", folders, cache, report)
    if val is None:
        logger.warning("%s: there are no val: pictures, so nothing is validated.", description.path)
    return RestoreData(description.path, train, val, report, description, folders, cache)


def _load_split(
    listing: Listing, description: DatasetYaml, split: str, folders: PairFolders, cache: Cache, report: dict[str, PairReport]
) -> PairSet | None:
    """Scan a split and note its report; None where it names no picture at all."""
    if not listing.pictures and not listing.skipped:
        return None
    pairs = find_pairs(listing, folders, split, description.path)
    log_unused(pairs, folders, split)
    scan = scan_pairs(pairs, split=split, cache_name=f"restore {description.path} {split}")
    report[split] = scan.report
    scan.report.log()
    sides = []
    for paths, stamps in ((pairs.inputs, scan.stamps[:, :2]), (pairs.targets, scan.stamps[:, 2:])):
        pictures = PictureSet(PathTable([paths[place] for place in scan.kept]), sizes=scan.sizes, stamps=stamps.copy())
        if cache == "ram":
            pictures.cache = ram_pictures(pictures, None)
        elif cache == "disk":
            pictures.cache = disk_pictures(pictures, None)
        sides.append(pictures)
    return PairSet(*sides)
