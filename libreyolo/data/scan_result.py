"""What a scan found: arrays for the training, counts and names for the log. n usable pictures, M boxes."""

from __future__ import annotations

import logging
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from libreyolo.errors import printable

logger = logging.getLogger(__name__)

_SHOWN = 10  # examples in the log; all of them stay in the report


@dataclass
class SplitReport:
    """One split of a detection set.

    num_pictures: usable pictures. num_boxes: boxes kept. num_background: pictures without a box, for whatever reason; among them
    num_missing_labels had no label file and num_empty_labels an empty one.
    num_left_out: pictures of the sources that the split's COCO file does not name.
    skipped: (file, reason) of every unusable picture. row_warnings: "file:line why" of every dropped row.
    """

    split: str
    num_pictures: int = 0
    num_boxes: int = 0
    num_background: int = 0
    num_missing_labels: int = 0
    num_empty_labels: int = 0
    num_left_out: int = 0
    skipped: list[tuple[str, str]] = field(default_factory=list)
    row_warnings: list[str] = field(default_factory=list)

    def summary(self) -> str:
        """Return the one line that says what the split holds."""
        return (
            f"{self.split}: {self.num_pictures} pictures, {self.num_boxes} boxes, {self.num_background} background "
            f"({self.num_empty_labels} empty label files, {self.num_missing_labels} missing), {len(self.skipped)} skipped, "
            f"{len(self.row_warnings)} label rows dropped" + (f", {self.num_left_out} not in the annotations" if self.num_left_out else "")
        )

    def log(self, summary: str | None = None) -> None:
        """Tell the summary (this report's own, or another task's), and warn about what was skipped and dropped, with names."""
        logger.info("%s", summary or self.summary())
        self.log_warnings()

    def log_warnings(self) -> None:
        """Warn about what was skipped and dropped, with names."""
        if self.skipped:
            logger.warning("%s: %d pictures cannot be used and are skipped:", self.split, len(self.skipped))
            for path, reason in self.skipped[:_SHOWN]:
                logger.warning("  %s", printable(f"{path}: {reason}"))
        if self.row_warnings:
            logger.warning("%s: %d label rows are dropped, their pictures stay:", self.split, len(self.row_warnings))
            for text in self.row_warnings[:_SHOWN]:
                logger.warning("  %s", printable(text))
        more = max(len(self.skipped), len(self.row_warnings)) - _SHOWN
        if more > 0:
            logger.warning("  (the first %d of each kind are shown)", _SHOWN)


@dataclass
class Scan:
    """The usable pictures of a listing.

    kept: int64 [n], their places in the listing. sizes: int32 [n, 2] (h, w). boxes: float32 [M, 4] normalised xyxy. labels: int64 [M].
    offsets: int64 [n + 1], picture i has rows offsets[i]:offsets[i + 1]. stamps: int64 [n, 2], file size and mtime in ns.
    """

    kept: NDArray[np.int64]
    sizes: NDArray[np.int32]
    boxes: NDArray[np.float32]
    labels: NDArray[np.int64]
    offsets: NDArray[np.int64]
    stamps: NDArray[np.int64]
    report: SplitReport
