"""Images [B, 3, H, W] to [B, 4 + C, H/16, W/16]: logarithms of the four distances from a cell's centre in cells, then class logits."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from libreyolo.errors import UserError
from libreyolo.ops.state import require_same

STRIDE = 16
CLASS_LAYERS = ("classes",)


def build(size: str, nc: int) -> StandIn:
    return StandIn(nc)


def infer(state: Mapping[str, Tensor]) -> dict[str, Any]:
    if "classes.weight" not in state:
        raise UserError("These weights are not standin: classes.weight is missing.")
    nc = state["classes.weight"].shape[0]
    with torch.device("meta"):
        require_same(state, build("a", nc).state_dict(), "standin")
    return {"size": "a", "nc": nc}


class StandIn(nn.Module):
    """Four convolutions of stride 2 and two heads."""

    def __init__(self, nc: int) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        for before, after in ((3, 8), (8, 16), (16, 32), (32, 32)):
            layers += [nn.Conv2d(before, after, 3, 2, 1, bias=False), nn.BatchNorm2d(after), nn.ReLU()]
        self.trunk = nn.Sequential(*layers)
        self.sides, self.classes = nn.Conv2d(32, 4, 1), nn.Conv2d(32, nc, 1)

    def forward(self, images: Tensor) -> Tensor:
        x = self.trunk(images)
        return torch.cat([self.sides(x), self.classes(x)], dim=1)
