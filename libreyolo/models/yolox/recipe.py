"""YOLOX's training recipe (arXiv 2107.08430; numbers as LibreYOLO's published trainer): the base recipe is this family's, nearly."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from libreyolo.recipe import DetectionRecipe
from libreyolo.recipe.base import key


@dataclass
class YOLOXRecipe(DetectionRecipe):
    """SGD with a warmed cosine, strong mosaic and mixup; the last `no_aug_epochs` run without them and with the L1 term."""

    sync_bn: bool = key(True, "statistics of BatchNorm over the global batch; acts only with more than one rank")
    momentum: float = key(0.9, "SGD momentum (Adam's beta1 is in betas)")

    def loss_options(self) -> dict[str, Any]:
        return {"epochs": self.epochs, "no_aug_epochs": self.no_aug_epochs}
