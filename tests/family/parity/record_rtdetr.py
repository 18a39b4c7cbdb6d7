"""Record data/rtdetr.json from the published package. Run it as a script where that package, not ours, is installed:

pip install libreyolo==1.6.0 && python tests/family/parity/record_rtdetr.py tests/family/parity/data/rtdetr.json

Some things of the published code are taken away first. Its overlaps add 1e-6 to areas in fractions of the picture, which makes the best IoU of an
8 x 8 box in 640 px 0.994; ours are taken in pixels. And its random numbers are replaced by constants: no label flips, every sign is -1, every
other draw 0.5.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import torch
from compare import gradient_norms, spread, summary, take_batch_statistics
from fill import CROWDED, TARGETS, fill, pictures

from libreyolo.models.rtdetr import box_ops, loss
from libreyolo.models.rtdetr.hgnetv2 import HGNetv2
from libreyolo.models.rtdetr.model import RTDETR_CONFIGS
from libreyolo.models.rtdetr.nn import RTDETRModel

SIDE = 128  # 336 cells: enough for 300 queries
FACTOR = 1e4  # boxes this much larger have the same overlap, and 1e-6 is nothing beside their areas
TERMS = ("vfl", "bbox", "giou")


def network(size: str) -> RTDETRModel:
    config = RTDETR_CONFIGS[size]
    is_hg = "backbone_arch" in config
    backbone = (
        {"backbone": HGNetv2(name=config["backbone_arch"])} if is_hg else {"backbone_depth": config["backbone_depth"], "backbone_freeze_at": -1}
    )
    net = RTDETRModel(
        num_classes=80,
        **backbone,
        hidden_dim=config["encoder_hidden_dim"],
        dim_feedforward=config["encoder_dim_feedforward"],
        expansion=config["encoder_expansion"],
        decoder_hidden_dim=config["decoder_hidden_dim"],
        decoder_dim_feedforward=1024,
        num_decoder_layers=config["num_decoder_layers"],
        eval_idx=config["eval_idx"],
    )
    fill(net)
    return net.double()


def forward_numbers(size: str) -> dict[str, Any]:
    net, images = network(size), pictures(SIDE, SIDE).double()
    take_batch_statistics(net, images)
    with torch.no_grad():
        output = net(images)
    return {"logits": summary(output["pred_logits"]), "boxes": summary(output["pred_boxes"])}


def loss_numbers(size: str, targets: list[list[tuple[float, ...]]], *, denoising: bool) -> dict[str, Any]:
    net = network(size).train()
    net.decoder.num_denoising = 100 if denoising else 0
    rows = [torch.tensor(boxes, dtype=torch.float32).reshape(-1, 5).double() for boxes in targets]
    given = [{"labels": r[:, 0].long(), "boxes": box_ops.box_xyxy_to_cxcywh(r[:, 1:])} for r in rows]
    torch.set_default_dtype(torch.float64)  # or the denoising boxes would be float32
    output = net(pictures(SIDE, SIDE, count=len(targets)).double(), targets=given)
    torch.set_default_dtype(torch.float32)
    losses = loss.RTDETRLoss(num_classes=80, distributed_normalize=False)(output, given)
    parameters = dict(net.named_parameters())
    kept = [*spread(parameters, 24), "all"]
    numbers: dict[str, Any] = {}
    for term in TERMS:
        total = sum(value for name, value in losses.items() if name.startswith(f"loss_{term}"))
        norms = gradient_norms(total, parameters)
        numbers[term] = {
            "value": float(total.detach()),
            "last_layer": float(losses[f"loss_{term}"].detach()),
            "gradient_norms": {name: norms[name] for name in kept},
        }
    return numbers


def main(path: str) -> None:
    one, pairs = box_ops.box_iou, box_ops.generalized_box_iou
    loss.box_iou = lambda a, b: one(a * FACTOR, b * FACTOR)
    loss.generalized_box_iou = lambda a, b: pairs(a * FACTOR, b * FACTOR)
    loss.SetCriterion._cast_to_float32 = lambda self, outputs: outputs
    torch.rand_like = lambda tensor, **options: torch.full_like(tensor, 0.5, **options)
    torch.randint_like = lambda tensor, *bounds, **options: torch.zeros_like(tensor, **options)
    record: dict[str, Any] = {size: {"forward": forward_numbers(size)} for size in RTDETR_CONFIGS}
    for size in ("r18", "r50m"):
        record[size]["loss"] = loss_numbers(size, TARGETS, denoising=False)
        record[size]["loss_denoising"] = loss_numbers(size, TARGETS, denoising=True)
    record["r18"]["loss_crowded"] = loss_numbers("r18", CROWDED, denoising=True)
    Path(path).write_text(json.dumps(record, indent=0).replace("\n", "") + "\n")


if __name__ == "__main__":
    main(sys.argv[1])
