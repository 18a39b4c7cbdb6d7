"""Classification: folders of pictures, one class each, accuracies."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path
from typing import Any

from PIL import Image

from libreyolo.assembly.class_weights import class_weights
from libreyolo.assembly.classify_pictures import ClassifyPictures
from libreyolo.assembly.parts import Judged, Predictor, Seat, refuse_unknown
from libreyolo.assembly.splits import Splits
from libreyolo.data.augment.crop import enough_hw
from libreyolo.data.class_check import check_classes
from libreyolo.data.classify import load_classify
from libreyolo.data.classify_loader import ClassifySettings, centre_batch, eval_loader, train_loader
from libreyolo.data.decode import decode_picture
from libreyolo.data.image_set import ImageSet
from libreyolo.errors import UserError, counted
from libreyolo.interfaces.data_report import DataReport
from libreyolo.interfaces.events import Listener
from libreyolo.interfaces.family import Family
from libreyolo.interfaces.input import InputSpec
from libreyolo.interfaces.task import Loader
from libreyolo.recipe import ClassifyRecipe, Recipe
from libreyolo.recipe.checks import image_hw
from libreyolo.record.plots.samples import draw_samples
from libreyolo.results import ClassifyResult
from libreyolo.tasks.classification import ClassificationTask

LAST_STRIDE = 32  # of every classifier's last map: an input of one such square leaves one number a channel


class ClassifyAssembly(Splits[ClassifyRecipe, ImageSet]):
    """A classification run's data and what is made from it."""

    def __init__(self, family: Family, recipe: Recipe, spec: InputSpec, cwd: Path, judged: Judged | None = None) -> None:
        assert isinstance(recipe, ClassifyRecipe)
        self.family, self.recipe, self.spec, self.judged = family, recipe, spec, judged
        self.hw = image_hw(recipe.imgsz)
        self.settings = self._settings()
        self.data = load_classify(
            recipe.data if recipe.data is not None else str(recipe.data_dir),
            cwd=cwd,
            root=recipe.data_dir if recipe.data is not None else None,
            cache=self.kept(),
            only=judged.split if judged else None,
            known=judged.names if judged else None,
            train_hw=self.settings.source_hw,
        )
        self.names = self.data.names
        if recipe.num_classes not in (None, len(self.names)):
            raise UserError(f"num_classes={recipe.num_classes}, but {self.data.found.place} has {len(self.names)} classes; leave it out.")

    def task(self, split: str = "val", **evaluation: Any) -> ClassificationTask:
        """Return the task judged on `split`; there is nothing that `evaluation` could override."""
        refuse_unknown(evaluation, (), "judging classes")
        judged = self.split(split)
        weights = None if self.judged else class_weights(self.data.train.labels_histogram(), self.recipe.cls_pw)
        return ClassificationTask(
            criterion=self.family.loss.build(len(self.names), **self.recipe.loss_options(), class_weights=weights),
            classify=self.family.decode.classify,
            spec=self.spec,
            names=self.names,
            truth=judged.label_rows if judged is not None else None,
        )

    def training_batches(self, **seat: Any) -> Loader:
        recipe = self.recipe
        options: dict[str, Any] = {"seed": recipe.seed, "class_balanced": recipe.class_balanced, "min_samples": recipe.min_samples}
        return train_loader(self.data.train, self.settings, self.spec, **options, **seat)

    def judged_batches(self, judged: ImageSet, **seat: Any) -> Loader:
        return eval_loader(judged, imgsz=self.hw, spec=self.spec, **seat)

    def train_loader(self, seat: Seat, batch: int) -> Loader:
        self._refuse_single_numbers(batch, seat.world_size)
        return super().train_loader(seat, batch)

    def pictures(self, run_dir: Path) -> list[Listener]:
        return [ClassifyPictures(run_dir, self.names, self.data, first_batch=self.first_batch, samples=self.recipe.plot_samples)]

    @classmethod
    def predictor(cls, family: Family, spec: InputSpec, names: dict[int, str], **settings: Any) -> Predictor:
        """Return what predicts classes. It has no settings: every class gets its probability."""
        refuse_unknown(settings, (), "predicting classes")
        task = ClassificationTask(criterion=None, classify=family.decode.classify, spec=spec, names=names)
        return Predictor(
            task=task,
            prepare=lambda pictures, hw: centre_batch(pictures, hw, spec),
            result=lambda picture, scores, path: ClassifyResult(picture, names, path, scores),
        )

    @classmethod
    def check(cls, data: str | Path, *, cwd: Path) -> DataReport:
        report, samples = check_classes(data, cwd=cwd)
        if samples:
            report.draw_samples = lambda target: draw_samples([(Image.fromarray(decode_picture(path)), (), name) for path, name in samples], target)
        return report

    def _settings(self) -> ClassifySettings:
        """Return the recipe's augmentation; its fields are named as the recipe's keys."""
        own = {f.name: getattr(self.recipe, f.name) for f in fields(ClassifySettings) if hasattr(self.recipe, f.name)}
        scale = (self.recipe.scale[0], self.recipe.scale[1])
        return ClassifySettings(**{**own, "imgsz": self.hw, "scale": scale, "source_hw": enough_hw(self.hw, scale)})

    def _refuse_single_numbers(self, batch: int, world_size: int) -> None:
        """Raise where BatchNorm would see a single number of each channel, of which it can take no statistics."""
        shared = self.recipe.sync_bn and world_size > 1
        if batch == world_size and not shared and max(self.hw) <= LAST_STRIDE:
            raise UserError(
                f"batch={batch} on {counted(world_size, 'rank')} and imgsz={self.recipe.imgsz} leave BatchNorm one number a channel: use "
                f"batch={2 * world_size} or more, or imgsz above {LAST_STRIDE}."
            )


ASSEMBLY = ClassifyAssembly
