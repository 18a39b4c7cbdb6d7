"""FOMO's training recipe (numbers as LibreYOLO's published trainer): small steps of Adam, no augmentation, no average."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from libreyolo.errors import UserError
from libreyolo.recipe import PointRecipe, checks
from libreyolo.recipe.base import key


@dataclass
class FOMORecipe(PointRecipe):
    """Adam with a cosine, pictures as they are; a mosaic, flips and colours can be asked for."""

    epochs: int = key(40, "epochs of the whole schedule")
    batch: int = key(32, "global batch: pictures per optimiser step over all GPUs")
    sync_bn: bool = key(True, "statistics of BatchNorm over the global batch; acts only with more than one rank")
    amp: bool = key(False, "mixed precision on CUDA devices")
    optimizer: str = key("adam", "sgd, adam or adamw")
    lr0: float = key(0.0003, "peak learning rate, used as given whatever the batch")
    weight_decay: float = key(0.0, "weight decay of weights; norms and biases have none")
    scheduler: str = key("cos", "yoloxwarmcos, linear, cos, flat_cosine, poly, constant or step")
    warmup_epochs: float = key(0.0, "epochs of warm-up")
    no_aug_epochs: int = key(0, "last epochs without strong augmentation; also the tail of the schedules that have one")
    ema: bool = key(False, "keep an exponential moving average of the weights; it is what is validated and saved")
    eval_interval: int = key(1, "validate every this many epochs, and after the last")
    mosaic_prob: float = key(0.0, "probability of a four-picture mosaic")
    mixup_prob: float = key(0.0, "probability of mixing a second picture into a mosaic")
    hsv_prob: float = key(0.0, "probability of colour jitter")
    flip_prob: float = key(0.0, "probability of a horizontal flip")
    degrees: float = key(0.0, "rotation of a mosaic, up to this many degrees either way")
    translate: float = key(0.0, "shift of a mosaic, up to this fraction of a side")
    shear: float = key(0.0, "shear of a mosaic, up to this many degrees either way")
    fg_weight: float = key(100.0, "weight in the loss of a cell with an object; a cell of background has weight 1")

    def __post_init__(self) -> None:
        super().__post_init__()
        checks.at_least("fg_weight", self.fg_weight, 0.0)
        if self.fg_weight == 0:
            raise UserError("fg_weight=0 would leave nothing to find: give a weight above 0; 1 treats objects as background is treated.")

    def loss_options(self) -> dict[str, Any]:
        return {"fg_weight": self.fg_weight}
