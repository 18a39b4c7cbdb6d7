"""Maps to detections."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from libreyolo.models.standin.network import STRIDE
from libreyolo.ops.nms import class_wise_nms, select_candidates


def centres_of(hw: tuple[int, int], device: torch.device) -> Tensor:
    """Return the cells' centres [h, w, 2] in input pixels."""
    rows, columns = (torch.arange(side, device=device) for side in hw)
    y, x = torch.meshgrid(rows, columns, indexing="ij")
    return (torch.stack([x, y], dim=-1) + 0.5) * STRIDE


def detect(
    output: Tensor, *, conf: float, iou: float, max_det: int, classes: Sequence[int] | None = None, content: Tensor | None = None
) -> list[tuple[Tensor, Tensor, Tensor]]:
    centres = centres_of((output.shape[2], output.shape[3]), output.device).reshape(-1, 2)
    found = []
    for picture in output.flatten(2).transpose(1, 2).float():
        sides = picture[:, :4].exp() * STRIDE
        boxes = torch.cat([centres - sides[:, :2], centres + sides[:, 2:]], dim=1)
        kept = class_wise_nms(select_candidates(boxes, picture[:, 4:].sigmoid(), conf=conf, classes=classes), iou=iou, max_det=max_det)
        found.append((kept.boxes, kept.scores, kept.labels))
    return found
