"""Record data/resnet.json, data/keys-resnet-*.tsv.gz and data/predict-resnet-18.json from the published package. Run it where that package is:

pip install libreyolo==1.6.0 && python tests/family/parity/record_resnet.py tests/family/parity/data
"""

from __future__ import annotations

import gzip
import json
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import torch
from compare import gradient_norms, keys_of, spread, summary, take_batch_statistics
from fill import fill, pictures
from PIL import Image

from libreyolo import LibreYOLO
from libreyolo.models.resnet.nn import ResNet
from libreyolo.models.resnet.utils import preprocess_numpy
from libreyolo.training.classification import classification_loss

SIDE = 64
SIZES = ("18", "34", "50", "101")
LABELS = [3, 417]
# Height and width of a picture, and the input's side: shorter side first or last, odd margins, shrunk and enlarged.
SHAPES = [(97, 131, 96), (131, 97, 96), (60, 200, 64), (37, 41, 64), (64, 64, 64)]


def forward_numbers(size: str) -> dict[str, Any]:
    net = ResNet(size, 1000)
    fill(net)
    net.double()
    images = pictures(SIDE, SIDE).double()
    take_batch_statistics(net, images)
    with torch.no_grad():
        return summary(net(images))


def loss_numbers(size: str, targets: torch.Tensor, weights: torch.Tensor | None = None) -> dict[str, Any]:
    net = ResNet(size, 1000)
    fill(net)
    net.double().train()
    parameters = dict(net.named_parameters())
    total = classification_loss(net(pictures(SIDE, SIDE).double()), targets, weights)
    norms = gradient_norms(total, parameters)
    return {"value": float(total.detach()), "gradient_norms": {name: norms[name] for name in [*spread(parameters, 24), "all"]}}


def picture(height: int, width: int) -> np.ndarray:
    drawn = (pictures(height, width, count=1, seed=99)[0] * 255).round().to(torch.uint8)
    return np.ascontiguousarray(drawn.permute(1, 2, 0).numpy())


def predict_numbers(folder: Path) -> dict[str, Any]:
    """Inputs made of pictures, and what the network says of each."""
    net = ResNet("18", 1000)
    fill(net)
    take_batch_statistics(net, pictures(96, 96))
    meta = {"schema_version": "1.0", "libreyolo_version": "1.6.0", "model_family": "resnet", "size": "18", "task": "classify", "nc": 1000}
    torch.save({**meta, "names": {i: f"n{i}" for i in range(1000)}, "imgsz": 96, "model": net.state_dict()}, folder / "LibreResNet18-cls.pt")
    model = LibreYOLO(str(folder / "LibreResNet18-cls.pt"), device="cpu")
    rows = []
    for height, width, side in SHAPES:
        shown = picture(height, width)
        found = model.predict(Image.fromarray(shown), imgsz=side)
        probs = (found[0] if isinstance(found, list) else found).probs
        made = summary(torch.from_numpy(preprocess_numpy(shown, side)[0]))
        top5 = [int(k) for k in probs.top5]
        rows.append({"shape": [height, width, side], "input": made, "top5": top5, "top5conf": [float(p) for p in probs.top5conf]})
    return {"rows": rows}


def main(folder: str) -> None:
    record: dict[str, Any] = {}
    for size in SIZES:
        net = ResNet(size, 1000)
        lines = ["name\tshape", *("\t".join(row) for row in keys_of(net))]
        with gzip.GzipFile(Path(folder) / f"keys-resnet-{size}.tsv.gz", "wb", mtime=0) as file:
            file.write("\n".join(lines).encode() + b"\n")
        record[size] = {"forward": forward_numbers(size)}
    mixed = torch.zeros(2, 1000, dtype=torch.float64)
    mixed[0, 3], mixed[0, 417], mixed[1, 417] = 0.7, 0.3, 1.0
    for size in ("18", "50"):
        record[size]["loss"] = loss_numbers(size, torch.tensor(LABELS))
    record["18"]["loss_mixed"] = loss_numbers("18", mixed, torch.linspace(0.5, 1.5, 1000, dtype=torch.float64))
    (Path(folder) / "resnet.json").write_text(json.dumps(record, indent=0).replace("\n", "") + "\n")
    with tempfile.TemporaryDirectory() as place:
        (Path(folder) / "predict-resnet-18.json").write_text(json.dumps(predict_numbers(Path(place))) + "\n")


if __name__ == "__main__":
    main(sys.argv[1])
