"""YOLOv9's training recipe (arXiv 2402.13616; numbers as LibreYOLO's published trainer)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from libreyolo.recipe import DetectionRecipe, checks
from libreyolo.recipe.base import key


@dataclass
class YOLO9Recipe(DetectionRecipe):
    """SGD with a linear schedule, mosaic without mixup, an auxiliary branch while training."""

    sync_bn: bool = key(True, "statistics of BatchNorm over the global batch; acts only with more than one rank")
    workers: int = key(8, "loader processes for each rank")
    scheduler: str = key("linear", "yoloxwarmcos, linear, cos, flat_cosine, poly, constant or step")
    warmup_epochs: float = key(3.0, "epochs of warm-up")
    warmup_lr_start: float = key(0.0001, "learning rate at the first step of the warm-up")
    warmup_momentum: float | None = key(0.8, "SGD momentum at the first step, raised to `momentum` over the warm-up; null: constant")
    min_lr_ratio: float = key(0.01, "last learning rate over lr0")
    ema_decay: float = key(0.9999, "decay of the average, approached as decay * (1 - exp(-updates / ema_tau))")
    mixup_prob: float = key(0.0, "probability of mixing a second picture into a mosaic")
    degrees: float = key(0.0, "rotation of a mosaic, up to this many degrees either way")
    mosaic_scale: list[float] = key([0.5, 1.5], "range of the scale of a mosaic")
    shear: float = key(0.0, "shear of a mosaic, up to this many degrees either way")

    aux_weight: float = key(0.25, "weight of the auxiliary (PGI) branch; 0 builds none")
    box_gain: float = key(7.5, "weight of the CIoU term")
    dfl_gain: float = key(1.5, "weight of the distribution focal term")
    cls_gain: float = key(0.5, "weight of the class term")
    letterbox_pad: str | None = key(None, "topleft or center; null: as the weights were trained (topleft for new ones)")

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("aux_weight", "box_gain", "dfl_gain", "cls_gain"):
            checks.at_least(name, getattr(self, name), 0.0)
        checks.one_of("letterbox_pad", self.letterbox_pad, (None, "topleft", "center"))

    def network_options(self) -> dict[str, Any]:
        return {"aux": self.aux_weight > 0}

    def loss_options(self) -> dict[str, Any]:
        return {"aux_weight": self.aux_weight, "box_gain": self.box_gain, "dfl_gain": self.dfl_gain, "cls_gain": self.cls_gain}
