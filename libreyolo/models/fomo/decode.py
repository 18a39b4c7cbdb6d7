"""From fomo's logits to cells with an object. B batch, C classes, h w cells, D points of a picture, R radii."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from libreyolo.models.fomo.network import STRIDE
from libreyolo.ops.cells import peaks

Found = tuple[Tensor, Tensor, Tensor, Tensor]

__all__ = ["STRIDE", "locate"]


def locate(output: Tensor, *, conf: float, radii: Sequence[int], classes: Sequence[int] | None = None) -> list[Found]:
    """Return per picture cells [D, 2] (column, row), scores [D], labels [D] and kept [D, R], best first, D possibly 0.

    A cell's score is the probability of its best class other than background; above `conf` it is a candidate. At a radius of r cells the
    best candidate stays and takes away every other in the square of 2 r + 1 cells around it, whatever their classes, then the next best,
    and so on; equal scores go by row, then column. kept[:, i] says which stay at radii[i]; every row stays at one of them. `classes` lets
    only cells of these labels be candidates.
    """
    logits = output.float() if output.dtype in (torch.float16, torch.bfloat16) else output
    scores, labels = logits.softmax(dim=1)[:, 1:].max(dim=1)
    candidates = scores > conf
    if classes is not None:
        candidates &= torch.isin(labels, torch.tensor(list(classes), device=labels.device))
    kept = torch.stack([peaks(scores, candidates, radius) for radius in radii], dim=-1)
    found = []
    for score, label, stays in zip(scores, labels, kept, strict=True):
        rows, columns = stays.any(dim=-1).nonzero(as_tuple=True)
        order = score[rows, columns].argsort(descending=True, stable=True)
        rows, columns = rows[order], columns[order]
        cells = torch.stack([columns, rows], dim=1)
        found.append((cells, score[rows, columns], label[rows, columns], stays[rows, columns]))
    return found
