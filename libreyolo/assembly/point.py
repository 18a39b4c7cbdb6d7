"""Points: YOLO-format boxes whose centres are looked for on a grid, judged by F1."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import numpy as np
import torch

from libreyolo.assembly.boxes import BoxData, refuse_classes
from libreyolo.assembly.parts import Judged, Predictor, Seat, refuse_unknown
from libreyolo.assembly.point_pictures import PointPictures
from libreyolo.data.augment.letterbox import letterbox_geometry
from libreyolo.data.detection_loader import letterbox_batch
from libreyolo.data.image_set import ImageSet
from libreyolo.interfaces.events import Listener
from libreyolo.interfaces.family import Family
from libreyolo.interfaces.input import InputSpec
from libreyolo.interfaces.task import Loader
from libreyolo.ops.cells import cells_of
from libreyolo.recipe import PointRecipe, Recipe, checks
from libreyolo.results import PointResult
from libreyolo.tasks.point import PointTask

log = logging.getLogger(__name__)


class PointAssembly(BoxData[PointRecipe]):
    """A point run's data and what is made from it."""

    def __init__(self, family: Family, recipe: Recipe, spec: InputSpec, cwd: Path, judged: Judged | None = None) -> None:
        assert isinstance(recipe, PointRecipe)
        super().__init__(family, recipe, spec, cwd, judged)

    def train_loader(self, seat: Seat, batch: int) -> Loader:
        hidden, total = self.num_hidden(self.data.train), len(self.data.train.label_rows)
        if hidden and seat.rank == 0:
            log.warning("%d of %d training objects share a cell with another one, which hides them: a larger imgsz has more cells.", hidden, total)
        return super().train_loader(seat, batch)

    def task(self, split: str = "val", **evaluation: Any) -> PointTask:
        """Return the task judged on `split`; `evaluation` overrides max_det, and conf_thresholds by one `conf`."""
        refuse_unknown(evaluation, ("conf", "max_det"), "judging points")
        checks.in_range("conf", evaluation.get("conf", 0.0), 0.0, 1.0)
        judged, recipe = self.split(split), self.recipe
        return PointTask(
            criterion=self.family.loss.build(len(self.names), **recipe.loss_options()),
            locate=self.family.decode.locate,
            stride=self.family.decode.STRIDE,
            spec=self.spec,
            names=self.names,
            thresholds=[evaluation["conf"]] if "conf" in evaluation else recipe.conf_thresholds,
            radii=recipe.nms_radii,
            tolerance=recipe.distance_tolerance,
            num_pictures=len(judged) if judged else 0,
            max_det=evaluation.get("max_det", recipe.max_det),
            classes=recipe.classes,
        )

    def pictures(self, run_dir: Path) -> list[Listener]:
        stride = self.family.decode.STRIDE
        return [
            PointPictures(run_dir, self.names, self.data, first_batch=self.first_batch, samples=self.recipe.plot_samples, stride=stride),
        ]

    def num_hidden(self, images: ImageSet) -> int:
        """Return how many objects of a split lie in a cell that a later one of the same picture has as well."""
        stride = self.family.decode.STRIDE
        geometry = np.array([letterbox_geometry(images.size(i), self.hw, self.spec)[1] for i in range(len(images))], np.float32).reshape(-1, 4)
        pictures = np.repeat(np.arange(len(images)), np.diff(images.offsets))
        scales, shifts = (geometry[pictures][:, columns] for columns in ([0, 1, 0, 1], [2, 3, 2, 3]))
        boxes = images.box_rows * images.sizes[pictures][:, [1, 0, 1, 0]] * scales + shifts
        cells = cells_of(torch.from_numpy(boxes.astype(np.float32)), (self.hw[0] // stride, self.hw[1] // stride), stride).numpy()
        return len(cells) - len(np.unique(np.column_stack([pictures, cells]), axis=0))

    @classmethod
    def predictor(cls, family: Family, spec: InputSpec, names: dict[int, str], **settings: Any) -> Predictor:
        """Return what predicts points. Settings: conf 0.25, the lowest score kept; max_det 300; classes, the only ids kept (None: all)."""
        refuse_unknown(settings, PREDICTION, "predicting points")
        given = PREDICTION | settings
        checks.in_range("conf", given["conf"], 0.0, 1.0)
        checks.count("max_det", given["max_det"])
        refuse_classes(given["classes"], names)
        task = PointTask(
            criterion=None,
            locate=family.decode.locate,
            stride=family.decode.STRIDE,
            spec=spec,
            names=names,
            thresholds=[given["conf"]],
            radii=[RADIUS],
            max_det=given["max_det"],
            classes=given["classes"],
        )
        return Predictor(
            task=task,
            prepare=lambda pictures, hw: letterbox_batch(pictures, hw, spec),
            result=lambda picture, points, path: PointResult(picture, names, path, points),
        )


PREDICTION: dict[str, Any] = {"conf": 0.25, "max_det": 300, "classes": None}
RADIUS = 1  # cells around a predicted point in which no other one is shown


ASSEMBLY = PointAssembly
