"""U-Net's training recipe (the released Cityscapes schedule; numbers as LibreYOLO's published trainer)."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from libreyolo.recipe import SemanticRecipe, checks
from libreyolo.recipe.base import key

CROP, CANVAS = [512, 1024], [1024, 2048]  # published: crops of this size, judged on whole pictures of that


@dataclass
class UNetRecipe(SemanticRecipe):
    """SGD with a polynomial schedule in full precision, and an auxiliary head while training."""

    imgsz: Any = key(list(CROP), "training crop in pixels: a side, or [height, width]; a multiple of 16")
    epochs: int = key(160, "epochs of the whole schedule")
    batch: int = key(4, "global batch: pictures per optimiser step over all GPUs")
    amp: bool = key(False, "mixed precision on CUDA devices")
    momentum: float = key(0.9, "SGD momentum (Adam's beta1 is in betas)")
    nesterov: bool = key(False, "Nesterov momentum (SGD)")
    scheduler: str = key("poly", "yoloxwarmcos, linear, cos, flat_cosine, poly, constant or step")
    warmup_epochs: float = key(2.0, "epochs of warm-up")
    min_lr_ratio: float = key(0.0, "last learning rate over lr0")
    eval_interval: int = key(1, "validate every this many epochs, and after the last")
    ema_decay: float = key(0.999, "decay of the average, approached as decay * (1 - exp(-updates / ema_tau))")

    aux_weight: float = key(0.4, "weight of the auxiliary head's term")

    def __post_init__(self) -> None:
        super().__post_init__()
        checks.at_least("aux_weight", self.aux_weight, 0.0)

    def for_training(self) -> UNetRecipe:
        """The published crop goes with the published canvas; any other crop is judged at its own size unless `eval_imgsz` says otherwise."""
        return replace(self, eval_imgsz=list(CANVAS)) if self.eval_imgsz is None and self.imgsz == CROP else self

    def loss_options(self) -> dict[str, Any]:
        return {"aux_weight": self.aux_weight}
