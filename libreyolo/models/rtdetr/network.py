"""The RT-DETR detector (arXiv 2304.08069): backbone, hybrid encoder, decoder.

Parameter names and shapes are those of the published weights: they are a file format.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from libreyolo.errors import UserError
from libreyolo.models.rtdetr.decoder import Decoder, Layers
from libreyolo.nn.build_checks import check_build
from libreyolo.nn.denoising import Denoising, no_queries
from libreyolo.nn.hgnetv2 import HGNetv2
from libreyolo.nn.hybrid_encoder import HybridEncoder
from libreyolo.nn.presnet import PResNet
from libreyolo.ops.state import require_same


@dataclass(frozen=True)
class Plan:
    """A size.

    backbone: depth of a ResNet or size of an HGNetv2. width, hidden, expansion: of the encoder. eval_layer: the last that evaluation runs.
    """

    backbone: int | str
    width: int = 256
    hidden: int = 1024
    expansion: float = 1.0
    num_layers: int = 6
    eval_layer: int = 5


PLANS: Mapping[str, Plan] = {
    "r18": Plan(18, expansion=0.5, num_layers=3, eval_layer=2),
    "r34": Plan(34, expansion=0.5, num_layers=4, eval_layer=3),
    "r50": Plan(50),
    "r50m": Plan(50, expansion=0.5, eval_layer=2),
    "r101": Plan(101, width=384, hidden=2048),
    "l": Plan("l"),
    "x": Plan("x", width=384, hidden=2048),
}
MOST_LAYERS = max(plan.num_layers for plan in PLANS.values())

# The only modules whose tensors depend on the number of classes: a transfer makes exactly these anew.
CLASS_LAYERS: tuple[str, ...] = (
    "decoder.denoising_class_embed",
    "decoder.enc_score_head",
    *(f"decoder.dec_score_head.{layer}" for layer in range(MOST_LAYERS)),
)


class RTDETROutput(NamedTuple):
    """What the decoder says. matching: of the queries that are matched and evaluated; L is 1 when evaluating, else all layers and the encoder.

    denoised: of the denoising queries that `denoising` describes, all layers; None when evaluating. hw: height and width of the input in pixels.
    """

    matching: Layers
    denoised: Layers | None
    denoising: Denoising | None
    hw: tuple[int, int]


def build(size: str, nc: int, *, frozen_backbone_norm: bool = False) -> RTDETR:
    """Return a freshly initialised network.

    size: a key of PLANS. nc: number of classes, at least 1. frozen_backbone_norm: the backbone's stem and BatchNorm need no gradient.
    """
    check_build("rtdetr", size, PLANS, nc)
    net = RTDETR(size, nc)
    if frozen_backbone_norm:
        still = [net.backbone.stem, *(m for m in net.backbone.modules() if isinstance(m, nn.BatchNorm2d))]
        for parameter in (p for module in still for p in module.parameters()):
            parameter.requires_grad_(False)
    return net


def infer(state: Mapping[str, Tensor]) -> dict[str, Any]:
    """Return the arguments of `build` that make a network for exactly these tensors: size and nc.

    Reads names and shapes alone. Raises UserError naming the first tensor that is missing, of another shape, or not part of the network.
    """
    nc = _width(state, "decoder.enc_score_head.weight")
    size = _size(state)
    with torch.device("meta"):
        expected = build(size, nc).state_dict()
    require_same(state, expected, "rtdetr")
    return {"size": size, "nc": nc}


def from_backbone(state: Mapping[str, Tensor], size: str) -> dict[str, Tensor] | None:
    """Return the tensors of an ImageNet backbone file under this network's names, None where they are not those of this size's backbone.

    Such a file holds the backbone alone, with or without "backbone." before its names; a classifier that is left in it is not looked at.
    """
    with torch.device("meta"):
        wanted = {n: t.shape for n, t in build(size, 1).backbone.state_dict().items() if not n.endswith("num_batches_tracked")}
    bare = {name.removeprefix("backbone."): tensor for name, tensor in state.items()}
    if any(name not in bare or bare[name].shape != shape for name, shape in wanted.items()):
        return None
    return {f"backbone.{name}": bare[name] for name in wanted}


class RTDETR(nn.Module):
    """Images [B, 3, H, W] (RGB in [0, 1], sides a multiple of 32) to boxes with class logits.

    With `denoising` every layer answers, as the loss needs it; the queries themselves are left out when evaluating, so that a validation loss says
    how pictures are detected and does not depend on how they are grouped.
    """

    def __init__(self, size: str, nc: int) -> None:
        super().__init__()
        plan = PLANS[size]
        self.size, self.nc = size, nc
        backbone: PResNet | HGNetv2 = PResNet(plan.backbone) if isinstance(plan.backbone, int) else HGNetv2(plan.backbone)
        self.backbone = backbone
        self.encoder = HybridEncoder(backbone.out_channels, plan.width, plan.hidden, plan.expansion)
        self.decoder = Decoder(plan.width, nc, plan.num_layers, plan.eval_layer)

    def forward(self, images: Tensor, denoising: Denoising | None = None) -> RTDETROutput:
        if denoising is not None and not self.training:
            denoising = no_queries(denoising.labels, denoising.boxes)
        matching, denoised = self.decoder(self.encoder(self.backbone(images)), denoising)
        return RTDETROutput(matching, denoised, denoising, (images.shape[2], images.shape[3]))


def _size(state: Mapping[str, Tensor]) -> str:
    """Return the only size that the tensors can be of."""
    if "backbone.stem.stem1.conv.weight" in state:
        return "x" if _width(state, "encoder.input_proj.0.0.weight") == PLANS["x"].width else "l"
    stage = "backbone.res_layers"
    if f"{stage}.0.blocks.0.branch2c.conv.weight" not in state:
        return "r34" if f"{stage}.0.blocks.2.branch2a.conv.weight" in state else "r18"
    if f"{stage}.2.blocks.6.branch2a.conv.weight" in state:
        return "r101"
    return "r50m" if "encoder.fpn_blocks.0.conv3.conv.weight" in state else "r50"


def _width(state: Mapping[str, Tensor], name: str) -> int:
    """Return the first dimension of a matrix or kernel."""
    if name not in state or state[name].ndim < 2:
        raise UserError(f"These weights are not rtdetr: they have no {name}.")
    return int(state[name].shape[0])
