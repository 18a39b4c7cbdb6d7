"""What `python -m libreyolo check --task semantic` does with a set of pictures and masks."""

from __future__ import annotations

from pathlib import Path

from PIL import Image

from libreyolo.data.masked_set import MaskedSet
from libreyolo.data.semantic_check import check_semantic
from libreyolo.interfaces.data_report import DataReport
from libreyolo.record.plots.boxes import Mark
from libreyolo.record.plots.masks import labelled_overlay
from libreyolo.record.plots.samples import draw_samples


def check(data: str | Path, *, cwd: Path) -> DataReport:
    """Return the report of a set of pictures and masks."""
    report, samples, names = check_semantic(data, cwd=cwd)
    if samples:
        report.draw_samples = lambda path: draw_samples([_painted(pictures, index, names) for pictures, index in samples], path)
    return report


def _painted(pictures: MaskedSet, index: int, names: dict[int, str]) -> tuple[Image.Image, list[Mark], str]:
    path = pictures.path(index)
    return Image.fromarray(labelled_overlay(pictures.image(index), pictures.mask(index), names)), [], f"{path.parent.name}/{path.name}"
