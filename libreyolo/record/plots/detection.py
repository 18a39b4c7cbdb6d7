"""The pictures of a detector's validation."""

from __future__ import annotations

from pathlib import Path

from libreyolo.interfaces.events import ValidationEnd
from libreyolo.metrics.pictures import DetectionSample
from libreyolo.record.plots.confusion import draw_confusion
from libreyolo.record.plots.f1_curve import draw_confidence_curves
from libreyolo.record.plots.listener import PictureListener, attempt
from libreyolo.record.plots.pr_curve import draw_pr_curve
from libreyolo.record.plots.predictions import draw_predictions


class DetectionValidationPictures(PictureListener):
    """Draws what a detector's validation holds: curves, confusion matrix and predictions; what the event does not hold is not drawn."""

    validation_pictures = ("pr_curve.png", "f1_curve.png", "confusion.png", "predictions.png")

    def draw_validation(self, event: ValidationEnd) -> None:
        draw_validation(event, self.names, self.folder)


def draw_validation(event: ValidationEnd, names: dict[int, str], folder: Path) -> None:
    """Draw what a validation's curves and samples hold: pr_curve.png, f1_curve.png, confusion.png, predictions.png in `folder`."""
    curves = event.curves
    if "pr_precision" in curves:
        attempt(folder / "pr_curve.png", lambda path: draw_pr_curve(curves["pr_recall"], curves["pr_precision"], curves["ap50"], names, path))
    if "confidence" in curves:
        tables = {key: curves[key] for key in ("confidence", "f1", "precision", "recall", "instances", "best_conf")}
        attempt(folder / "f1_curve.png", lambda path: draw_confidence_curves(**tables, names=names, path=path))
    if "confusion" in curves:
        attempt(folder / "confusion.png", lambda path: draw_confusion(curves["confusion"], names, path))
    samples = [sample for sample in event.samples if isinstance(sample, DetectionSample)]
    if samples:
        attempt(folder / "predictions.png", lambda path: draw_predictions(samples, names, path))
