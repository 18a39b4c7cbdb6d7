"""The YOLOv9 detector (arXiv 2402.13616): GELAN backbone and neck, a head per stride, and the training-only PGI branch.

B batch, C classes, h w cells of a level. A raw map is [B, 64 + C, h, w]: 4 x 16 logits of the distances to the left, top, right and bottom
side (in strides, bins 0 to 15), then C class logits. Parameter names and shapes are those of the published weights: they are a file format.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from libreyolo.errors import UserError
from libreyolo.nn.build_checks import check_build
from libreyolo.nn.conv import ConvBNAct
from libreyolo.nn.gelan import WIDTHS, GelanBackbone, GelanNeck, GelanWidths, RepCspElan, SppElan
from libreyolo.ops.resize import twice
from libreyolo.ops.state import convolution_shape, require_same

REG_MAX = 16
STRIDES = (8, 16, 32)

# The only modules whose tensors depend on the number of classes once the tower width is fixed: a transfer makes exactly these anew.
CLASS_LAYERS: tuple[str, ...] = tuple(f"{head}.cv3.{level}.2" for head in ("head", "aux_head") for level in range(len(STRIDES)))


class YOLO9Output(NamedTuple):
    """Raw maps for strides 8, 16, 32; `aux` are those of the PGI branch, only while training and only where it was built."""

    main: list[Tensor]
    aux: list[Tensor] | None


def build(size: str, nc: int, *, tower_classes: int | None = None, aux: bool = False) -> YOLO9:
    """Return a freshly initialised network.

    size: "t", "s", "m" or "c". nc: number of classes, at least 1. aux: with the PGI branch.
    tower_classes: the class count that fixes the width of the class towers where it differs from `nc`: a fine-tune keeps the towers of the
        weights it began with.
    """
    check_build("yolo9", size, WIDTHS, nc)
    return YOLO9(size, nc, tower_classes=tower_classes, aux=aux)


def infer(state: Mapping[str, Tensor]) -> dict[str, Any]:
    """Return the arguments of `build` that make a network for exactly these tensors: size, nc, tower_classes and aux.

    tower_classes is always said, so that a fine-tune to another class count keeps the towers.

    Reads names and shapes alone. Raises UserError naming the first tensor that is missing, of another shape, or not part of the network.
    """
    tower = convolution_shape(state, "head.cv3.0.0.conv.weight", "yolo9")[0]
    nc = convolution_shape(state, "head.cv3.0.2.weight", "yolo9")[0]
    stem = convolution_shape(state, "backbone.conv0.conv.weight", "yolo9")[0], convolution_shape(state, "backbone.elan1.cv4.conv.weight", "yolo9")[0]
    sizes = [size for size, w in WIDTHS.items() if (w.stem[0], w.stage1) == stem]
    if not sizes:
        raise UserError(f"These weights are not yolo9: no size has {stem[0]} channels in backbone.conv0 and {stem[1]} after backbone.elan1.")
    aux = any(name.startswith("aux") for name in state)
    require_same(state, build_on_meta(sizes[0], nc, tower, aux).state_dict(), "yolo9")
    return {"size": sizes[0], "nc": nc, "tower_classes": tower, "aux": aux}


def tower_width(size: str, classes: int) -> int:
    """Return the channels of the class towers: those of the finest level, or the number of classes up to 100 where that is more."""
    return max(WIDTHS[size].neck[0], min(classes, 100))


def build_on_meta(size: str, nc: int, tower_classes: int | None, aux: bool) -> YOLO9:
    """Return a network without storage, to read names and shapes from."""
    with torch.device("meta"):
        return build(size, nc, tower_classes=tower_classes, aux=aux)


def class_prior(nc: int, stride: int) -> float:
    """Return the logit that a fresh class bias starts from: log(5 / nc / (640 / stride)^2).

    It says that a 640-pixel picture has about 5 objects, spread evenly over the classes and the (640 / stride)^2 cells of a level, so the
    first steps are not spent on learning that nearly everything is background (RetinaNet's prior, arXiv 1708.02002,
    section 3.3, per level).
    """
    return math.log(5 / nc / (640 / stride) ** 2)


class Head(nn.Module):
    """Per level a box tower (cv2, in 4 groups, one per side) and a class tower (cv3). Biases start at 1 and at `class_prior`."""

    def __init__(self, channels: Iterable[int], nc: int, tower: int) -> None:
        super().__init__()
        sides = 4
        channels = list(channels)
        box = max(16, channels[0] // 4, REG_MAX * 4)
        self.cv2 = nn.ModuleList(
            nn.Sequential(
                ConvBNAct(width, box, 3),
                ConvBNAct(box, box, 3, groups=sides),
                nn.Conv2d(box, sides * REG_MAX, 1, groups=sides),
            )
            for width in channels
        )
        self.cv3 = nn.ModuleList(nn.Sequential(ConvBNAct(width, tower, 3), ConvBNAct(tower, tower, 3), nn.Conv2d(tower, nc, 1)) for width in channels)
        for stride, box_tower, class_tower in zip(STRIDES, self.cv2, self.cv3, strict=True):
            # A constant adds nothing to a softmax: 1 is the value of the published recipe, and the tower's weights decide.
            nn.init.constant_(box_tower[-1].bias, 1.0)  # type: ignore[index]
            nn.init.constant_(class_tower[-1].bias, class_prior(nc, stride))  # type: ignore[index]

    def forward(self, features: list[Tensor]) -> list[Tensor]:
        return [torch.cat((box(x), cls(x)), dim=1) for x, box, cls in zip(features, self.cv2, self.cv3, strict=True)]


class AuxNeck(nn.Module):
    """The reversible branch of PGI (section 4.1): its own pyramid pooling and top-down path over the backbone's P3, P4 and unpooled P5."""

    def __init__(self, widths: GelanWidths) -> None:
        super().__init__()
        w = widths
        self.spp = SppElan(w.stages[2], w.neck[2])
        self.elan_a4 = RepCspElan(w.neck[2] + w.stages[1], w.neck[1], w.splits[1], w.depth)
        self.elan_a3 = RepCspElan(w.neck[1] + w.stages[0], w.neck[0], w.splits[0], w.depth)

    def forward(self, p3: Tensor, p4: Tensor, p5: Tensor) -> list[Tensor]:
        a5 = self.spp(p5)
        a4 = self.elan_a4(torch.cat((twice(a5), p4), dim=1))
        a3 = self.elan_a3(torch.cat((twice(a4), p3), dim=1))
        return [a3, a4, a5]


class YOLO9(nn.Module):
    """Images [B, 3, H, W] (RGB in [0, 1], sides a multiple of 32) to raw maps."""

    def __init__(self, size: str, nc: int, *, tower_classes: int | None = None, aux: bool = False) -> None:
        super().__init__()
        widths = WIDTHS[size]
        tower = tower_width(size, nc if tower_classes is None else tower_classes)
        self.size = size
        self.nc = nc
        self.backbone = GelanBackbone(widths)
        self.neck = GelanNeck(widths)
        self.head = Head(widths.neck, nc, tower)
        self.aux = AuxNeck(widths) if aux else None
        self.aux_head = Head(widths.neck, nc, tower) if aux else None

    def features(self, images: Tensor) -> list[Tensor]:
        """Return the neck's features at strides 8, 16 and 32."""
        p3, p4, _, p5 = self.backbone(images)
        return list(self.neck(p3, p4, p5))

    def forward(self, images: Tensor) -> YOLO9Output:
        p3, p4, unpooled_p5, p5 = self.backbone(images)
        main = self.head(self.neck(p3, p4, p5))
        if self.training and self.aux is not None and self.aux_head is not None:
            return YOLO9Output(main, self.aux_head(self.aux(p3, p4, unpooled_p5)))
        return YOLO9Output(main, None)
