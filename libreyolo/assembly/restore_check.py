"""What `python -m libreyolo check` does with a restoration set."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from PIL import Image

from libreyolo.data.decode import decode_picture
from libreyolo.data.restore_check import check_restore
from libreyolo.interfaces.data_report import DataReport
from libreyolo.record.plots.boxes import Mark
from libreyolo.record.plots.samples import draw_samples


def check(data: str | Path, *, cwd: Path) -> DataReport:
    """Return the report of a set of pairs of pictures."""
    report, samples = check_restore(data, cwd=cwd)
    if samples:
        report.draw_samples = lambda path: draw_samples([_side_by_side(given, target) for given, target in samples], path)
    return report


def _side_by_side(given: Path, target: Path) -> tuple[Image.Image, list[Mark], str]:
    both = np.concatenate([decode_picture(given), decode_picture(target)], axis=1)
    return Image.fromarray(both), [], f"{given.parent.name}/{given.name} and its target"
