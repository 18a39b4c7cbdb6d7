"""A semantic segmentation set as users have it -> pictures and masks for train, val and test.

The rules are written where they are kept: data.yaml in dataset_yaml.py, folders and lists in sources.py, where masks come from in mask_source.py,
masks in masks.py, polygons in polygons.py, what is skipped and what stops a run in mask_scan.py.
"""

from __future__ import annotations

import contextlib
import logging
from dataclasses import dataclass, replace
from pathlib import Path

from libreyolo.data.counterparts import label_paths, shared_files
from libreyolo.data.dataset_yaml import DatasetYaml, absolute, find_yaml, read_yaml
from libreyolo.data.mask_scan import Look, scan_masks
from libreyolo.data.mask_source import FromPolygons, MaskSource, source_of
from libreyolo.data.masked_set import MaskedSet
from libreyolo.data.path_table import PathTable
from libreyolo.data.picture_cache import Cache, MaxHW, kept_pictures
from libreyolo.data.sources import Listing, list_pictures
from libreyolo.data.strays import stray_note
from libreyolo.data.yaml_splits import TRAINED_ON, YamlSplits, splits_read
from libreyolo.errors import UserError, printable

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class _Options:
    """What is done to every split."""

    source: MaskSource
    cache: Cache
    max_hw: MaxHW


@dataclass
class SemanticData(YamlSplits[MaskedSet]):
    """A semantic set: `names` has every class id 0..K-1; `val` and `test` are None where the set has no such pictures."""

    yaml_path: Path
    names: dict[int, str]
    description: DatasetYaml
    options: _Options
    listings: dict[str, Listing]

    def scanned(self, listing: Listing, split: str) -> MaskedSet | None:
        return _load_split(listing, split, self.description, self.options)

    def look_at_training(self, train: MaskedSet) -> None:
        said = absent_classes(train, self.names)
        if said:
            logger.warning("%s: %s.", self.description.path, said)


def load_semantic(
    data: str | Path,
    *,
    cwd: Path | None = None,
    cache: Cache = False,
    max_hw: MaxHW = None,
    root: str | Path | None = None,
    only: str | None = None,
) -> SemanticData:
    """Read a semantic set: find it, list its pictures, scan them and their masks; log what was found.

    Arguments as in `load_detection`. Raises UserError for anything the user has to correct; nothing of the user's is ever written.
    """
    base = (cwd or Path.cwd()).absolute()
    description = read_yaml(find_yaml(data, base), only=only)
    if root is not None:
        description = replace(description, root=absolute(root, base))
    splits = splits_read(only)
    listings = {split: list_pictures(description, split) for split in splits}
    source = source_of(description, _deciding_pictures(description, listings))
    if isinstance(source, FromPolygons):
        background = source.names[source.background]
        logger.info("%s: it has no masks: label files are painted, and %s is class %d.", description.path, background, source.background)
        _tell_of_labels(description, listings)
    found = SemanticData(description.path, source.names, description, _Options(source, cache, max_hw), dict(listings))
    found.read(splits)
    return found


def _deciding_pictures(description: DatasetYaml, listings: dict[str, Listing]) -> list[str]:
    """Return the pictures that tell whether a set has masks: those that a training would look at, also where one split is read, so that it is read as
    a training reads it. A split that is not read and can't be listed tells nothing."""
    found: list[str] = []
    for split in TRAINED_ON:
        with contextlib.nullcontext() if split in listings else contextlib.suppress(UserError):
            found += (listings.get(split) or list_pictures(description, split)).pictures
    return found or [picture for listing in listings.values() for picture in listing.pictures]


def _tell_of_labels(description: DatasetYaml, listings: dict[str, Listing]) -> None:
    """Tell how many pictures have no label file, and of files that may be theirs."""
    pictures = [picture for listing in listings.values() for picture in listing.pictures]
    num_missing = sum(not Path(label).exists() for label in label_paths(pictures))
    if num_missing:
        logger.info("%s: %d pictures have no label file and are all background.", description.path, num_missing)
    note = stray_note(description, pictures, listings) if num_missing else ""
    if note:
        logger.warning("%s: %s.", description.path, printable(note))


def absent_classes(train: MaskedSet, names: dict[int, str]) -> str:
    """Return what is to be said of classes that no training pixel has, "" where there are none."""
    absent = [name for class_id, name in names.items() if not train.class_pixels[class_id]]
    if not absent:
        return ""
    if len(absent) == len(names):
        return "every pixel of the training masks is ignored; nothing can be learnt"
    listed = ", ".join(absent[:5]) + (f" and {len(absent) - 5} more" if len(absent) > 5 else "")
    hint = ""
    if len(names) - len(absent) == 1 and train.class_pixels[-1]:
        hint = "; where masks hold 0 and 255 and mean a class by 255, say so: label_mapping: {0: 0, 255: 1}"
    return f"no pixel of the training masks has the class {listed}{hint}"


def _load_split(listing: Listing, split: str, description: DatasetYaml, options: _Options) -> MaskedSet | None:
    """Scan a split; None where it names no picture at all."""
    if not listing.pictures and not listing.skipped:
        return None
    source = options.source
    targets, lacking = source.targets(listing.pictures)
    if lacking:
        raise UserError(
            f"{split}: {len(lacking)} of {len(targets)} pictures have no mask ({lacking[0]}): add the masks, take those pictures out, or correct "
            "masks_dir."
        )

    shared = shared_files(targets)
    if shared:
        files = f"{len(shared)} files belong to several pictures each, one name with two suffixes (for example {shared[0]})"
        logger.warning("%s: %s; they are the masks of each.", split, printable(files))

    def look(place: int, hw: tuple[int, int]) -> Look:
        return source.look(targets[place], hw)

    name = f"{description.path} {split}"
    scan = scan_masks(listing, targets, look, split=split, facts=source.facts, num_classes=len(source.names), cache_name=name)
    scan.log()
    pictures = MaskedSet(
        PathTable([listing.pictures[place] for place in scan.kept]),
        sizes=scan.sizes,
        stamps=scan.stamps,
        masks=source.masks([targets[place] for place in scan.kept]),
        class_pixels=scan.class_pixels,
        class_pictures=scan.class_pictures,
    )
    pictures.cache = kept_pictures(pictures, options.cache, options.max_hw if split == "train" else None)
    return pictures
