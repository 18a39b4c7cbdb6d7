"""The sources of a split -> one sorted list of picture files. The same code serves train, val and test.

- A folder is searched through and through, links followed (a loop of links once); files and folders whose name starts with a dot and
  `__MACOSX` are passed over; a picture is a file with a known suffix, in any case.
- A .txt list holds a path a line; blank lines and lines that start with # mean nothing; a relative path is looked for below the list's
  folder, then below the root of the set.
- A glob takes pictures and folders; `**` goes through folders.
- What several sources name twice is used once, with a warning.
"""

from __future__ import annotations

import glob
import logging
import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from libreyolo.data.dataset_yaml import DatasetYaml, absolute, candidates
from libreyolo.data.decode import PICTURE_SUFFIXES
from libreyolo.errors import UserError

logger = logging.getLogger(__name__)


@dataclass
class Listing:
    """Pictures of a split by absolute path, sorted, each once; `skipped` holds listed ones that can't be used, with the reason."""

    pictures: list[str] = field(default_factory=list)
    skipped: list[tuple[str, str]] = field(default_factory=list)


def list_pictures(description: DatasetYaml, split: str) -> Listing:
    """Return the pictures of a split; an empty listing where its sources hold none. Raises UserError for a source that is not there."""
    listing = Listing()
    for source in description.sources[split]:
        found = _place(source, split, description)
        if isinstance(found, list):
            for match in found:
                _add(match, listing, description)
        else:
            _add(found, listing, description)
    unique = sorted(set(listing.pictures))
    repeats = len(listing.pictures) - len(unique)
    if repeats:
        logger.warning("%s: %s names %d pictures more than once; each is used once.", description.path, split, repeats)
    return Listing(unique, sorted(set(listing.skipped)))


def _place(source: str, split: str, description: DatasetYaml) -> Path | list[Path]:
    """Where a source is: one path, or what a glob matches."""
    places = candidates(source, description)
    for place in places:
        if place.exists():
            return place
    if glob.has_magic(source):
        for base in (description.root, description.path.parent):
            matches = _matches(source, base)
            if matches:
                return matches
    tried = ", ".join(str(place) for place in places)
    download = "; the file has a download: key, but nothing is downloaded here: fetch the set yourself" if description.has_download else ""
    raise UserError(f"{description.path}: {split}: {source!r} was not found (tried {tried}){download}; correct path: or {split}:.")


def _matches(pattern: str, base: Path) -> list[Path]:
    """Pictures and folders (and lists, where the pattern asks for .txt) that a glob matches; `base` is no pattern, whatever its name."""
    whole = str(Path(glob.escape(str(base))) / Path(pattern.replace("\\", "/")).expanduser())
    wanted = PICTURE_SUFFIXES | ({".txt"} if pattern.lower().endswith(".txt") else set())
    found = (absolute(match, base) for match in sorted(glob.glob(whole, recursive=True)))  # noqa: PTH207 - Path.glob takes no absolute pattern
    return [path for path in found if "__MACOSX" not in path.parts and (path.is_dir() or path.suffix.lower() in wanted)]


def _add(place: Path, listing: Listing, description: DatasetYaml) -> None:
    suffix = place.suffix.lower()
    if place.is_dir():
        listing.pictures.extend(_walk(place, set()))
    elif suffix in PICTURE_SUFFIXES:
        listing.pictures.append(str(place))
    elif suffix == ".txt":
        _read_list(place, listing, description)
    else:
        raise UserError(f"{description.path}: {place} is neither a folder, a .txt list nor a picture; name one of those.")


def _walk(folder: Path, visited: set[tuple[int, int]]) -> Iterator[str]:
    """Yield the pictures below `folder`; `visited` holds the folders on the way down, so that a link to one of them ends the descent."""
    status = folder.stat()
    identity = status.st_dev, status.st_ino
    if identity in visited:
        return
    try:
        entries = list(os.scandir(folder))
    except PermissionError as error:
        raise UserError(f"{folder} cannot be read ({error.strerror}); correct its permissions.") from error
    for entry in entries:
        if entry.name.startswith(".") or entry.name == "__MACOSX":
            continue
        if entry.is_dir():
            yield from _walk(Path(entry.path), visited | {identity})
        elif Path(entry.name).suffix.lower() in PICTURE_SUFFIXES:
            yield entry.path


def _read_list(path: Path, listing: Listing, description: DatasetYaml) -> None:
    try:
        text = path.read_bytes().decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise UserError(f"{path}: the list is not UTF-8 text; save it as UTF-8.") from error
    for line, raw_entry in enumerate(text.splitlines(), start=1):
        entry = raw_entry.strip().replace("\\", "/")
        if not entry or entry.startswith("#"):
            continue
        places = list(dict.fromkeys([absolute(entry, path.parent), absolute(entry, description.root)]))
        found = next((place for place in places if place.is_file()), None)
        if found is None:
            tried = ", ".join(str(place) for place in places)
            listing.skipped.append((str(places[0]), f"{path}:{line} names it but there is no such file (tried {tried})"))
        elif found.suffix.lower() not in PICTURE_SUFFIXES:
            listing.skipped.append((str(found), f"{path}:{line} names it but its suffix is not of a known picture format"))
        else:
            listing.pictures.append(str(found))
