"""Restoration: pairs of pictures, PSNR and SSIM."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from libreyolo.assembly import restore_check
from libreyolo.assembly.parts import Judged, Predictor, refuse_unknown
from libreyolo.assembly.restore_pictures import RestorePictures
from libreyolo.assembly.splits import Splits
from libreyolo.data.augment.pair import PairSettings
from libreyolo.data.pair_set import PairSet
from libreyolo.data.restore import load_restore
from libreyolo.data.restore_loader import eval_loader, train_loader, whole_batch
from libreyolo.interfaces.data_report import DataReport
from libreyolo.interfaces.events import Listener
from libreyolo.interfaces.family import Family
from libreyolo.interfaces.input import InputSpec
from libreyolo.interfaces.task import Loader
from libreyolo.metrics.restore import to_uint8
from libreyolo.recipe import Recipe, RestoreRecipe
from libreyolo.recipe.checks import image_hw
from libreyolo.results import RestoreResult
from libreyolo.tasks.restore import RestoreTask


class RestoreAssembly(Splits[RestoreRecipe, PairSet]):
    """A restoration run's data and what is made from it. There are no classes: `names` is empty."""

    def __init__(self, family: Family, recipe: Recipe, spec: InputSpec, cwd: Path, judged: Judged | None = None) -> None:
        assert isinstance(recipe, RestoreRecipe)
        self.family, self.recipe, self.spec, self.judged = family, recipe, spec, judged
        self.names: dict[int, str] = {}
        self.data = load_restore(
            recipe.data if recipe.data is not None else str(recipe.data_dir),
            root=recipe.data_dir if recipe.data is not None else None,
            cwd=cwd,
            cache=self.kept(),
            only=judged.split if judged else None,
        )

    def task(self, split: str = "val", **evaluation: Any) -> RestoreTask:
        """Return the task; the truth of any split comes with its pictures, and there is no threshold to override."""
        refuse_unknown(evaluation, (), "judging restored pictures")
        return RestoreTask(
            criterion=self.family.loss.build(**self.recipe.loss_options()),
            restore=self.family.decode.restore,
            spec=self.spec,
            keep_worst=self.recipe.plot_samples if self.recipe.save_plots else 0,
        )

    def training_batches(self, **seat: Any) -> Loader:
        return train_loader(self.data.train, self._settings(), seed=self.recipe.seed, min_samples=self.recipe.min_samples, **seat)

    def judged_batches(self, judged: PairSet, **seat: Any) -> Loader:
        return eval_loader(judged, stride=self.spec.stride, **seat)

    def pictures(self, run_dir: Path) -> list[Listener]:
        crop = image_hw(self.recipe.imgsz)
        return [RestorePictures(run_dir, self.data, first_batch=self.first_batch, samples=self.recipe.plot_samples, crop=crop)]

    @classmethod
    def predictor(cls, family: Family, spec: InputSpec, names: dict[int, str], **settings: Any) -> Predictor:
        """Return what restores pictures; there is nothing to set."""
        refuse_unknown(settings, (), "restoring pictures")
        task = RestoreTask(criterion=None, restore=family.decode.restore, spec=spec)
        return Predictor(
            task=task,
            prepare=lambda pictures, hw: whole_batch(pictures, spec.stride),
            result=lambda picture, restored, path: RestoreResult(picture, {}, path, to_uint8(restored.pixels)),
        )

    @classmethod
    def check(cls, data: str | Path, *, cwd: Path) -> DataReport:
        return restore_check.check(data, cwd=cwd)

    def _settings(self) -> PairSettings:
        recipe = self.recipe
        return PairSettings(image_hw(recipe.imgsz), flip_prob=recipe.flip_prob, flipud=recipe.flipud, rot90=recipe.rot90)

    def close(self) -> None:
        for pairs in self.read_so_far():
            pairs.close()


ASSEMBLY = RestoreAssembly
