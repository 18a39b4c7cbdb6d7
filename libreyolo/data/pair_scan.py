"""Open the header of every input and target, once. n usable pairs.

A pair that can't be read is skipped, by name and reason, the same on every rank since only the files decide; a pair of two sizes is an error. Nothing
of the user's is written. The result goes to the cache; a set whose files have the sizes and times of then is not opened again.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field

import numpy as np
from numpy.typing import NDArray

from libreyolo.data import scan_cache
from libreyolo.data.decode import PictureError, bits_of, probe_picture
from libreyolo.data.pairs import Pairs
from libreyolo.data.scan_work import parallel, progress, refuse_unusable, stamp
from libreyolo.errors import UserError, printable

logger = logging.getLogger(__name__)

READER_VERSION = 2  # raise it when a rule here or in decode.py changes: it makes every cached scan stale
_ARRAYS: dict[str, tuple[type, int]] = {"kept": (np.int64, 1), "sizes": (np.int32, 2), "stamps": (np.int64, 2)}
_SHOWN = 10  # examples in the log; all of them stay in the report


@dataclass
class PairReport:
    """One split of a restoration set. skipped: (input, reason) of every unusable pair. num_deep: pictures with 16 bits a channel."""

    split: str
    num_pairs: int = 0
    num_deep: int = 0
    skipped: list[tuple[str, str]] = field(default_factory=list)

    def summary(self) -> str:
        """Return the one line that says what the split holds."""
        return f"{self.split}: {self.num_pairs} pairs of pictures, {len(self.skipped)} skipped"

    def log(self) -> None:
        """Tell the summary, and warn about what was skipped, with names, and about what is lost in reading."""
        logger.info("%s", self.summary())
        if self.num_deep:
            logger.warning("%s: %d pictures have 16 bits a channel and are read with 8.", self.split, self.num_deep)
        if self.skipped:
            logger.warning("%s: %d pairs cannot be used and are skipped:", self.split, len(self.skipped))
            for path, reason in self.skipped[:_SHOWN]:
                logger.warning("  %s", printable(f"{path}: {reason}"))
        if len(self.skipped) > _SHOWN:
            logger.warning("  (the first %d are shown)", _SHOWN)


@dataclass
class PairScan:
    """The usable pairs. kept: int64 [n], their places. sizes: int32 [n, 2] (h, w). stamps: int64 [n, 4], size and mtime in ns of input and target."""

    kept: NDArray[np.int64]
    sizes: NDArray[np.int32]
    stamps: NDArray[np.int64]
    report: PairReport


@dataclass(frozen=True)
class Unequal:
    """A pair of two sizes."""

    input_path: str
    target_path: str
    input_hw: tuple[int, int]
    target_hw: tuple[int, int]

    def __str__(self) -> str:
        (h, w), (target_h, target_w) = self.input_hw, self.target_hw
        return f"{self.input_path} is {w}x{h}, its target {self.target_path} is {target_w}x{target_h}"


def scan_pairs(pairs: Pairs, *, split: str, cache_name: str) -> PairScan:
    """Return the usable pairs, from the cache where it is fresh.

    Raises UserError where an input and its target differ in size, when no pair is usable, and when more than half are not.
    """
    stamps = stamps_of(pairs)
    key = _key(pairs, stamps, split)
    stored = scan_cache.load_arrays(cache_name, key, _ARRAYS)
    if stored is not None:
        arrays, report = stored
        report["skipped"] = [(str(file), str(reason)) for file, reason in report["skipped"]]
        return PairScan(**arrays, report=PairReport(**report))
    scan, unequal = read_pairs(pairs, stamps, split)
    if unequal:
        raise UserError(unequal_sentence(unequal, split))
    refuse_unusable(scan.report.skipped, len(scan.kept), split)
    scan_cache.save_arrays(cache_name, key, {name: getattr(scan, name) for name in _ARRAYS}, asdict(scan.report))
    return scan


def stamps_of(pairs: Pairs) -> NDArray[np.int64]:
    """Return int64 [n, 4], size and mtime in ns of each input and its target; -1 where there is no file."""
    both = np.array(list(parallel(stamp, [*pairs.inputs, *pairs.targets])), np.int64).reshape(2, -1, 2)
    return both.transpose(1, 0, 2).reshape(-1, 4)


def _key(pairs: Pairs, stamps: NDArray[np.int64], split: str) -> str:
    """A digest of all that the result depends on."""
    digest = hashlib.sha256(json.dumps(["restore", READER_VERSION, split, pairs.skipped]).encode())
    for path in (*pairs.inputs, *pairs.targets):
        digest.update(os.fsencode(path) + b"\0")
    digest.update(stamps.tobytes())
    return digest.hexdigest()


def read_pairs(pairs: Pairs, stamps: NDArray[np.int64], split: str) -> tuple[PairScan, list[Unequal]]:
    """Read every header and return the usable pairs, and those of two sizes, which a training would refuse."""
    report = PairReport(split, skipped=list(pairs.skipped))
    kept: list[int] = []
    sizes: list[tuple[int, int]] = []
    unequal: list[Unequal] = []
    places = range(len(pairs.inputs))
    for place, found in progress(parallel(lambda i: _read_one(pairs.inputs[i], pairs.targets[i]), places), len(places), split):
        if isinstance(found, str):
            report.skipped.append((pairs.inputs[place], found))
            continue
        input_hw, target_hw, num_deep = found
        report.num_deep += num_deep
        if input_hw != target_hw:
            unequal.append(Unequal(pairs.inputs[place], pairs.targets[place], input_hw, target_hw))
            continue
        kept.append(place)
        sizes.append(input_hw)
    report.num_pairs = len(kept)
    return PairScan(np.array(kept, np.int64), np.array(sizes, np.int32).reshape(-1, 2), stamps[kept], report), unequal


def _read_one(input_path: str, target_path: str) -> tuple[tuple[int, int], tuple[int, int], int] | str:
    """Return both sizes and how many of the two have 16 bits a channel, or why the pair can't be used."""
    try:
        input_hw = probe_picture(input_path)
    except PictureError as error:
        return str(error)
    try:
        target_hw = probe_picture(target_path)
    except PictureError as error:
        return f"its target {target_path}: {error}"
    return input_hw, target_hw, sum(bits_of(path) > 8 for path in (input_path, target_path))


def unequal_sentence(unequal: Sequence[Unequal], split: str) -> str:
    """Return what a user is told of pairs of two sizes; there is at least one."""
    shown = "; ".join(str(pair) for pair in unequal[:3])
    more = f"; and {len(unequal) - 3} more" if len(unequal) > 3 else ""
    factors = {(pair.target_hw[0] / pair.input_hw[0], pair.target_hw[1] / pair.input_hw[1]) for pair in unequal}
    advice = "give each input a target of its own size"
    if len(factors) == 1 and (factor := factors.pop())[0] == factor[1]:
        advice = f"enlarging by {factor[0]:g} is not trained here, {advice}"
    return f"{split}: {len(unequal)} pairs differ in size: {shown}{more}; {advice}."
