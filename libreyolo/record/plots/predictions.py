"""What a detector sees beside what is there: the pictures with the worst mistakes first."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from PIL import Image

from libreyolo.metrics.confusion import CONFIDENCE, match
from libreyolo.metrics.pictures import DetectionSample, Picture, canonical
from libreyolo.record.plots.boxes import Mark, class_color, draw_marks
from libreyolo.record.plots.pairs import MAX_PAIRS, Pair, draw_pairs


def draw_predictions(samples: Sequence[DetectionSample], names: dict[int, str], path: Path, *, max_samples: int = MAX_PAIRS) -> None:
    """Write up to `max_samples` pairs, two to a row: truth on the left, detections of confidence .25 or more on the right.

    Pairs with the worst mistakes come first. What went wrong is drawn thicker and named: "missed", "false", or the true class.
    """
    draw_pairs([_pair(sample, names) for sample in samples], path, max_pairs=max_samples)


def _pair(sample: DetectionSample, names: dict[int, str]) -> Pair:
    truth_marks, found_marks = _marks(sample, names)
    return Pair(
        sample.image,
        truth=lambda tile, scale: _draw_scaled(tile, scale, truth_marks),
        found=lambda tile, scale: _draw_scaled(tile, scale, found_marks),
        title=sample.title,
        mistakes=sample.mistakes,
    )


def _draw_scaled(tile: Image.Image, scale: float, marks: Sequence[Mark]) -> None:
    scaled = [Mark(tuple(scale * v for v in mark.box), mark.text, mark.color, mark.strong) for mark in marks]  # type: ignore[arg-type]
    draw_marks(tile, scaled)


def _marks(sample: DetectionSample, names: dict[int, str]) -> tuple[list[Mark], list[Mark]]:
    """Return the marks of the truth and of the confident detections, matched as in the confusion matrix."""
    predicted, _ = canonical(sample.detections, max_det=len(sample.detections.scores))
    truth_boxes = np.asarray(sample.truth_boxes, np.float32).reshape(-1, 4)
    truth_labels = np.asarray(sample.truth_labels, np.int64).reshape(-1)
    found = match(Picture(0, predicted, truth_boxes, truth_labels))
    missed = set(found.missed.tolist())
    partner = {int(d): int(truth_labels[g]) for d, g in found.pairs}
    truth_marks, found_marks = [], []
    for g, (box, label) in enumerate(zip(truth_boxes.tolist(), truth_labels.tolist(), strict=True)):
        text = f"{names[label]}: missed" if g in missed else names[label]
        truth_marks.append(Mark((box[0], box[1], box[2], box[3]), text, class_color(label), g in missed))
    for d in np.flatnonzero(predicted.scores >= CONFIDENCE).tolist():
        box, label = predicted.boxes[d].tolist(), int(predicted.labels[d])
        wrong = partner.get(d) != label
        reason = "" if not wrong else ": false" if d not in partner else f": is {names[partner[d]]}"
        text = f"{names[label]} {predicted.scores[d]:.2f}{reason}"
        found_marks.append(Mark((box[0], box[1], box[2], box[3]), text, class_color(label), wrong))
    return truth_marks, found_marks
