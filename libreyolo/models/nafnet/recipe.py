"""NAFNet's training recipe (arXiv 2204.04676; numbers as LibreYOLO's published trainer)."""

from __future__ import annotations

from dataclasses import dataclass

from libreyolo.recipe import RestoreRecipe
from libreyolo.recipe.base import key


@dataclass
class NAFNetRecipe(RestoreRecipe):
    """AdamW without decay, one cosine from the first step to a hundredth of the peak."""

    epochs: int = key(100, "epochs of the whole schedule")
    optimizer: str = key("adamw", "sgd, adam or adamw")
    lr0: float = key(0.001, "peak learning rate, used as given whatever the batch")
    weight_decay: float = key(0.0, "weight decay of weights; norms and biases have none")
    warmup_epochs: float = key(0.0, "epochs of warm-up")
    no_aug_epochs: int = key(0, "last epochs at the last learning rate: the tail of the schedules that have one")
    min_lr_ratio: float = key(0.01, "last learning rate over lr0")
    eval_interval: int = key(1, "validate every this many epochs, and after the last")
    workers: int = key(8, "loader processes for each rank")
