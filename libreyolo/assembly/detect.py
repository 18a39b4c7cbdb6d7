"""Detection: YOLO-format data, boxes, COCO's metric."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
import torch

from libreyolo.assembly import detect_check
from libreyolo.assembly.detect_pictures import DetectionPictures
from libreyolo.assembly.parts import Predictor, Seat, refuse_unknown
from libreyolo.data.augment.settings import AugmentSettings
from libreyolo.data.detection import load_detection
from libreyolo.data.detection_loader import eval_loader, letterbox_batch, train_loader
from libreyolo.data.image_set import ImageSet
from libreyolo.data.picture_cache import RamPictures
from libreyolo.errors import UserError
from libreyolo.interfaces.batch import DetectionBatch
from libreyolo.interfaces.data_report import DataReport
from libreyolo.interfaces.events import Listener
from libreyolo.interfaces.family import Family
from libreyolo.interfaces.input import InputSpec
from libreyolo.interfaces.task import Loader
from libreyolo.recipe import DetectionRecipe, Recipe, checks
from libreyolo.recipe.checks import image_hw
from libreyolo.results import DetectionResult
from libreyolo.tasks.detection import DetectionTask


class DetectionAssembly:
    """A detection run's data and what is made from it."""

    def __init__(self, family: Family, recipe: Recipe, spec: InputSpec, cwd: Path) -> None:
        assert isinstance(recipe, DetectionRecipe)
        self.family, self.recipe, self.spec = family, recipe, spec
        self.hw = image_hw(recipe.imgsz)
        self.data = load_detection(
            recipe.data if recipe.data is not None else str(recipe.data_dir),
            root=recipe.data_dir if recipe.data is not None else None,
            cwd=cwd,
            single_cls=recipe.single_cls,
            classes=recipe.classes,
            cache=recipe.cache,
            max_hw=self.hw,
        )
        self.names = self.data.names
        if recipe.num_classes not in (None, len(self.names)):
            raise UserError(f"num_classes={recipe.num_classes}, but {self.data.yaml_path} has {len(self.names)} classes; leave it out.")

    def task(self, split: str = "val", **evaluation: Any) -> DetectionTask:
        """Return the task judged on `split`; `evaluation` overrides conf, iou, max_det."""
        refuse_unknown(evaluation, ("conf", "iou", "max_det", "eval_max_det"), "judging boxes")
        for name in ("conf", "iou"):
            checks.in_range(name, evaluation.get(name, 0.0), 0.0, 1.0)
        judged = self.split(split)
        criterion = self.family.loss.build(len(self.names), **self.recipe.loss_options(), class_weights=self._class_weights())
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

    def train_loader(self, seat: Seat, batch: int) -> Loader:
        recipe = self.recipe
        return train_loader(
            self.data.train,
            self._augmentation(),
            batch=batch,
            rank=seat.rank,
            world_size=seat.world_size,
            seed=recipe.seed,
            workers=seat.workers(recipe.workers),
            device=seat.device,
            class_balanced=recipe.class_balanced,
            min_samples=recipe.min_samples,
        )

    def val_loader(self, seat: Seat, batch: int, split: str = "val") -> Loader | None:
        judged = self.split(split)
        if judged is None:
            return None
        return eval_loader(
            judged,
            imgsz=self.hw,
            spec=self.spec,
            batch=batch,
            rank=seat.rank,
            world_size=seat.world_size,
            workers=seat.workers(self.recipe.workers),
            device=seat.device,
        )

    def split(self, name: str) -> ImageSet | None:
        """Return the training, validation or test pictures. Raises UserError for another name."""
        if name not in ("train", "val", "test"):
            raise UserError(f"split={name} is not known: choose train, val or test.")
        found: ImageSet | None = getattr(self.data, name)
        return found

    def example(self) -> Path:
        return (self.data.val or self.data.train).path(0)

    def pictures(self, run_dir: Path) -> list[Listener]:
        return [DetectionPictures(run_dir, self.names, self.data, first_batch=self._first_batch, samples=self.recipe.plot_samples)]

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

    @classmethod
    def check(cls, data: str | Path, *, cwd: Path) -> DataReport:
        return detect_check.check(data, cwd=cwd)

    def _first_batch(self, epoch: int) -> DetectionBatch:
        """Return the first training batch of an epoch (at most 16 pictures), on the CPU."""
        batch = min(self.recipe.batch, 16)
        loader = train_loader(self.data.train, self._augmentation(), batch=batch, seed=self.recipe.seed)
        return next(iter(loader.epoch(epoch)))

    def _augmentation(self) -> AugmentSettings:
        """Return the recipe's augmentation; its fields are named as the recipe's keys."""
        own = {f.name: getattr(self.recipe, f.name) for f in fields(AugmentSettings) if hasattr(self.recipe, f.name)}
        return AugmentSettings(**{**own, "imgsz": self.hw, "resize": self.spec.resize})

    def close(self) -> None:
        for images in (self.data.train, self.data.val):
            if isinstance(getattr(images, "cache", None), RamPictures):
                images.cache.close()  # type: ignore[union-attr]

    def _class_weights(self) -> torch.Tensor | None:
        """Return weights by class, inverse frequency to the power `cls_pw`, with mean 1; None where all are 1."""
        if self.recipe.cls_pw == 0:
            return None
        counts = np.maximum(self.data.train.labels_histogram(), 1).astype(np.float64)
        weights = (1.0 / counts) ** self.recipe.cls_pw
        return torch.from_numpy(weights / weights.mean()).float()


PREDICTION: dict[str, Any] = {"conf": 0.25, "iou": 0.45, "max_det": 300, "classes": None}


def _check_settings(names: dict[int, str], *, conf: float, iou: float, max_det: int, classes: Sequence[int] | None) -> None:
    """Raise UserError for a setting that would quietly give nothing."""
    checks.in_range("conf", conf, 0.0, 1.0)
    checks.in_range("iou", iou, 0.0, 1.0)
    checks.at_least("max_det", max_det, 1)
    unknown = [c for c in classes or () if c not in names]
    if unknown:
        raise UserError(f"classes={list(classes or ())}: this model has no class {unknown[0]}, its classes are 0 to {len(names) - 1}.")


ASSEMBLY = DetectionAssembly
