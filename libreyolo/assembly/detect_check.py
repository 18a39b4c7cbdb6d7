"""What `python -m libreyolo check` does with a detection set."""

from __future__ import annotations

from pathlib import Path

from PIL import Image

from libreyolo.data.decode import decode_picture
from libreyolo.data.detection_check import LabelledPicture, check_detection
from libreyolo.interfaces.data_report import DataReport
from libreyolo.record.plots.boxes import Mark, class_color
from libreyolo.record.plots.samples import draw_samples


def check(data: str | Path, *, cwd: Path) -> DataReport:
    """Return the report of a set of pictures and boxes."""
    report, samples, names = check_detection(data, cwd=cwd)
    if samples:
        report.draw_samples = lambda path: draw_samples([_marked(sample, names) for sample in samples], path)
    return report


def _marked(sample: LabelledPicture, names: dict[int, str]) -> tuple[Image.Image, list[Mark], str]:
    marks = [
        Mark((box[0], box[1], box[2], box[3]), names[label], class_color(label))
        for box, label in zip(sample.boxes.tolist(), sample.labels.tolist(), strict=True)
    ]
    return Image.fromarray(decode_picture(sample.path)), marks, f"{sample.path.parent.name}/{sample.path.name}"
