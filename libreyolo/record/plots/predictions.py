"""What the network sees beside what is there: the pictures with the worst mistakes first."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw

from libreyolo.metrics.confusion import CONFIDENCE, match
from libreyolo.metrics.pictures import DetectionSample, Picture, canonical
from libreyolo.record.plots.boxes import Mark, class_color, draw_marks, fit, font, save
from libreyolo.record.plots.style import shorten

TILE_W, MAX_TILE_H = 400, 400
GAP, HEAD = 6, 24
MAX_SAMPLES = 8


def draw_predictions(samples: Sequence[DetectionSample], names: dict[int, str], path: Path, *, max_samples: int = MAX_SAMPLES) -> None:
    """Write up to `max_samples` pairs, two to a row: truth on the left, detections of confidence .25 or more on the right.

    Pairs with the worst mistakes come first. What went wrong is drawn thicker and named: "missed", "false", or the true class.
    """
    chosen = sorted(samples, key=lambda sample: -sample.mistakes)[:max_samples]
    columns = 2 if len(chosen) > 1 else 1
    rows = max(-(-len(chosen) // columns), 1)
    tile_h = max((_height(sample) for sample in chosen), default=MAX_TILE_H)
    pair_w, pair_h = 2 * TILE_W + GAP, tile_h + HEAD
    sheet = Image.new("RGB", (columns * (pair_w + 3 * GAP) - 3 * GAP, rows * (pair_h + GAP) - GAP), "white")
    for i, sample in enumerate(chosen):
        sheet.paste(_pair(sample, names, tile_h), ((i % columns) * (pair_w + 3 * GAP), (i // columns) * (pair_h + GAP)))
    save(sheet, Path(path))


def _height(sample: DetectionSample) -> int:
    """Return the height of a picture in its tile."""
    height, width = sample.image.shape[:2]
    return min(max(round(TILE_W * height / width), 1), MAX_TILE_H)


def _pair(sample: DetectionSample, names: dict[int, str], tile_h: int) -> Image.Image:
    truth_marks, found_marks = _marks(sample, names)
    pair = Image.new("RGB", (2 * TILE_W + GAP, tile_h + HEAD), "white")
    canvas = ImageDraw.Draw(pair)
    title = f"truth   {shorten(sample.title, 40)}" if sample.title else "truth"
    canvas.text((2, 4), title, fill=(34, 34, 34), font=font(13))
    canvas.text((TILE_W + GAP + 2, 4), f"detected   (mistakes {sample.mistakes:.1f})", fill=(34, 34, 34), font=font(13))
    for side, marks in enumerate((truth_marks, found_marks)):
        tile, scale = fit(Image.fromarray(np.ascontiguousarray(sample.image)), TILE_W, tile_h)
        scaled = [Mark(tuple(scale * v for v in mark.box), mark.text, mark.color, mark.strong) for mark in marks]  # type: ignore[arg-type]
        draw_marks(tile, scaled)
        pair.paste(tile, (side * (TILE_W + GAP) + (TILE_W - tile.width) // 2, HEAD + (tile_h - tile.height) // 2))
    return pair


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
