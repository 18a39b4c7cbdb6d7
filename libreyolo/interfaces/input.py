"""How a family wants its pictures: a fact about the network, kept apart from augmentation."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class InputSpec:
    """A network's input convention.

    channels: order of the three channels.
    scale: what RGB in [0, 1] is multiplied by (255 for networks that take 0..255).
    mean, std: per channel in the network's own order and scale, applied as (x - mean) / std after `scale`.
    resize: "letterbox" keeps the aspect ratio and pads; "stretch" resizes to the input directly; "native" keeps the picture's own size, each side
        filled up to a multiple of `stride` with its mirror image at the right and the bottom.
    filter: which library's bilinear resize the network was evaluated with: "cv2" (OpenCV, no antialiasing) or "pil" (Pillow, antialiased).
    pad: grey value of padding, 0..255.
    pad_position: where the picture sits in its letterbox.
    stride: a side of the input must be a multiple of it.
    """

    channels: Literal["rgb", "bgr"] = "rgb"
    scale: float = 1.0
    mean: tuple[float, float, float] = (0.0, 0.0, 0.0)
    std: tuple[float, float, float] = (1.0, 1.0, 1.0)
    resize: Literal["letterbox", "stretch", "native"] = "letterbox"
    filter: Literal["cv2", "pil"] = "cv2"
    pad: int = 114
    pad_position: Literal["topleft", "center"] = "topleft"
    stride: int = 32
