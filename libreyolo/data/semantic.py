"""A semantic segmentation set as users have it -> pictures and masks for train, val and test.

The rules are written where they are kept: data.yaml in dataset_yaml.py, folders and lists in sources.py, masks in masks.py, polygons in polygons.py,
what is skipped and what stops a run in mask_scan.py.

Masks are taken where the data.yaml says `masks_dir`, and where any picture has one in the folder `masks`. Else the label files are painted, and a
class `background` comes after those of the data.yaml.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

from libreyolo.data.dataset_yaml import DatasetYaml, absolute, find_yaml, read_yaml
from libreyolo.data.detection import Cache
from libreyolo.data.mask_scan import Look, MaskScan, look_at_mask, look_at_polygons, scan_masks
from libreyolo.data.masked_set import MaskedSet, MaskFiles, Masks, PolygonFiles
from libreyolo.data.masks import MaskRules, find_masks, read_rules
from libreyolo.data.path_table import PathTable
from libreyolo.data.picture_cache import disk_pictures, ram_pictures
from libreyolo.data.scan import label_paths
from libreyolo.data.sources import Listing, list_pictures
from libreyolo.errors import UserError

logger = logging.getLogger(__name__)

BACKGROUND = "background"
_KEYS = ("masks_dir", "label_mapping", "ignore_index")


@dataclass(frozen=True)
class _Options:
    """What is done to every split."""

    rules: MaskRules
    from_polygons: bool
    cache: Cache
    max_hw: tuple[int, int] | None


@dataclass
class SemanticData:
    """A semantic set: `names` has every class id 0..K-1; `val` is None where the set has no validation pictures."""

    yaml_path: Path
    names: dict[int, str]
    train: MaskedSet
    val: MaskedSet | None
    description: DatasetYaml
    options: _Options

    @cached_property
    def test(self) -> MaskedSet | None:
        """The test pictures, scanned when first asked for; None where the set has none."""
        return _load_split(list_pictures(self.description, "test"), "test", self.description, self.options)


def load_semantic(
    data: str | Path,
    *,
    cwd: Path | None = None,
    cache: Cache = False,
    max_hw: tuple[int, int] | None = None,
    root: str | Path | None = None,
) -> SemanticData:
    """Read a semantic set: find it, list its pictures, scan them and their masks; log what was found.

    Arguments as in `load_detection`. Raises UserError for anything the user has to correct; nothing of the user's is ever written.
    """
    base = (cwd or Path.cwd()).absolute()
    description = read_yaml(find_yaml(data, base))
    if root is not None:
        description = replace(description, root=absolute(root, base))
    rules = read_rules(description.path, description.content, description.names)
    listings = {split: list_pictures(description, split) for split in ("train", "val")}
    from_polygons = not rules.is_named and not _has_masks(description, rules, [p for listing in listings.values() for p in listing.pictures])
    options = _Options(rules, from_polygons, cache, max_hw)
    names = dict(description.names)
    if from_polygons:
        names[len(names)] = BACKGROUND
        logger.info(
            "%s: there is no masks_dir and no mask below %s: label files are painted, and %s is class %d.",
            description.path,
            rules.folder,
            BACKGROUND,
            len(names) - 1,
        )
    train = _load_split(listings["train"], "train", description, options)
    if train is None:
        raise UserError(f"{description.path}: train: holds no picture; correct it.")
    _warn_of_absent_classes(description.path, train, names)
    val = _load_split(listings["val"], "val", description, options)
    if val is None:
        logger.warning("%s: there are no val: pictures, so nothing is validated.", description.path)
    return SemanticData(description.path, names, train, val, description, options)


def _warn_of_absent_classes(path: Path, train: MaskedSet, names: dict[int, str]) -> None:
    absent = [name for class_id, name in names.items() if not train.class_pixels[class_id]]
    if len(absent) == len(names):
        logger.warning("%s: every pixel of the training masks is ignored; nothing can be learnt.", path)
    elif absent:
        hint = ""
        if len(names) - len(absent) == 1 and train.class_pixels[-1]:
            hint = "; where masks hold 0 and 255 and mean a class by 255, say so: label_mapping: {0: 0, 255: 1}"
        shown = ", ".join(absent[:5]) + (f" and {len(absent) - 5} more" if len(absent) > 5 else "")
        logger.warning("%s: no pixel of the training masks has the class %s%s.", path, shown, hint)


def _has_masks(description: DatasetYaml, rules: MaskRules, pictures: Sequence[str]) -> bool:
    """Whether any of the pictures has a mask. Raises UserError where there is neither a mask nor a label file."""
    found, folders = find_masks(pictures, rules)
    if any(mask is not None for mask in found):
        return True
    if pictures and not any(Path(label).exists() for label in label_paths(pictures)):
        looked = f"{folders.lacking(pictures[0])}; nor {label_paths(pictures[:1])[0]}"
        raise UserError(
            f"{description.path}: no picture has a mask or a label file ({looked}): put masks of class ids there, or name their folder by masks_dir."
        )
    return False


def _load_split(listing: Listing, split: str, description: DatasetYaml, options: _Options) -> MaskedSet | None:
    """Scan a split; None where it names no picture at all."""
    if not listing.pictures and not listing.skipped:
        return None
    scan, targets = (_scan_polygons if options.from_polygons else _scan_files)(listing, split, description, options)
    scan.log()
    paths = PathTable([targets[place] for place in scan.kept])
    masks: Masks = PolygonFiles(paths, len(description.names)) if options.from_polygons else MaskFiles(paths, options.rules)
    pictures = MaskedSet(
        PathTable([listing.pictures[place] for place in scan.kept]),
        sizes=scan.sizes,
        stamps=scan.stamps,
        masks=masks,
        class_pixels=scan.class_pixels,
        class_pictures=scan.class_pictures,
    )
    if options.cache == "ram":
        pictures.cache = ram_pictures(pictures, options.max_hw)
    elif options.cache == "disk":
        pictures.cache = disk_pictures(pictures, options.max_hw)
    return pictures


def _scan_files(listing: Listing, split: str, description: DatasetYaml, options: _Options) -> tuple[MaskScan, Sequence[str]]:
    rules = options.rules
    found, folders = find_masks(listing.pictures, rules)
    missing = [picture for picture, mask in zip(listing.pictures, found, strict=True) if mask is None]
    if missing:
        raise UserError(
            f"{split}: {len(missing)} of {len(found)} pictures have no mask ({folders.lacking(missing[0])}): add the masks, take those pictures "
            "out, or correct masks_dir."
        )
    targets = [mask for mask in found if mask is not None]

    def inspect(place: int, hw: tuple[int, int]) -> Look:
        return look_at_mask(targets[place], hw, rules)

    facts = [list(description.names.items()), *(description.content.get(key) for key in _KEYS)]
    scan = scan_masks(listing, targets, inspect, split=split, facts=facts, num_classes=rules.num_classes, cache_name=f"{description.path} {split}")
    return scan, targets


def _scan_polygons(listing: Listing, split: str, description: DatasetYaml, options: _Options) -> tuple[MaskScan, Sequence[str]]:
    targets = label_paths(listing.pictures)
    background = len(description.names)

    def inspect(place: int, hw: tuple[int, int]) -> Look:
        return look_at_polygons(targets[place], hw, background)

    facts = [list(description.names.items()), "polygons"]
    scan = scan_masks(listing, targets, inspect, split=split, facts=facts, num_classes=background + 1, cache_name=f"{description.path} {split}")
    return scan, targets
