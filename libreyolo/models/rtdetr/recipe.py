"""RT-DETR's training recipe (arXiv 2304.08069; numbers as LibreYOLO's published trainer)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from libreyolo.recipe import DetectionRecipe, checks
from libreyolo.recipe.base import key


@dataclass
class RTDETRRecipe(DetectionRecipe):
    """AdamW at a constant rate, a slower backbone, clipped gradients, no mosaic, denoising queries."""

    pretrained: Any = key(False, "true: ImageNet weights for the backbone; a path: such a file, or one of the whole network; false: neither")
    epochs: int = key(72, "epochs of the whole schedule")
    batch: int = key(4, "global batch: pictures per optimiser step over all GPUs")
    optimizer: str = key("adamw", "sgd, adam or adamw")
    lr0: float = key(0.0001, "peak learning rate, used as given whatever the batch")
    weight_decay: float = key(0.0001, "weight decay of weights; norms and biases have none")
    scheduler: str = key("constant", "yoloxwarmcos, linear, cos, flat_cosine, poly, constant or step")
    warmup_epochs: float = key(0.0, "epochs of warm-up")
    no_aug_epochs: int = key(0, "last epochs without mosaic and mixup; also the tail of the schedules that have one")
    clip_max_norm: float = key(0.1, "clip the gradient to this L2 norm; 0: off")
    ema_decay: float = key(0.9999, "decay of the average, approached as decay * (1 - exp(-updates / ema_tau))")
    eval_interval: int = key(1, "validate every this many epochs, and after the last")
    mosaic_prob: float = key(0.0, "probability of a four-picture mosaic")
    mixup_prob: float = key(0.0, "probability of mixing a second picture into a mosaic")
    hsv_prob: float = key(0.5, "probability of colour jitter")
    degrees: float = key(0.0, "rotation of a mosaic, up to this many degrees either way")
    shear: float = key(0.0, "shear of a mosaic, up to this many degrees either way")

    lr_backbone: float = key(0.000005, "peak learning rate of the backbone; follows the schedule of lr0")
    freeze_backbone_norm: bool | None = key(None, "keep the backbone's stem and BatchNorm as they are; null: where its weights are pretrained=")
    num_denoising: int = key(100, "denoising queries of each kind for one picture, about; 0: none")
    label_noise: float = key(0.5, "twice the probability that a denoising query gets a random label")
    box_noise: float = key(1.0, "noise of a denoising box, in halves of its extent")

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("lr_backbone", "num_denoising", "box_noise"):
            checks.at_least(name, getattr(self, name), 0)
        checks.in_range("label_noise", self.label_noise, 0.0, 1.0)

    def network_options(self) -> dict[str, Any]:
        frozen = bool(self.pretrained) if self.freeze_backbone_norm is None else self.freeze_backbone_norm
        return {"frozen_backbone_norm": frozen}

    def lr_scales(self) -> dict[str, float]:
        return {"backbone.": self.lr_backbone / self.lr0} if self.lr0 > 0 else {}

    def loss_options(self) -> dict[str, Any]:
        return {"seed": self.seed, "num_denoising": self.num_denoising, "label_noise": self.label_noise, "box_noise": self.box_noise}
