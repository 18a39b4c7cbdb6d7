"""A restoration set as users have it -> pairs of pictures for train, val and test.

The rules are written where they are kept: data.yaml in dataset_yaml.py, folders and lists in sources.py, which target belongs to which input in
pairs.py, picture files in decode.py, what is skipped and what is an error in pair_scan.py.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, field, replace
from pathlib import Path

from libreyolo.data.dataset_yaml import DatasetYaml, absolute, find_yaml, read_yaml
from libreyolo.data.pair_scan import PairReport, scan_pairs
from libreyolo.data.pair_set import PairSet
from libreyolo.data.pairs import PairFolders, find_pairs, log_unused, pair_folders
from libreyolo.data.path_table import PathTable
from libreyolo.data.picture_cache import Cache, kept_pictures
from libreyolo.data.picture_set import PictureSet
from libreyolo.data.sources import Listing, list_pictures
from libreyolo.data.yaml_splits import YamlSplits, splits_read

logger = logging.getLogger(__name__)


@dataclass
class RestoreData(YamlSplits[PairSet]):
    """A restoration set; `val` and `test` are None where the set has no such pairs.

    report: what the scans of the splits that were asked for so far found, by split.
    """

    yaml_path: Path
    description: DatasetYaml
    folders: PairFolders
    cache: Cache
    listings: dict[str, Listing]
    report: dict[str, PairReport] = field(default_factory=dict)

    def scanned(self, listing: Listing, split: str) -> PairSet | None:
        return _load_split(listing, self.description, split, self.folders, self.cache, self.report)


def load_restore(
    data: str | Path, *, cwd: Path | None = None, cache: Cache = False, root: str | Path | None = None, only: str | None = None
) -> RestoreData:
    """Read a restoration set: find it, list its pictures, pair and scan them; log what was found.

    cwd: what a relative `data` is relative to; the working directory of this moment where not given.
    root: a folder that replaces the data.yaml's own `path:`. cache: keep decoded pictures, at their own sizes.
    only: the one split that is read, whatever is wrong with the others; a training's two where not given.
    Raises UserError for anything the user has to correct; nothing of the user's is ever written.
    """
    base = (cwd or Path.cwd()).absolute()
    description = read_yaml(find_yaml(data, base), with_classes=False, only=only)
    if root is not None:
        description = replace(description, root=absolute(root, base))
    splits = splits_read(only)
    folders = pair_folders(description)
    found = RestoreData(description.path, description, folders, cache, {split: list_pictures(description, split) for split in splits})
    found.read(splits)
    return found


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
        pictures.cache = kept_pictures(pictures, cache)
        sides.append(pictures)
    return PairSet(*sides)
