"""A YOLO-format detection set as users have it -> pictures and boxes for train, val and test.

The rules are written where they are kept: data.yaml in dataset_yaml.py, folders and lists in sources.py, label rows in labels.py, COCO json in
coco_labels.py, picture files in decode.py, where labels are looked for in counterparts.py, what is skipped in scan.py.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from libreyolo.data.counterparts import label_paths
from libreyolo.data.dataset_yaml import DatasetYaml, absolute, find_yaml, read_yaml
from libreyolo.data.image_set import ImageSet
from libreyolo.data.path_table import PathTable
from libreyolo.data.picture_cache import Cache, MaxHW, kept_pictures
from libreyolo.data.scan import scan_pictures
from libreyolo.data.scan_result import SplitReport
from libreyolo.data.sources import Listing, list_pictures
from libreyolo.data.strays import stray_note
from libreyolo.data.yaml_splits import YamlSplits, splits_read
from libreyolo.errors import UserError, printable

logger = logging.getLogger(__name__)

SINGLE_NAME = "item"


@dataclass(frozen=True)
class _Options:
    """What is done to every split after its scan."""

    single_cls: bool
    classes: tuple[int, ...] | None
    cache: Cache
    max_hw: MaxHW


@dataclass
class DetectionData(YamlSplits[ImageSet]):
    """A detection set: `names` has every class id 0..nc-1; `val` and `test` are None where the set has no such pictures.

    report: what the scans of the splits that were asked for so far found, by split.
    """

    yaml_path: Path
    names: dict[int, str]
    description: DatasetYaml
    options: _Options
    listings: dict[str, Listing]
    report: dict[str, SplitReport] = field(default_factory=dict)

    @property
    def nc(self) -> int:
        return len(self.names)

    def scanned(self, listing: Listing, split: str) -> ImageSet | None:
        return _load_split(listing, self.description, split, self.options, self.report)

    def look_at_training(self, train: ImageSet) -> None:
        if len(train.label_rows) == 0:
            looked = f" (labels were looked for at {label_paths([str(train.path(0))])[0]} and so on)"
            places = printable(looked) if self.report["train"].num_missing_labels else ""
            path = self.description.path
            logger.warning("%s: no training picture has a box%s; nothing can be learnt from background alone.", path, places)


def load_detection(
    data: str | Path,
    *,
    cwd: Path | None = None,
    single_cls: bool = False,
    classes: Sequence[int] | None = None,
    cache: Cache = False,
    max_hw: MaxHW = None,
    root: str | Path | None = None,
    only: str | None = None,
) -> DetectionData:
    """Read a detection set: find it, list its pictures, scan them and their labels; log what was found.

    cwd: what a relative `data` is relative to; the working directory of this moment where not given.
    single_cls: every box becomes class 0, "item". classes: keep only the boxes of these ids, not renumbered.
    root: a folder that replaces the data.yaml's own `path:`.
    only: the one split that is read, whatever is wrong with the others; a training's two where not given.
    cache: keep decoded pictures: those of the training split shrunk to fit `max_hw` (as `kept_pictures` takes it), which serves those who ask for
    the same; other splits are judged as they are, and kept so.
    Raises UserError for anything the user has to correct; nothing of the user's is ever written.
    """
    if cache not in (False, "auto", "ram", "disk"):
        raise UserError(f"cache={cache!r} is not known; use False, 'auto', 'ram' or 'disk'.")
    base = (cwd or Path.cwd()).absolute()
    description = read_yaml(find_yaml(data, base), only=only)
    if root is not None:
        description = replace(description, root=absolute(root, base))
    options = _Options(single_cls, _checked_classes(classes, description), cache, max_hw)
    splits = splits_read(only)
    listings = {split: list_pictures(description, split) for split in splits}
    names = {0: SINGLE_NAME} if single_cls else description.names
    found = DetectionData(description.path, names, description, options, dict(listings))
    found.read(splits)
    _warn_of_strays(description, listings, found.report)
    return found


def _load_split(listing: Listing, description: DatasetYaml, split: str, options: _Options, report: dict[str, SplitReport]) -> ImageSet | None:
    """Scan a split and note its report; None where it names no picture at all."""
    if not listing.pictures and not listing.skipped:
        return None
    scan = scan_pictures(listing, split=split, description=description)
    report[split] = scan.report
    scan.report.log()
    images = ImageSet(
        PathTable([listing.pictures[place] for place in scan.kept]),
        sizes=scan.sizes,
        box_rows=scan.boxes,
        label_rows=scan.labels,
        offsets=scan.offsets,
        stamps=scan.stamps,
        nc=description.nc,
    )
    if options.classes is not None:
        images = images.only_classes(options.classes)
    if options.single_cls:
        images = images.as_single_class()
    images.cache = kept_pictures(images, options.cache, options.max_hw if split == "train" else None)
    return images


def _warn_of_strays(description: DatasetYaml, listings: dict[str, Listing], report: dict[str, SplitReport]) -> None:
    """Tell of pictures without a label file beside label files without a picture: most likely they belong together."""
    if not any(told.num_missing_labels for told in report.values()):
        return
    pictures = [picture for split, listing in listings.items() if split not in description.annotations for picture in listing.pictures]
    note = stray_note(description, pictures, listings)
    if note:
        logger.warning("%s: %s.", description.path, printable(note))


def _checked_classes(classes: Sequence[int] | None, description: DatasetYaml) -> tuple[int, ...] | None:
    if classes is None:
        return None
    wrong = [class_id for class_id in classes if class_id not in description.names]
    if wrong or not classes:
        raise UserError(f"classes={list(classes)} must hold ids of 0..{description.nc - 1}, the classes of {description.path}.")
    return tuple(classes)
