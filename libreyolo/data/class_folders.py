"""Folders of pictures, one a class -> which pictures each split has, and of which class. No picture is opened here.

Rules:

- `data` is a folder with `train/CLASS/...` and, where there are any, `val/CLASS/...` and `test/CLASS/...`; or a folder of class folders without
  splits, all of which is trained on; or a data.yaml (by itself or in a folder) whose `train:`, `val:` and `test:` name such folders of class folders,
  or lists of them; or the built-in name "shapes-classify". A folder called like a split, beside a training folder, means the set they are in.
- `training` is read as `train`, `valid`, `validation` and `dev` as `val`, `testing` as `test`, all in any case; of two folders for one split the
  first of this order is used, with a warning.
- The classes are the training split's class folders in the order of their names, as Python sorts text. `names` of a data.yaml, where given, must be
  those names, and then gives the order. Names that look the same are the same (counterparts.py); one with control characters is refused, as in a
  data.yaml.
- Every picture lies directly in its class folder: pictures in a folder below one are refused. Pictures beside the class folders are skipped, by name.
- Files and folders whose name starts with a dot, and `__MACOSX`, are passed over; pictures of formats that are not read, with a warning. Links are
  followed.
- Where one split only is read, to judge a model, and the training split is not there, the classes are the `names` of the data.yaml, else the model's.
- A training class without a picture is an error; a class that only val or test has is one, too. One that val lacks is warned about.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from libreyolo.data.class_shapes import built_in_class_shapes
from libreyolo.data.counterparts import composed
from libreyolo.data.dataset_yaml import absolute, candidates, find_yaml, read_yaml
from libreyolo.data.decode import PICTURE_SUFFIXES, UNREAD_SUFFIXES
from libreyolo.data.sources import Listing, is_folder
from libreyolo.errors import UserError, nearest, printable

logger = logging.getLogger(__name__)

BUILT_IN: Mapping[str, Callable[[], Path]] = {"shapes-classify": built_in_class_shapes}
SPLIT_NAMES = {"train": ("train", "training"), "val": ("val", "valid", "validation", "dev"), "test": ("test", "testing")}
_YAML_NAMES = ("data.yaml", "data.yml", "dataset.yaml", "dataset.yml")


@dataclass(frozen=True)
class ClassFolders:
    """A set, found and checked. place: the folder or data.yaml. names: class id to folder name. folders: split -> its folders; () for none. origin:
    what the names are of, in words."""

    place: Path
    names: dict[int, str]
    folders: dict[str, tuple[Path, ...]]
    origin: str


@dataclass
class ClassListing:
    """A split's pictures by absolute path, sorted, each once, and their class ids; `listing.skipped` holds those that no class folder has."""

    listing: Listing
    classes: list[int] = field(default_factory=list)


def find_class_folders(
    data: str | Path, cwd: Path, root: str | Path | None = None, *, only: str | None = None, known: Mapping[int, str] | None = None
) -> ClassFolders:
    """Return the set that `data` means; `root` replaces the `path:` of a data.yaml. Raises UserError for anything that breaks the rules.

    only: the one split that is asked for; the training split is not needed then. known: the classes of the model that is judged on it.
    """
    place = _find(data, cwd)
    wanted: tuple[str, ...] = ()
    if place.is_dir():
        if root is not None:
            raise UserError(f"data={data} is a folder and needs no data_dir={root}, which replaces the path: of a data.yaml; leave one of them out.")
        folders = _split_folders(place, only)
    else:
        folders, wanted = _yaml_folders(place, None if root is None else absolute(root, cwd), only)
    try:
        return ClassFolders(place, _names(place, folders["train"], wanted), folders, f"the training split of {place}")
    except UserError:
        if only in (None, "train") or not (wanted or known):
            raise
    if wanted:
        return ClassFolders(place, dict(enumerate(wanted)), folders, f"{place}, by its names,")
    return ClassFolders(place, dict(known or {}), folders, "the model")


def list_split(found: ClassFolders, split: str) -> ClassListing:
    """Return the pictures of a split; empty where there is none. Raises UserError for a class that the training split has not."""
    ids = {name: index for index, name in found.names.items()}
    pictures: dict[str, int] = {}
    skipped: list[tuple[str, str]] = []
    unread: list[str] = []
    num_listed = 0
    for folder in found.folders[split]:
        skipped += [(path, "it lies beside the class folders, in none of them") for path in _pictures_in(folder)]
        for class_folder in _class_folders(folder):
            name = composed(class_folder.name)
            if name not in ids:
                hint = nearest(name, ids)
                raise UserError(f"{class_folder} is a class that {found.origin} does not have.{hint} Rename or remove it.")
            own = _flat_pictures(class_folder)
            unread += _files_of(class_folder, UNREAD_SUFFIXES)
            num_listed += len(own)
            pictures |= dict.fromkeys(own, ids[name])
    if num_listed > len(pictures):
        logger.warning("%s: %s names %d pictures more than once; each is used once.", found.place, split, num_listed - len(pictures))
    ordered = sorted(pictures)
    classes = [pictures[path] for path in ordered]
    listing = Listing(ordered, sorted(set(skipped)), sorted(set(unread)))
    if listing.unread:
        logger.warning("%s: %s.", split, printable(listing.unread_note()))
    _check_classes(found, split, set(classes), listing.unread_note())
    return ClassListing(listing, classes)


def _find(data: str | Path, cwd: Path) -> Path:
    """Return the absolute folder or data.yaml that `data` means."""
    if not isinstance(data, (str, Path)) or not str(data).strip():
        raise UserError(f"data={data!r} is no data set: give a folder with train/CLASS and val/CLASS, a data.yaml, or the name 'shapes-classify'.")
    place = absolute(data, cwd)
    if place.is_dir():
        inside = next((place / name for name in _YAML_NAMES if (place / name).is_file()), None)
        return inside or _whole_set(place)
    if not place.exists() and str(data) in BUILT_IN:
        return BUILT_IN[str(data)]()
    if place.is_file() and place.suffix.lower() not in (".yaml", ".yml"):
        raise UserError(f"data={data}: {place} is a file; give the folder with train/CLASS and val/CLASS, or a data.yaml that names such folders.")
    if not place.exists() and not any(place.with_name(place.name + suffix).is_file() for suffix in (".yaml", ".yml")):
        hint = nearest(str(data), BUILT_IN)
        raise UserError(f"data={str(data)!r} was not found (tried {place}); give a folder with train/CLASS and val/CLASS, or a data.yaml.{hint}")
    return find_yaml(data, cwd)


def _whole_set(place: Path) -> Path:
    """Return the set's folder where `place` is one of its splits."""
    is_split = any(place.name.lower() in names for names in SPLIT_NAMES.values())
    if is_split and _split_places(place.parent)["train"] and not _split_places(place)["train"]:
        logger.info("data=%s is one split of %s, which is used.", place, place.parent)
        return place.parent
    return place


def _split_places(root: Path) -> dict[str, list[Path]]:
    """Return every folder below `root` that is called like a split, by split, the preferred name first."""
    try:
        below = {entry.name.lower(): entry for entry in sorted(root.iterdir()) if entry.is_dir()}
    except OSError as error:
        raise UserError(f"{root} cannot be read ({error.strerror}); correct its permissions.") from error
    return {split: [below[name] for name in names if name in below] for split, names in SPLIT_NAMES.items()}


def _split_folders(root: Path, only: str | None) -> dict[str, tuple[Path, ...]]:
    places = _split_places(root)
    alone = places["val"] + places["test"] if not places["train"] else []
    if alone and only in (None, "train"):
        other = alone[0]
        raise UserError(f"{root} has {other.name}/ but no train/ folder with the training pictures; add train/CLASS/...")
    if not places["train"] and not alone:
        if any(_has_pictures(folder) for folder in _class_folders(root)):
            logger.warning("%s has class folders but no train/ and val/: all of it is trained on and nothing is validated.", root)
            return {"train": (root,), "val": (), "test": ()}
        raise UserError(
            f"{root} holds neither train/CLASS/... nor class folders with pictures: put those of each class into a folder below train/ and val/."
        )
    for split, folders in places.items():
        if len(folders) > 1:
            logger.warning("%s has %s for %s: only %s is used.", root, " and ".join(f.name for f in folders), split, folders[0].name)
    return {split: tuple(folders[:1]) for split, folders in places.items()}


def _yaml_folders(path: Path, root: Path | None, only: str | None) -> tuple[dict[str, tuple[Path, ...]], tuple[str, ...]]:
    """Return the folders that a data.yaml names, by split, and its names in their order (() where it has none)."""
    description = read_yaml(path, with_classes=False, only=only)
    if description.content.get("names") is not None:
        description = read_yaml(path, only=only)
    if root is not None:
        description = replace(description, root=root)
    folders: dict[str, tuple[Path, ...]] = {}
    for split, sources in description.sources.items():
        found = []
        for source in sources:
            places = candidates(source, description)
            folder = next((place for place in places if place.is_dir()), None)
            if folder is None and only not in (None, split):
                continue
            if folder is None:
                tried = ", ".join(str(place) for place in places)
                raise UserError(f"{path}: {split}: {source!r} is no folder of class folders (tried {tried}); name one, or a list of those.")
            found.append(folder)
        folders[split] = tuple(found)
    return folders, tuple(composed(description.names[i]) for i in sorted(description.names))


def _names(place: Path, folders: tuple[Path, ...], wanted: tuple[str, ...]) -> dict[int, str]:
    """Return the classes of the training folders by id."""
    class_folders = [class_folder for folder in folders for class_folder in _class_folders(folder)]
    for odd in (class_folder for class_folder in class_folders if printable(class_folder.name) != class_folder.name):
        raise UserError(f"{odd}: the name of a class must not hold control characters; rename the folder.")
    known = sorted({composed(class_folder.name) for class_folder in class_folders})
    if not known:
        shown = " and ".join(str(folder) for folder in folders)
        loose = next((path for folder in folders for path in _pictures_in(folder)), None)
        what = f"its pictures ({loose}) lie in no class folder" if loose else "there is no class folder in it"
        raise UserError(f"{shown}: {what}; put the pictures of each class into a folder of its name.")
    if not wanted:
        return dict(enumerate(known))
    if sorted(wanted) != known:
        missing, extra = sorted(set(wanted) - set(known)), sorted(set(known) - set(wanted))
        what = (
            f"{missing[0]!r} has no folder in the training split" if missing else f"the class folder {extra[0]!r} is not among them" if extra else ""
        )
        raise UserError(
            f"{place}: names must be the names of the class folders: {what or 'a name stands there twice'}; correct it, or leave names out."
        )
    return dict(enumerate(wanted))


def _check_classes(found: ClassFolders, split: str, seen: set[int], unread: str) -> None:
    """Raise for a training class without pictures; warn about classes that another split lacks."""
    lacking = [name for index, name in found.names.items() if index not in seen]
    if not lacking or not found.folders[split]:
        return
    shown = ", ".join(lacking[:5]) + (f" and {len(lacking) - 5} more" if len(lacking) > 5 else "")
    if split == "train":
        which = " or ".join(str(folder / lacking[0]) for folder in found.folders[split])
        note = f"; {unread}" if unread else ""
        raise UserError(f"{found.place}: there is no training picture of class {shown} (looked in {which}){note}; add some, or remove the folder.")
    logger.warning("%s: the %s split has no picture of class %s.", found.place, split, shown)


def _entries(folder: Path) -> list[os.DirEntry[str]]:
    """Return what a folder holds and is to be seen, by name."""
    try:
        with os.scandir(folder) as found:
            entries = sorted(found, key=lambda entry: entry.name)
    except OSError as error:
        raise UserError(f"{folder} cannot be read ({error.strerror}); correct its permissions.") from error
    return [entry for entry in entries if not entry.name.startswith(".") and entry.name != "__MACOSX"]


def _class_folders(folder: Path) -> list[Path]:
    return [Path(entry.path) for entry in _entries(folder) if is_folder(entry)]


def _pictures_in(folder: Path) -> list[str]:
    """Return the pictures directly in a folder, by name."""
    return _files_of(folder, PICTURE_SUFFIXES)


def _files_of(folder: Path, suffixes: frozenset[str]) -> list[str]:
    entries = _entries(folder)
    return [entry.path for entry in entries if os.path.splitext(entry.name)[1].lower() in suffixes and not is_folder(entry)]  # noqa: PTH122


def _flat_pictures(class_folder: Path) -> list[str]:
    """Return a class's pictures. Raises UserError where some lie deeper."""
    for below in _class_folders(class_folder):
        if _has_pictures(below):
            raise UserError(f"{below} is a folder of pictures inside the class folder {class_folder.name}: move its pictures, or it, one level up.")
    return _pictures_in(class_folder)


def _has_pictures(folder: Path) -> bool:
    return any(True for _ in _walk(folder, frozenset()))


def _walk(folder: Path, visited: frozenset[tuple[int, int]]) -> Iterator[str]:
    """Yield the pictures in and below a folder; a link to a folder on the way down ends the descent."""
    status = folder.stat()
    identity = status.st_dev, status.st_ino
    if identity in visited:
        return
    yield from _pictures_in(folder)
    for below in _class_folders(folder):
        yield from _walk(below, visited | {identity})
