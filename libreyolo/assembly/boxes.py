"""What the tasks that learn from boxes share: YOLO-format data, its splits, its loaders, its augmentation."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any, TypeVar

from libreyolo.assembly import detect_check
from libreyolo.assembly.parts import Judged
from libreyolo.assembly.splits import Splits
from libreyolo.data.augment.settings import AugmentSettings
from libreyolo.data.detection import load_detection
from libreyolo.data.detection_loader import eval_loader, train_loader
from libreyolo.data.image_set import ImageSet
from libreyolo.errors import UserError
from libreyolo.interfaces.data_report import DataReport
from libreyolo.interfaces.family import Family
from libreyolo.interfaces.input import InputSpec
from libreyolo.interfaces.task import Loader
from libreyolo.recipe import BoxesRecipe
from libreyolo.recipe.checks import image_hw

R = TypeVar("R", bound=BoxesRecipe)


class BoxData(Splits[R, ImageSet]):
    """A run's pictures with boxes; reads and checks them when it is made. Raises UserError for what is wrong with them."""

    def __init__(self, family: Family, recipe: R, spec: InputSpec, cwd: Path, judged: Judged | None = None) -> None:
        self.family, self.recipe, self.spec, self.judged = family, recipe, spec, judged
        self.hw = image_hw(recipe.imgsz)
        self.data = load_detection(
            recipe.data if recipe.data is not None else str(recipe.data_dir),
            root=recipe.data_dir if recipe.data is not None else None,
            cwd=cwd,
            single_cls=recipe.single_cls,
            classes=recipe.classes,
            cache=self.kept(),
            only=judged.split if judged else None,
            max_hw=self._augmentation().enough_for,
        )
        self.names = self.data.names
        if recipe.num_classes not in (None, len(self.names)):
            raise UserError(f"num_classes={recipe.num_classes}, but {self.data.yaml_path} has {len(self.names)} classes; leave it out.")

    def training_batches(self, **seat: Any) -> Loader:
        recipe = self.recipe
        options: dict[str, Any] = {"seed": recipe.seed, "class_balanced": recipe.class_balanced, "min_samples": recipe.min_samples}
        return train_loader(self.data.train, self._augmentation(), **options, **seat)

    def judged_batches(self, judged: ImageSet, **seat: Any) -> Loader:
        return eval_loader(judged, imgsz=self.hw, spec=self.spec, **seat)

    @classmethod
    def check(cls, data: str | Path, *, cwd: Path) -> DataReport:
        return detect_check.check(data, cwd=cwd)

    def _augmentation(self) -> AugmentSettings:
        """Return the recipe's augmentation; its fields are named as the recipe's keys."""
        own = {f.name: getattr(self.recipe, f.name) for f in fields(AugmentSettings) if hasattr(self.recipe, f.name)}
        return AugmentSettings(**{**own, "imgsz": self.hw, "resize": self.spec.resize})


def refuse_classes(classes: Sequence[int] | None, names: dict[int, str]) -> None:
    """Raise UserError where `classes` is no list of ids, an empty one, or has an id that a model does not have."""
    if classes is None:
        return
    if isinstance(classes, (str, Mapping)) or not isinstance(classes, Iterable):
        raise UserError(f"classes={classes!r} must be a list of class ids, like [0, 2].")
    wanted = list(classes)
    if not wanted:
        raise UserError("classes=[] would keep nothing; leave it out to keep every class.")
    unknown = [c for c in wanted if isinstance(c, bool) or c not in names]
    if unknown:
        raise UserError(f"classes={wanted}: this model has no class {unknown[0]}, its classes are 0 to {len(names) - 1}.")
