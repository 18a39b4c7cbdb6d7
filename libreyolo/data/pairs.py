"""Which picture belongs to which: inputs and the targets they should be restored to.

Rules:

- A picture is an input when the last folder of its path that is called as `input_dir` (default inputs) or `target_dir` (default targets) is the
  former. So `train: train` with train/inputs and train/targets, `train: inputs/train` beside targets/train, and a folder for each scene with both
  in it are all read; `lq` and `gt` are other words for the two keys. Either may be several folders deep (`low/x1`).
- The target of .../inputs/.../NAME.png is .../targets/.../NAME.png, with any picture suffix; NAME may go on there as `target_stem_suffix` says (one
  or a list, tried in order; "" where the names are equal). Two targets for one input are told apart by the input's own suffix, else neither is taken.
- An input without target is skipped and named. Pictures that are neither are warned about.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from libreyolo.data.counterparts import composed, shared_files
from libreyolo.data.dataset_yaml import DatasetYaml, is_absolute
from libreyolo.data.decode import PICTURE_SUFFIXES
from libreyolo.data.sources import Listing
from libreyolo.errors import UserError, printable

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class PairFolders:
    """What a data.yaml says of its pairs: the folders' names, as path parts, and what a target's stem ends with (tried in order)."""

    inputs: tuple[str, ...]
    targets: tuple[str, ...]
    stem_suffixes: tuple[str, ...]


@dataclass
class Pairs:
    """Inputs and their targets by absolute path, in the inputs' order; `skipped` holds inputs that can't be used, with the reason.

    alone: listed targets without input. outside: listed pictures that are neither.
    """

    inputs: list[str] = field(default_factory=list)
    targets: list[str] = field(default_factory=list)
    skipped: list[tuple[str, str]] = field(default_factory=list)
    alone: list[str] = field(default_factory=list)
    outside: list[str] = field(default_factory=list)


def pair_folders(description: DatasetYaml) -> PairFolders:
    """Read what the data.yaml says of its pairs. Raises UserError for a contradiction, or a set of another kind."""
    path, content = description.path, description.content
    inputs = _folder(path, content, "input_dir", "lq", "inputs")
    targets = _folder(path, content, "target_dir", "gt", "targets")
    if inputs == targets:
        raise UserError(f"{path}: input_dir and target_dir are both {'/'.join(inputs)!r}; they must be two folders.")
    suffixes = content.get("target_stem_suffix")
    listed = suffixes if isinstance(suffixes, list) else ["" if suffixes is None else suffixes]
    if not listed or not all(isinstance(s, str) and "/" not in s for s in listed):
        raise UserError(f"{path}: target_stem_suffix must be what a target's name ends with, like _gt, not {suffixes!r}.")
    if content.get("scale") not in (None, "1"):
        raise UserError(
            f"{path}: scale: {content['scale']} asks for pictures to be enlarged, which is not trained here; give targets of the inputs' size."
        )
    return PairFolders(inputs, targets, tuple(listed))


def find_pairs(listing: Listing, folders: PairFolders, split: str, yaml_path: Path) -> Pairs:
    """Return the pairs of a split's pictures. Raises UserError where the pictures hold no input at all."""
    pairs = Pairs(skipped=list(listing.skipped))
    stems: dict[str, dict[str, list[str]]] = {}  # target folder -> stem -> file names
    kinds: dict[str, tuple[str | None, bool]] = {}  # folder of pictures -> what `_counterpart` says of it
    listed_targets = []
    for picture in listing.pictures:
        folder, name = os.path.split(picture)
        if folder not in kinds:
            kinds[folder] = _counterpart(folder, folders)
        place, is_target = kinds[folder]
        if is_target:
            listed_targets.append(picture)
        elif place is None:
            pairs.outside.append(picture)
        else:
            if place not in stems:
                stems[place] = _stems(place)
            _add(pairs, picture, name, stems[place], place, folders)
    if not pairs.inputs and not pairs.skipped and listing.pictures:
        raise UserError(
            f"{yaml_path}: {split}: holds {len(listing.pictures)} pictures but none in a folder called {'/'.join(folders.inputs)} (for example "
            f"{listing.pictures[0]}); say where the pictures to be restored are: input_dir: NAME, and target_dir: NAME for their targets."
        )
    pairs.alone = sorted(set(listed_targets) - set(pairs.targets))
    return pairs


def log_unused(pairs: Pairs, folders: PairFolders, split: str) -> None:
    """Warn about pictures that a split lists and does not use."""
    if pairs.outside:
        names = f"{'/'.join(folders.inputs)} nor {'/'.join(folders.targets)}"
        told = printable(f"in no folder called {names} and are not used (for example {pairs.outside[0]})")
        logger.warning("%s: %d pictures are %s.", split, len(pairs.outside), told)
    if pairs.alone:
        logger.warning("%s: %d targets have no input and are not used (for example %s).", split, len(pairs.alone), printable(pairs.alone[0]))
    shared = shared_files(pairs.targets)
    if shared:
        told = printable(f"one name with two suffixes (for example {shared[0]})")
        logger.warning("%s: %d targets belong to several inputs each, %s; they are used for each.", split, len(shared), told)


def _folder(path: Path, content: Any, key: str, other: str, default: str) -> tuple[str, ...]:
    given = [name for name in (key, other) if content.get(name) is not None]
    if len(given) == 2:
        raise UserError(f"{path}: {key}: and {other}: mean the same; keep one of them.")
    value = content[given[0]] if given else default
    parts = tuple(part for part in str(value).replace("\\", "/").split("/") if part not in ("", "."))
    if not isinstance(value, str) or not parts or ".." in parts or is_absolute(value.strip().replace("\\", "/")):
        raise UserError(f"{path}: {given[0]}: must be the name of a folder, like {default}, not {value!r}.")
    return parts


def _counterpart(folder: str, folders: PairFolders) -> tuple[str | None, bool]:
    """Return where the targets of a folder of inputs are (None: it is no such folder), and whether it is a folder of targets."""
    parts = Path(folder).parts
    as_input, as_target = _last(parts, folders.inputs), _last(parts, folders.targets)
    if as_input == as_target == -1:
        return None, False
    # Of folders/names/that/end alike (low and low/x1) the longer one is meant.
    if (as_target, len(folders.targets)) > (as_input, len(folders.inputs)):
        return None, True
    start = as_input - len(folders.inputs)
    return str(Path(*parts[:start], *folders.targets, *parts[as_input:])), False


def _last(parts: Sequence[str], wanted: tuple[str, ...]) -> int:
    """Return the place after the last run of `wanted` in `parts`, -1 where there is none."""
    length = len(wanted)
    for end in range(len(parts), length - 1, -1):
        if tuple(parts[end - length : end]) == wanted:
            return end
    return -1


def _stems(folder: str) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    if Path(folder).is_dir():
        for entry in sorted(os.listdir(folder)):  # noqa: PTH208 - names are all that is needed
            stem, suffix = os.path.splitext(entry)  # noqa: PTH122
            if suffix.lower() in PICTURE_SUFFIXES and not entry.startswith("."):
                found.setdefault(composed(stem), []).append(entry)
    return found


def _add(pairs: Pairs, picture: str, name: str, stems: dict[str, list[str]], folder: str, folders: PairFolders) -> None:
    stem, suffix = os.path.splitext(name)  # noqa: PTH122
    wanted = [composed(stem + ending) for ending in folders.stem_suffixes]
    names = next((stems[w] for w in wanted if w in stems), [])
    if len(names) > 1:
        names = [n for n in names if os.path.splitext(n)[1] == suffix] or names  # noqa: PTH122
    if len(names) == 1:
        pairs.inputs.append(picture)
        pairs.targets.append(os.path.join(folder, names[0]))  # noqa: PTH118
    elif not names:
        pairs.skipped.append((picture, f"it has no target: there is no {' or '.join(wanted)} with a picture's suffix in {folder}"))
    else:
        pairs.skipped.append((picture, f"it has {len(names)} targets in {folder}: {', '.join(names)}"))
