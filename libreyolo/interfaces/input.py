"""How a family wants its pictures: a fact about the network, kept apart from augmentation."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

# Means and standard deviations of RGB in [0, 1] over ImageNet, which nearly every network trained on it expects to be taken out.
IMAGENET_MEAN = (0.485, 0.456, 0.406)
IMAGENET_STD = (0.229, 0.224, 0.225)


@dataclass(frozen=True)
class InputSpec:
    """A network's input convention.

    channels: order of the three channels.
    scale: what RGB in [0, 1] is multiplied by (255 for networks that take 0..255).
    mean, std: per channel in the network's own order and scale, applied as (x - mean) / std after `scale`.
    resize: "letterbox" keeps the aspect ratio and pads; "stretch" resizes to the input directly; "crop" keeps the aspect ratio, covers the input and
        cuts off what sticks out; "native" keeps the picture's own size, each side filled up to a multiple of `stride` with its mirror image at the
        right and the bottom.
    filter: which resize the network was evaluated with: "cv2" (OpenCV's bilinear, no antialiasing), "pil" (Pillow's bilinear, antialiased) or
        "pil-bicubic" (Pillow's bicubic).
    crop_pct: with "crop", the part of the covering picture's shorter side that is shown.
    pad: grey value of padding, 0..255.
    pad_position: where the picture sits in its letterbox.
    stride: a side of the input must be a multiple of it.
    """

    channels: Literal["rgb", "bgr"] = "rgb"
    scale: float = 1.0
    mean: tuple[float, float, float] = (0.0, 0.0, 0.0)
    std: tuple[float, float, float] = (1.0, 1.0, 1.0)
    resize: Literal["letterbox", "stretch", "crop", "native"] = "letterbox"
    filter: Literal["cv2", "pil", "pil-bicubic"] = "cv2"
    crop_pct: float = 1.0
    pad: int = 114
    pad_position: Literal["topleft", "center"] = "topleft"
    stride: int = 32
