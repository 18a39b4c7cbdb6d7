"""Record data/yolox.json and data/predict-yolox-n.json from the published package. Run it as a script where that package, not ours, is installed:

pip install libreyolo==1.6.0 && python tests/family/parity/record_yolox.py tests/family/parity/data
"""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import torch
from compare import gradient_norms, spread, summary, take_batch_statistics
from fill import CROWDED, TARGETS, fill, pictures
from PIL import Image

from libreyolo import LibreYOLO
from libreyolo.models.yolox.nn import LibreYOLOXModel

SIDE = 160
HEAVY, HEAVY_SIDE = "mlx", 64  # sizes whose losses are recorded for smaller pictures, and with gradients of their sum only
TERMS = ("iou", "obj", "cls", "l1")
PREDICT = {"conf": 0.25, "iou": 0.45, "max_det": 300}


def forward_numbers(size: str) -> dict[str, Any]:
    """Maps as the package gives them in evaluation: raw shifts, then probabilities."""
    net = LibreYOLOXModel(config=size)
    fill(net)
    net.double()
    images = pictures(SIDE, SIDE).double()
    take_batch_statistics(net, images)
    with torch.no_grad():
        return {f"map{stride}": summary(level) for stride, level in zip((8, 16, 32), net(images), strict=True)}


def loss_numbers(size: str, targets: list[list[tuple[float, ...]]]) -> dict[str, Any]:
    side = HEAVY_SIDE if size in HEAVY else SIDE
    net = LibreYOLOXModel(config=size)
    fill(net)
    net.double().train()
    net.head.use_l1 = True
    rows = torch.zeros(len(targets), max(map(len, targets)), 5)
    for i, boxes in enumerate(targets):
        for j, box in enumerate(boxes):
            rows[i, j] = torch.tensor(box)
    label, x1, y1, x2, y2 = rows.double().unbind(-1)
    rows = torch.stack((label, *(side * part for part in ((x1 + x2) / 2, (y1 + y2) / 2, x2 - x1, y2 - y1))), dim=-1)
    parameters = dict(net.named_parameters())
    output = net(pictures(side, side, count=len(targets)).double(), targets=rows)
    kept = [*spread(parameters, 24), "all"]
    numbers: dict[str, Any] = {}
    if size in HEAVY:
        total = sum(output[f"{term}_loss"] for term in TERMS)
        numbers = {term: {"value": float(output[f"{term}_loss"].detach())} for term in TERMS}
        norms = gradient_norms(total, parameters)
        return numbers | {"sum": {"value": float(total.detach()), "gradient_norms": {name: norms[name] for name in kept}}}
    for term in TERMS:
        total = output[f"{term}_loss"]
        norms = gradient_norms(total, parameters)
        numbers[term] = {"value": float(total.detach()), "gradient_norms": {name: norms[name] for name in kept}}
    return numbers


def predict_numbers(folder: Path) -> dict[str, Any]:
    """Detections of a file and a picture. Statistics are those of inputs in 0..255, the network's own convention."""
    net = LibreYOLOXModel(config="n")
    fill(net)
    take_batch_statistics(net, pictures(SIDE, SIDE) * 255)
    names = {i: f"n{i}" for i in range(80)}
    meta = {"schema_version": "1.0", "libreyolo_version": "1.6.0", "model_family": "yolox", "size": "n", "task": "detect", "nc": 80}
    torch.save({**meta, "names": names, "imgsz": SIDE, "model": net.state_dict()}, folder / "LibreYOLOXn.pt")
    drawn = (pictures(97, 131, count=1, seed=99)[0] * 255).round().to(torch.uint8)
    picture = Image.fromarray(np.ascontiguousarray(drawn.permute(1, 2, 0).numpy()))
    found = LibreYOLO(str(folder / "LibreYOLOXn.pt"), device="cpu").predict(picture, imgsz=SIDE, **PREDICT)
    boxes = (found[0] if isinstance(found, list) else found).boxes
    rows = [[*box, score, int(label)] for box, score, label in zip(boxes.xyxy.tolist(), boxes.conf.tolist(), boxes.cls.tolist(), strict=True)]
    rows.sort(key=lambda row: -row[4])
    return {**PREDICT, "rows": [[round(number, 6) for number in row] for row in rows]}


def main(folder: str) -> None:
    record: dict[str, Any] = {size: {"forward": forward_numbers(size)} for size in "ntsmlx"}
    for size in "ntsmlx":
        record[size]["loss"] = loss_numbers(size, TARGETS)
    record["n"]["loss_crowded"] = loss_numbers("n", CROWDED)
    (Path(folder) / "yolox.json").write_text(json.dumps(record, indent=0).replace("\n", "") + "\n")
    with tempfile.TemporaryDirectory() as place:
        (Path(folder) / "predict-yolox-n.json").write_text(json.dumps(predict_numbers(Path(place))) + "\n")


if __name__ == "__main__":
    main(sys.argv[1])
