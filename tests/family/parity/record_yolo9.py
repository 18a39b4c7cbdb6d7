"""Record data/yolo9.json from the published package. Run it as a script where that package, not ours, is installed:

pip install libreyolo==1.6.0 && python tests/family/parity/record_yolo9.py tests/family/parity/data/yolo9.json
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import torch
from compare import gradient_norms, spread, summary, take_batch_statistics
from fill import CROWDED, TARGETS, fill, pictures

from libreyolo.models.yolo9.nn import LibreYOLO9Model

SIDE = 160
GAINS = {"box": 7.5, "dfl": 1.5, "cls": 0.5}


def forward_numbers(size: str) -> dict[str, Any]:
    net = LibreYOLO9Model(config=size)
    fill(net)
    net.double()
    images = pictures(SIDE, SIDE).double()
    take_batch_statistics(net, images)
    with torch.no_grad():
        output = net(images)
    outputs = {f"raw{stride}": level for stride, level in zip((8, 16, 32), output["raw_outputs"], strict=True)}
    outputs |= {f"x{stride}": output[f"x{stride}"]["features"] for stride in (8, 16, 32)}
    boxes, probabilities = output["predictions"].transpose(1, 2).split((4, 80), dim=2)
    return {name: summary(tensor) for name, tensor in (outputs | {"boxes": boxes, "probabilities": probabilities}).items()}


def loss_numbers(size: str, targets: list[list[tuple[float, ...]]], *, aux: bool) -> dict[str, Any]:
    net = LibreYOLO9Model(config=size)
    if aux:
        net.enable_aux()
    fill(net)
    net.double().train()
    rows = torch.zeros(len(targets), max(map(len, targets)), 5, dtype=torch.float32)
    for i, boxes in enumerate(targets):
        for j, box in enumerate(boxes):
            rows[i, j] = torch.tensor(box)
    images = pictures(SIDE, SIDE, count=len(targets)).double()
    net(images, targets=rows.double())  # makes the loss objects
    parameters = dict(net.named_parameters())
    numbers: dict[str, Any] = {}
    for term in GAINS:
        for head in [net.head, net.aux_head][: 1 + aux]:
            for other, gain in GAINS.items():
                setattr(head._loss_fn, f"{other}_weight", gain if other == term else 0.0)
        total = net(images, targets=rows.double())["total_loss"]
        norms = gradient_norms(total, parameters)
        kept = [*spread(parameters, 24), "all"]
        numbers[term] = {"value": float(total.detach()), "gradient_norms": {name: norms[name] for name in kept}}
    return numbers


def main(path: str) -> None:
    record = {
        size: {
            "forward": forward_numbers(size),
            "loss": loss_numbers(size, TARGETS, aux=False),
            "loss_pgi": loss_numbers(size, TARGETS, aux=True),
        }
        for size in "tsmc"
    }
    record["t"]["loss_crowded"] = loss_numbers("t", CROWDED, aux=True)
    Path(path).write_text(json.dumps(record, indent=0).replace("\n", "") + "\n")


if __name__ == "__main__":
    main(sys.argv[1])
