"""Open every picture's header and every mask, once: what is usable, what is wrong, and what the set holds. n usable pictures, K classes.

A picture that can't be used is skipped as in detection (scan.py). A mask that can't be used stops the run: a picture without its truth can be neither
learnt from nor judged. The result goes to the cache; files of the same sizes and times are not opened again.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from libreyolo.data import scan_cache
from libreyolo.data.decode import PictureError, probe_picture
from libreyolo.data.masks import MaskError, MaskRules, count_values, read_raw, unmapped_values, wrong_values
from libreyolo.data.polygons import paint, read_outlines
from libreyolo.data.scan_result import SplitReport
from libreyolo.data.scan_work import parallel, progress, refuse_unusable, stamp
from libreyolo.data.sources import Listing
from libreyolo.errors import UserError
from libreyolo.ops.pixels import IGNORED

logger = logging.getLogger(__name__)

READER_VERSION = 2  # raise it when a rule of masks.py, polygons.py, labels.py or decode.py changes: it makes every cached scan stale
_SHOWN = 3
_ARRAYS: dict[str, tuple[type, int]] = {
    "kept": (np.int64, 1),
    "sizes": (np.int32, 2),
    "stamps": (np.int64, 2),
    "class_pixels": (np.int64, 1),
    "class_pictures": (np.int64, 1),
}


@dataclass
class Look:
    """What one picture's mask is like: pixels of each class and ignored int64 [K + 1]; `wrong` says why it can't be used, None where it can."""

    pixels: NDArray[np.int64]
    wrong: str | None = None
    unmapped: dict[int, int] = field(default_factory=dict)  # raw value -> pixels
    rows: list[str] = field(default_factory=list)  # label rows that were dropped


@dataclass
class MaskScan:
    """The usable pictures of a listing.

    kept: int64 [n], their places in the listing. sizes: int32 [n, 2]. stamps: int64 [n, 2]. class_pixels, class_pictures: int64 [K + 1], the last one
    of ignored pixels. unmapped: raw value -> pixels that `label_mapping` leaves out.
    """

    kept: NDArray[np.int64]
    sizes: NDArray[np.int32]
    stamps: NDArray[np.int64]
    class_pixels: NDArray[np.int64]
    class_pictures: NDArray[np.int64]
    report: SplitReport
    unmapped: dict[int, int]

    def log(self) -> None:
        """Tell what the split holds, and warn about what was skipped, dropped or left out."""
        total = max(int(self.class_pixels.sum()), 1)
        summary = (
            f"{self.report.split}: {len(self.kept)} pictures with masks, {int((self.class_pixels[:-1] > 0).sum())} of {len(self.class_pixels) - 1} "
            f"classes occur, {100 * int(self.class_pixels[-1]) / total:.2f} % of the pixels ignored, {len(self.report.skipped)} pictures skipped"
        )
        self.report.log(summary)
        if self.unmapped:
            listed = ", ".join(f"{value} ({pixels} px)" for value, pixels in sorted(self.unmapped.items())[:10])
            logger.warning("%s: label_mapping leaves out the values %s; those pixels are ignored.", self.report.split, listed)


Inspect = Callable[[int, tuple[int, int]], Look]
"""(place in the listing, (h, w) of the picture) -> what its mask is like."""


def scan_masks(listing: Listing, targets: Sequence[str], inspect: Inspect, *, split: str, facts: Any, num_classes: int, cache_name: str) -> MaskScan:
    """Return the usable pictures of a listing, from the cache where it is fresh.

    targets: the file behind each picture's mask, which need not exist. facts: what else the result depends on, as JSON knows it.
    Raises UserError when a mask can't be used, when no picture is usable, and when more than half are not.
    """
    stamps = np.array(list(parallel(stamp, [*listing.pictures, *targets])), np.int64).reshape(2, len(targets), 2)
    digest = hashlib.sha256(json.dumps(["semantic", READER_VERSION, split, facts, listing.skipped]).encode())
    for path in (*listing.pictures, *targets):
        digest.update(os.fsencode(path) + b"\0")
    digest.update(stamps.tobytes())
    key = digest.hexdigest()
    found = scan_cache.load_arrays(f"{cache_name} semantic", key, _ARRAYS)
    if found is not None:
        arrays, told = found
        report = SplitReport(split, skipped=[(str(f), str(r)) for f, r in told["skipped"]], row_warnings=[str(w) for w in told["rows"]])
        return MaskScan(**arrays, report=report, unmapped={int(value): int(pixels) for value, pixels in told["unmapped"]})
    scan, wrong = look_at_masks(listing, targets, inspect, split=split, num_classes=num_classes)
    scan.stamps = stamps[0][scan.kept]
    refuse_masks(scan, wrong)
    told = {"skipped": scan.report.skipped, "rows": scan.report.row_warnings, "unmapped": list(scan.unmapped.items())}
    scan_cache.save_arrays(f"{cache_name} semantic", key, {name: getattr(scan, name) for name in _ARRAYS}, told)
    return scan


def look_at_masks(listing: Listing, targets: Sequence[str], inspect: Inspect, *, split: str, num_classes: int) -> tuple[MaskScan, list[str]]:
    """Open every picture and every mask and return what was found, without stamps, and what is wrong with masks; those pictures are not kept."""
    report = SplitReport(split, skipped=list(listing.skipped))
    kept: list[int] = []
    sizes: list[tuple[int, int]] = []
    wrong: list[str] = []
    unmapped: dict[int, int] = {}
    pixels, pictures = np.zeros(num_classes + 1, np.int64), np.zeros(num_classes + 1, np.int64)

    def look(place: int) -> tuple[tuple[int, int], Look] | str:
        try:
            size = probe_picture(listing.pictures[place])
        except PictureError as error:
            return str(error)
        return size, inspect(place, size)

    for place, found in progress(parallel(look, range(len(targets))), len(targets), split):
        if isinstance(found, str):
            report.skipped.append((listing.pictures[place], found))
            continue
        size, seen = found
        if seen.wrong is not None:
            wrong.append(seen.wrong)
            continue
        report.row_warnings += seen.rows
        for value, count in seen.unmapped.items():
            unmapped[value] = unmapped.get(value, 0) + count
        pixels += seen.pixels
        pictures += seen.pixels > 0
        kept.append(place)
        sizes.append(size)
    report.num_pictures = len(kept)
    no_stamps = np.zeros((len(kept), 2), np.int64)
    scan = MaskScan(np.array(kept, np.int64), np.array(sizes, np.int32).reshape(-1, 2), no_stamps, pixels, pictures, report, unmapped)
    return scan, wrong


def refuse_masks(scan: MaskScan, wrong: Sequence[str]) -> None:
    """Raise UserError where no picture is usable, where more than half are not, and where a mask is wrong."""
    split = scan.report.split
    refuse_unusable(scan.report.skipped, len(scan.kept) + len(wrong), split)
    if wrong:
        more = f"; and {len(wrong) - _SHOWN} more" if len(wrong) > _SHOWN else ""
        masks = "1 mask is" if len(wrong) == 1 else f"{len(wrong)} masks are"
        raise UserError(f"{split}: {masks} wrong: {'; '.join(wrong[:_SHOWN])}{more}.")


def look_at_mask(path: str, hw: tuple[int, int], rules: MaskRules) -> Look:
    """Return what a mask file is like beside a picture of size hw."""
    nothing = np.zeros(rules.num_classes + 1, np.int64)
    try:
        raw = read_raw(path)
        values, counts = count_values(raw)
    except MaskError as error:
        return Look(nothing, f"{path}: {error}")
    if raw.shape != hw:
        return Look(nothing, f"{path} is {raw.shape[1]}x{raw.shape[0]}, its picture {hw[1]}x{hw[0]}: make the mask from the picture as it is shown")
    bad = wrong_values(values, rules)
    if len(bad):
        pixels = int(counts[np.isin(values, bad)].sum())
        listed = ", ".join(map(str, bad[:5].tolist())) + (", ..." if len(bad) > 5 else "")
        return Look(
            nothing,
            f"{path} has the value {listed} in {pixels} pixels, but the classes are 0..{rules.num_classes - 1} and 255 is ignored: correct names or "
            "nc, or say in label_mapping what the values mean",
        )
    ids = rules.ids[values]
    pixels_of = np.bincount(np.where(ids == IGNORED, rules.num_classes, ids), weights=counts, minlength=rules.num_classes + 1).astype(np.int64)
    left_out = unmapped_values(values, rules)
    return Look(pixels_of, unmapped={int(v): int(c) for v, c in zip(values, counts, strict=True) if v in left_out})


def look_at_polygons(path: str, hw: tuple[int, int], background: int, keypoint_numbers: int = 0) -> Look:
    """Return what the label file of a picture of size hw is like; a picture without one is all background."""
    outlines = read_outlines(path, background, keypoint_numbers)
    nothing = np.zeros(background + 2, np.int64)
    if outlines.errors:
        line, text = outlines.errors[0]
        return Look(nothing, f"{path}:{line} {text}")
    pixels = np.bincount(paint(outlines, hw, background).reshape(-1), minlength=background + 2).astype(np.int64)
    return Look(pixels, rows=[f"{path}:{line} {text}" for line, text in outlines.warnings])
