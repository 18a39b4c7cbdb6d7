"""How a whole picture is put into the network's input, for evaluation and prediction.

h w the original picture, H W the network input.
"""

from __future__ import annotations

import numpy as np

from libreyolo.data.augment.resize import resize_bilinear
from libreyolo.interfaces.input import InputSpec


def letterbox_geometry(hw: tuple[int, int], imgsz: tuple[int, int], spec: InputSpec) -> tuple[tuple[int, int], tuple[float, float, float, float]]:
    """Return the size a picture is resized to and (sx, sy, tx, ty) with x_input = sx * x_original + tx.

    "letterbox": the larger zoom that fits, sides cut down to whole pixels (at least 1); "stretch": the input's size. A letterbox's scales
    are both the zoom, although the cut side was resized by less (under one input pixel at its far end): so published weights were trained
    and are decoded, and their boxes must come out the same here.
    """
    h, w = hw
    if spec.resize == "stretch":
        return imgsz, (imgsz[1] / w, imgsz[0] / h, 0.0, 0.0)
    zoom = min(imgsz[0] / h, imgsz[1] / w)
    # The side that fits exactly must not lose a pixel to rounding: 131 * (160 / 131) may be 159.99999999999997.
    new_h, new_w = (min(limit, max(1, int(side * zoom + 1e-6))) for side, limit in zip(hw, imgsz, strict=True))
    top, left = ((imgsz[0] - new_h) // 2, (imgsz[1] - new_w) // 2) if spec.pad_position == "center" else (0, 0)
    return (new_h, new_w), (zoom, zoom, float(left), float(top))


def letterbox(image: np.ndarray, imgsz: tuple[int, int], spec: InputSpec) -> tuple[np.ndarray, tuple[float, float, float, float]]:
    """Return the picture in the network's input, uint8 [H, W, 3] RGB, and (sx, sy, tx, ty) with x_input = sx * x_original + tx.

    image: uint8 [h, w, 3] RGB at its original size. Grey spec.pad where the picture does not reach.
    """
    assert spec.filter != "pil-bicubic", "families with a bicubic filter crop"
    new_hw, to_input = letterbox_geometry((image.shape[0], image.shape[1]), imgsz, spec)
    resized = resize_bilinear(image, new_hw, spec.filter)
    if new_hw == imgsz:
        return resized, to_input
    canvas = np.full((*imgsz, 3), spec.pad, dtype=np.uint8)
    top, left = int(to_input[3]), int(to_input[2])
    canvas[top : top + new_hw[0], left : left + new_hw[1]] = resized
    return canvas, to_input
