"""The sources of a split -> one sorted list of picture files. The same code serves train, val and test.

- A folder is searched through and through, links followed (a loop of links once); files and folders whose name starts with a dot and
  `__MACOSX` are passed over; a picture is a file with a known suffix, in any case. Pictures of other formats are passed over with a warning.
- A .txt list holds a path a line; blank lines and lines that start with # mean nothing; a relative path is looked for below the list's
  folder, then below the root of the set.
- A glob takes pictures and folders; `**` goes through folders, a loop of links once.
- What several sources name twice is used once, with a warning.
"""

from __future__ import annotations

import glob
import logging
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path

from libreyolo.data.dataset_yaml import DatasetYaml, absolute, candidates, exists
from libreyolo.data.decode import PICTURE_SUFFIXES, UNREAD_SUFFIXES
from libreyolo.errors import UserError, printable

logger = logging.getLogger(__name__)


@dataclass
class Listing:
    """Pictures of a split by absolute path, sorted, each once; `skipped` holds listed ones that can't be used, with the reason; `unread` files
    that are pictures of a format that is not read here."""

    pictures: list[str] = field(default_factory=list)
    skipped: list[tuple[str, str]] = field(default_factory=list)
    unread: list[str] = field(default_factory=list)

    def unread_note(self) -> str:
        """Return what is to be said of `unread`, "" where there are none."""
        if not self.unread:
            return ""
        suffixes = ", ".join(sorted({Path(path).suffix.lower() for path in self.unread}))
        files = f"{len(self.unread)} files are pictures of a format that is not read"
        return f"{files} ({suffixes}; for example {self.unread[0]}): convert them to JPEG or PNG"


def list_pictures(description: DatasetYaml, split: str) -> Listing:
    """Return the pictures of a split; an empty listing where its sources hold none. Raises UserError for a source that is not there."""
    listing = Listing()
    for source in description.sources[split]:
        found = _place(source, split, description)
        if isinstance(found, list):
            within = Listing()
            for match in found:
                _add(match, within, description)
            # `images/**` names a picture and every folder on the way to it: that is one wish, no repeat.
            listing.pictures += dict.fromkeys(within.pictures)
            listing.skipped += within.skipped
            listing.unread += within.unread
        else:
            _add(found, listing, description)
    unique = sorted(set(listing.pictures))
    repeats = len(listing.pictures) - len(unique)
    if repeats:
        logger.warning("%s: %s names %d pictures more than once; each is used once.", description.path, split, repeats)
    found_all = Listing(unique, sorted(set(listing.skipped)), sorted(set(listing.unread)))
    if found_all.unread:
        logger.warning("%s: %s.", split, printable(found_all.unread_note()))
    return found_all


def _place(source: str, split: str, description: DatasetYaml) -> Path | list[Path]:
    """Where a source is: one path, or what a glob matches."""
    places = candidates(source, description)
    for place in places:
        if exists(place):
            return place
    if glob.has_magic(source):
        for base in dict.fromkeys((description.root, description.path.parent)):
            matches = _matches(source, base)
            if matches:
                return matches
    tried = ", ".join(str(place) for place in places)
    download = "; the file has a download: key, but nothing is downloaded here: fetch the set yourself" if description.has_download else ""
    raise UserError(f"{description.path}: {split}: {source!r} was not found (tried {tried}){download}; correct path: or {split}:.")


def _matches(pattern: str, base: Path) -> list[Path]:
    """Pictures and folders (and lists, where the pattern asks for .txt) that a glob matches; `base` is no pattern, whatever its name."""
    whole = Path(pattern.replace("\\", "/")).expanduser()
    # `**/**` finds what `**` finds, but would walk the folders once more for each.
    parts = [part for part, before in zip(whole.parts, ("", *whole.parts), strict=False) if not part == before == "**"]
    start = Path(parts.pop(0)) if whole.is_absolute() else base
    wanted = PICTURE_SUFFIXES | ({".txt"} if pattern.lower().endswith(".txt") else set())
    found = sorted({absolute(match, base) for match in _expand(start, parts, frozenset())})
    return [path for path in found if path.suffix.lower() in wanted or path.is_dir()]


def _expand(place: Path, parts: list[str], above: frozenset[tuple[int, int]]) -> Iterator[Path]:
    """Yield what `place / parts` matches; `above` holds the folders that the last `**` went through, so that a loop of links ends."""
    if not parts:
        if exists(place):
            yield place
        return
    head, rest = parts[0], parts[1:]
    if head == "**":
        identity = _identity(place)
        if identity is None or identity in above:
            return
        yield from _expand(place, rest, frozenset())
        for entry in _entries(place):
            if is_folder(entry):
                yield from _expand(Path(entry.path), parts, above | {identity})
            elif not rest:
                yield Path(entry.path)
    elif glob.has_magic(head):
        for entry in _entries(place, hidden=head.startswith(".")):
            if fnmatchcase(entry.name, head):
                yield from _expand(Path(entry.path), rest, frozenset())
    else:
        yield from _expand(place / head, rest, frozenset())


def _add(place: Path, listing: Listing, description: DatasetYaml) -> None:
    suffix = place.suffix.lower()
    if place.is_dir():
        for found in _walk(place):
            (listing.unread if Path(found).suffix.lower() in UNREAD_SUFFIXES else listing.pictures).append(found)
    elif suffix in PICTURE_SUFFIXES:
        listing.pictures.append(str(place))
    elif suffix == ".txt":
        _read_list(place, listing, description)
    elif suffix == ".json":
        raise UserError(f"{description.path}: {place} is no folder of pictures; name the folder, and the json in annotations: {{train: x.json}}.")
    else:
        raise UserError(f"{description.path}: {place} is neither a folder, a .txt list nor a picture; name one of those.")


def _walk(folder: Path) -> Iterator[str]:
    """Yield the files below `folder` that look like pictures; a link to a folder on the way down to it ends the descent."""
    waiting: list[tuple[Path, frozenset[tuple[int, int]]]] = [(folder, frozenset())]
    while waiting:
        place, above = waiting.pop()
        identity = _identity(place)
        if identity is None or identity in above:
            continue
        for entry in _entries(place):
            if is_folder(entry):
                waiting.append((Path(entry.path), above | {identity}))
            elif os.path.splitext(entry.name)[1].lower() in PICTURE_SUFFIXES | UNREAD_SUFFIXES:  # noqa: PTH122 - a million times
                yield entry.path


def _entries(folder: Path, *, hidden: bool = False) -> list[os.DirEntry[str]]:
    """Return what a folder holds, [] where it is none; hidden entries only where asked for. Raises UserError where it can't be read."""
    try:
        entries = list(os.scandir(folder))
    except PermissionError as error:
        raise UserError(f"{folder} cannot be read ({error.strerror}); correct its permissions.") from error
    except OSError:
        return []
    return [entry for entry in entries if entry.name != "__MACOSX" and (hidden or not entry.name.startswith("."))]


def is_folder(entry: os.DirEntry[str]) -> bool:
    """Whether an entry of a folder is a folder, or a link to one; False for a link to itself."""
    try:
        return entry.is_dir()
    except OSError:
        return False


def _identity(folder: Path) -> tuple[int, int] | None:
    try:
        status = folder.stat()
    except OSError:
        return None
    return status.st_dev, status.st_ino


def _read_list(path: Path, listing: Listing, description: DatasetYaml) -> None:
    try:
        text = path.read_bytes().decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise UserError(f"{path}: the list is not UTF-8 text; save it as UTF-8.") from error
    except OSError as error:
        raise UserError(f"{path} cannot be read ({error.strerror}); correct its permissions.") from error
    # Not splitlines(): a file name may hold what Unicode calls a line separator.
    for line, raw_entry in enumerate(re.split(r"\r\n|\n|\r", text), start=1):
        entry = raw_entry.strip().replace("\\", "/")
        if not entry or entry.startswith("#"):
            continue
        try:
            places = list(dict.fromkeys([absolute(entry, path.parent), absolute(entry, description.root)]))
            found = next((place for place in places if exists(place) and place.is_file()), None)
        except UserError as error:
            listing.skipped.append((entry[:200], f"{path}:{line} names it but {error}"))
            continue
        if found is None:
            tried = ", ".join(str(place) for place in places)
            listing.skipped.append((str(places[0]), f"{path}:{line} names it but there is no such file (tried {tried})"))
        elif found.suffix.lower() not in PICTURE_SUFFIXES:
            listing.skipped.append((str(found), f"{path}:{line} names it but its suffix is not of a known picture format"))
        else:
            listing.pictures.append(str(found))
