"""Detection: YOLO-format data, boxes, COCO's metric."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from libreyolo.assembly.boxes import BoxData, refuse_classes
from libreyolo.assembly.class_weights import class_weights
from libreyolo.assembly.detect_pictures import DetectionPictures
from libreyolo.assembly.parts import Judged, Predictor, refuse_unknown
from libreyolo.data.detection_loader import letterbox_batch
from libreyolo.interfaces.events import Listener
from libreyolo.interfaces.family import Family
from libreyolo.interfaces.input import InputSpec
from libreyolo.recipe import DetectionRecipe, Recipe, checks
from libreyolo.results import DetectionResult
from libreyolo.tasks.detection import DetectionTask


class DetectionAssembly(BoxData[DetectionRecipe]):
    """A detection run's data and what is made from it."""

    def __init__(self, family: Family, recipe: Recipe, spec: InputSpec, cwd: Path, judged: Judged | None = None) -> None:
        assert isinstance(recipe, DetectionRecipe)
        super().__init__(family, recipe, spec, cwd, judged)

    def task(self, split: str = "val", **evaluation: Any) -> DetectionTask:
        """Return the task judged on `split`; `evaluation` overrides conf, iou, max_det."""
        refuse_unknown(evaluation, ("conf", "iou", "max_det", "eval_max_det"), "judging boxes")
        for name in ("conf", "iou"):
            checks.in_range(name, evaluation.get(name, 0.0), 0.0, 1.0)
        judged = self.split(split)
        weights = None if self.judged else class_weights(self.data.train.labels_histogram(), self.recipe.cls_pw)
        criterion = self.family.loss.build(len(self.names), **self.recipe.loss_options(), class_weights=weights)
        settings: dict[str, Any] = {
            "max_det": self.recipe.max_det,
            "eval_max_det": self.recipe.eval_max_det,
            "classes": self.recipe.classes,
        }
        return DetectionTask(
            criterion=criterion,
            detect=self.family.decode.detect,
            spec=self.spec,
            names=self.names,
            truth=judged.truth if judged else None,
            num_pictures=len(judged) if judged else 0,
            **(settings | evaluation),
        )

    def pictures(self, run_dir: Path) -> list[Listener]:
        return [DetectionPictures(run_dir, self.names, self.data, first_batch=self.first_batch, samples=self.recipe.plot_samples)]

    @classmethod
    def predictor(cls, family: Family, spec: InputSpec, names: dict[int, str], **settings: Any) -> Predictor:
        """Return what predicts boxes. Settings: conf 0.25 and iou 0.45, the lowest score kept and the overlap above which the weaker of two boxes
        of a class goes; max_det 300; classes, the only ids kept (None: all)."""
        refuse_unknown(settings, PREDICTION, "predicting boxes")
        given = PREDICTION | settings
        _check_settings(names, **given)
        task = DetectionTask(criterion=None, detect=family.decode.detect, spec=spec, names=names, **given)
        return Predictor(
            task=task,
            prepare=lambda pictures, hw: letterbox_batch(pictures, hw, spec),
            result=lambda picture, detections, path: DetectionResult(picture, names, path, detections),
        )


PREDICTION: dict[str, Any] = {"conf": 0.25, "iou": 0.45, "max_det": 300, "classes": None}


def _check_settings(names: dict[int, str], *, conf: float, iou: float, max_det: int, classes: Sequence[int] | None) -> None:
    """Raise UserError for a setting that would quietly give nothing."""
    checks.in_range("conf", conf, 0.0, 1.0)
    checks.in_range("iou", iou, 0.0, 1.0)
    checks.count("max_det", max_det)
    refuse_classes(classes, names)


ASSEMBLY = DetectionAssembly
