"""A classification set as users have it -> pictures and classes for train, val and test; the rules are those of class_folders.py.

The class of a picture is held as a label on all of it: one box that is the whole picture. So pictures, caches, scans and repeat factors are those
of every other set.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from libreyolo.data.class_folders import ClassFolders, find_class_folders, list_split
from libreyolo.data.class_scan import scan_classes
from libreyolo.data.counterparts import composed
from libreyolo.data.image_set import ImageSet
from libreyolo.data.path_table import PathTable
from libreyolo.data.picture_cache import Cache, kept_pictures
from libreyolo.data.scan_result import SplitReport
from libreyolo.data.yaml_splits import splits_read
from libreyolo.errors import UserError

logger = logging.getLogger(__name__)


@dataclass
class ClassifyData:
    """A set: `names` has every class id 0..nc-1; `val` and `test` are None where the set has no such pictures.

    A split is scanned when it is first asked for. Every picture of a split has one label, so `train.label_rows[i]` is the class of picture i.
    report: what the scans of the splits that were asked for so far found, by split.
    """

    found: ClassFolders
    cache: Cache
    train_hw: tuple[int, int] | None
    report: dict[str, SplitReport] = field(default_factory=dict)

    @cached_property
    def train(self) -> ImageSet:
        train = self._load("train", self.train_hw)
        if train is None:
            raise UserError(f"{self.found.place}: there is no training picture.")
        if len(self.names) == 1:
            logger.warning("%s has one class only, %s: there is nothing to tell it from.", self.found.place, self.names[0])
        return train

    @cached_property
    def val(self) -> ImageSet | None:
        val = self._load("val", None)
        if val is None and self.found.folders["train"] != (self.found.place,):
            logger.warning("%s: there are no validation pictures, so nothing is validated.", self.found.place)
        return val

    @property
    def names(self) -> dict[int, str]:
        return self.found.names

    @cached_property
    def test(self) -> ImageSet | None:
        return self._load("test", None)

    def _load(self, split: str, max_hw: tuple[int, int] | None) -> ImageSet | None:
        """Scan a split; None where it has no picture at all. max_hw: what its pictures are asked for, for the cache."""
        listed = list_split(self.found, split)
        if not listed.listing.pictures and not listed.listing.skipped:
            return None
        classes = np.array(listed.classes, np.int64)
        name = f"{self.found.place} {split} classes"
        scan = scan_classes(listed.listing, classes, split=split, names=self.names, cache_name=name)
        report = self.report[split] = scan.report
        report.log(f"{split}: {report.num_pictures} pictures of {len(np.unique(scan.labels))} classes, {len(report.skipped)} skipped")
        images = ImageSet(
            PathTable([listed.listing.pictures[place] for place in scan.kept]),
            sizes=scan.sizes,
            box_rows=scan.boxes,
            label_rows=scan.labels,
            offsets=scan.offsets,
            stamps=scan.stamps,
            nc=len(self.names),
        )
        if split == "train":
            _refuse_lost_classes(images, self.names, report)
        images.cache = kept_pictures(images, self.cache, max_hw)
        return images


def load_classify(
    data: str | Path,
    *,
    cwd: Path,
    root: str | Path | None = None,
    cache: Cache = False,
    train_hw: tuple[int, int] | None = None,
    only: str | None = None,
    known: Mapping[int, str] | None = None,
) -> ClassifyData:
    """Read a classification set: find it, list its pictures, scan them; log what was found.

    root: a folder that replaces a data.yaml's own `path:`. cache: keep decoded pictures; of the training split shrunk to fit `train_hw` (h, w).
    only: the one split that is read, whatever is wrong with the others; a training's two where not given. known: the classes of the model that is
    judged on it. Raises UserError for anything the user has to correct; nothing of the user's is ever written.
    """
    found = ClassifyData(find_class_folders(data, cwd.absolute(), root, only=only, known=known), cache, train_hw)
    for split in splits_read(only):
        getattr(found, split)
    return found


def _refuse_lost_classes(images: ImageSet, names: dict[int, str], report: SplitReport) -> None:
    """Raise where every picture of a training class turned out to be unusable."""
    counts: NDArray[np.int64] = images.labels_histogram()
    lost = [names[k] for k in np.flatnonzero(counts == 0).tolist()]
    if lost:
        path, reason = next((entry for entry in report.skipped if composed(Path(entry[0]).parent.name) == lost[0]), ("", ""))
        raise UserError(f"train: no picture of class {lost[0]} is usable (for example {path}: {reason}); repair them, or remove the class.")
