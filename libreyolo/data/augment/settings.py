"""The numbers that steer augmentation, named as the training arguments, and its phases as a function of the epoch."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields
from typing import Literal

from libreyolo.errors import UserError

_PROBABILITIES = ("mosaic_prob", "mixup_prob", "hsv_prob", "flip_prob", "flipud")


@dataclass(frozen=True)
class AugmentSettings:
    """How training pictures are changed.

    imgsz: (height, width) of the network input, pixels.
    mosaic_prob: share of pictures made of four.
    mixup_prob: share of the mosaic pictures blended half and half with another picture (of all pictures with `affine_without_mosaic`).
    hsv_prob, hsv_gain: share of pictures whose colours change, and the largest change: hue by +-gain of the colour circle, saturation and
        value by a factor in 1 +- gain.
    flip_prob, flipud: share of pictures mirrored left-right and upside down.
    degrees, translate, shear: largest rotation (degrees), shift (share of the input's side) and shear (degrees).
    mosaic_scale: smallest and largest zoom of the affine; mixup_scale: of the blended picture, relative to fitting the input.
    perspective: largest perspective coefficient, per pixel of the mosaic's canvas; 0.001 is already strong.
    epochs, no_aug_epochs: the last `no_aug_epochs` of `epochs` run without mosaic, mixup and affine; flips and colours stay.
    max_labels: most boxes of a picture; where there are more, the largest are kept.
    affine_without_mosaic: whether pictures that are no mosaic get affine and mixup too (a family's recipe); usually they are only fitted.
    resize: how a picture that is no mosaic is fitted to the input: its long side filling it ("letterbox") or both sides ("stretch"), as the
        family evaluates.
    """

    imgsz: tuple[int, int]
    mosaic_prob: float = 1.0
    mixup_prob: float = 0.0
    hsv_prob: float = 1.0
    hsv_gain: tuple[float, float, float] = (0.015, 0.7, 0.4)
    flip_prob: float = 0.5
    flipud: float = 0.0
    degrees: float = 0.0
    translate: float = 0.1
    mosaic_scale: tuple[float, float] = (0.5, 1.5)
    mixup_scale: tuple[float, float] = (0.5, 1.5)
    shear: float = 0.0
    perspective: float = 0.0
    epochs: int = 1
    no_aug_epochs: int = 0
    max_labels: int = 300
    affine_without_mosaic: bool = False
    resize: Literal["letterbox", "stretch"] = "letterbox"

    def enough_for(self, hw: tuple[int, int]) -> tuple[int, int]:
        """Return the size that a picture of (h, w) is shrunk to fit: the input, or, where pictures are stretched, what covers it.

        A function of the picture alone, never of how it is shown: what it becomes must not depend on who else in the batch shows it.
        """
        if self.resize == "letterbox":
            return self.imgsz
        zoom = max(self.imgsz[0] / hw[0], self.imgsz[1] / hw[1])
        return math.ceil(hw[0] * zoom), math.ceil(hw[1] * zoom)

    def __post_init__(self) -> None:
        # Recipes and YAML files give lists; tuples make the settings hashable.
        for field in fields(self):
            value = getattr(self, field.name)
            if isinstance(value, list):
                object.__setattr__(self, field.name, tuple(value))
        if min(self.imgsz) < 1:
            raise UserError(f"imgsz={self.imgsz} must be at least one pixel high and wide.")
        for name in _PROBABILITIES:
            if not 0 <= getattr(self, name) <= 1:
                raise UserError(f"{name}={getattr(self, name)} is a share of the pictures; give a number from 0 to 1.")
        for name in ("mosaic_scale", "mixup_scale"):
            low, high = getattr(self, name)
            if not 0 < low <= high:
                raise UserError(f"{name}={getattr(self, name)} must be two positive zooms, the smaller first, such as [0.5, 1.5].")
        if min(self.hsv_gain) < 0 or max(self.hsv_gain) > 1:
            raise UserError(f"hsv_gain={self.hsv_gain} must be three numbers from 0 to 1.")
        if self.translate < 0 or self.degrees < 0 or not 0 <= self.shear < 90:
            raise UserError(
                f"translate={self.translate}, degrees={self.degrees} and shear={self.shear} are largest changes; give numbers of at "
                "least 0 (shear under 90)."
            )
        if not 0 <= self.perspective <= 0.001:
            raise UserError(f"perspective={self.perspective} must be from 0 to 0.001; beyond that a picture folds over itself.")
        if self.max_labels < 1 or self.no_aug_epochs < 0:
            raise UserError(f"max_labels={self.max_labels} must be at least 1 and no_aug_epochs={self.no_aug_epochs} at least 0.")

    def strong(self, epoch: int) -> bool:
        """Whether the zero-based `epoch` still runs mosaic, mixup and affine."""
        return epoch < self.epochs - self.no_aug_epochs
