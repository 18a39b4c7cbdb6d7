"""Semantic segmentation: pictures with masks, a class for every pixel, mean IoU."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path
from typing import Any

from libreyolo.assembly import semantic_check
from libreyolo.assembly.parts import Judged, Predictor, refuse_unknown
from libreyolo.assembly.semantic_pictures import SemanticPictures
from libreyolo.assembly.splits import Splits
from libreyolo.data.augment.rescale_crop import CropSettings
from libreyolo.data.masked_set import MaskedSet
from libreyolo.data.semantic import load_semantic
from libreyolo.data.semantic_loader import eval_loader, train_loader, whole_pictures
from libreyolo.errors import UserError
from libreyolo.interfaces.data_report import DataReport
from libreyolo.interfaces.events import Listener
from libreyolo.interfaces.family import Family
from libreyolo.interfaces.input import InputSpec
from libreyolo.interfaces.task import Loader
from libreyolo.recipe import Recipe, SemanticRecipe
from libreyolo.recipe.checks import image_hw
from libreyolo.results import SemanticResult
from libreyolo.tasks.semantic import SemanticTask


class SemanticAssembly(Splits[SemanticRecipe, MaskedSet]):
    """A segmentation run's data and what is made from it."""

    def __init__(self, family: Family, recipe: Recipe, spec: InputSpec, cwd: Path, judged: Judged | None = None) -> None:
        assert isinstance(recipe, SemanticRecipe)
        self.family, self.recipe, self.spec, self.judged = family, recipe, spec, judged
        self.data = load_semantic(
            recipe.data if recipe.data is not None else str(recipe.data_dir),
            root=recipe.data_dir if recipe.data is not None else None,
            cwd=cwd,
            cache=self.kept(),
            only=judged.split if judged else None,
            max_hw=self._augmentation().enough_hw,
        )
        self.names = self.data.names
        if recipe.num_classes not in (None, len(self.names)):
            raise UserError(f"num_classes={recipe.num_classes}, but {self.data.yaml_path} has {len(self.names)} classes; leave it out.")

    def task(self, split: str = "val", **evaluation: Any) -> SemanticTask:
        """Return the task; the truth comes with the pictures of the split's loader, so all splits share it."""
        refuse_unknown(evaluation, (), "judging a class for every pixel")
        self.split(split)
        return SemanticTask(
            criterion=self.family.loss.build(len(self.names), **self.recipe.loss_options()),
            class_logits=self.family.decode.class_logits,
            spec=self.spec,
            names=self.names,
            samples=self.recipe.plot_samples if self.recipe.save_plots else 0,
        )

    def training_batches(self, **seat: Any) -> Loader:
        options: dict[str, Any] = {"seed": self.recipe.seed, "min_samples": self.recipe.min_samples}
        return train_loader(self.data.train, self._augmentation(), self.spec, **options, **seat)

    def judged_batches(self, judged: MaskedSet, **seat: Any) -> Loader:
        return eval_loader(judged, imgsz=image_hw(self.recipe.judged_imgsz), spec=self.spec, **seat)

    def pictures(self, run_dir: Path) -> list[Listener]:
        return [SemanticPictures(run_dir, self.names, self.data, first_batch=self.first_batch, samples=self.recipe.plot_samples)]

    @classmethod
    def predictor(cls, family: Family, spec: InputSpec, names: dict[int, str], **settings: Any) -> Predictor:
        """Return what predicts class maps. It has no settings: every pixel gets its most likely class."""
        refuse_unknown(settings, (), "predicting a class for every pixel")
        task = SemanticTask(criterion=None, class_logits=family.decode.class_logits, spec=spec, names=names)
        return Predictor(
            task=task,
            prepare=lambda pictures, hw: whole_pictures(pictures, hw, spec),
            result=lambda picture, mask, path: SemanticResult(picture, names, path, mask.numpy()),
        )

    @classmethod
    def check(cls, data: str | Path, *, cwd: Path) -> DataReport:
        return semantic_check.check(data, cwd=cwd)

    def _augmentation(self) -> CropSettings:
        """Return the recipe's augmentation; its fields are named as the recipe's keys."""
        own = {f.name: getattr(self.recipe, f.name) for f in fields(CropSettings) if hasattr(self.recipe, f.name)}
        own |= {name: tuple(own[name]) for name in ("rescale", "hsv_gain")}
        return CropSettings(**{**own, "imgsz": image_hw(self.recipe.imgsz), "canvas": image_hw(self.recipe.judged_imgsz)})


ASSEMBLY = SemanticAssembly
