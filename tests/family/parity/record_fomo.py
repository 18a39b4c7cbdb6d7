"""Record data/fomo.json, data/predict-fomo.json and data/keys-fomo-*.tsv.gz from the published package. Run it as a script where that package, not
ours, is installed:

pip install libreyolo==1.6.0 && python tests/family/parity/record_fomo.py tests/family/parity/data
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
from fill import CROWDED, TARGETS, fill, pictures
from PIL import Image

from libreyolo.models.fomo import LibreFOMO
from libreyolo.models.fomo.dataset import _boxes_xyxy_to_grid
from libreyolo.models.fomo.loss import FOMOLoss
from libreyolo.models.fomo.nn import LibreFOMOModel

SIDES = {"s": 96, "m": 192, "l": 224}
STRIDE = 8
NC = 80  # of the targets' classes
PREDICT = {"conf": 0.25, "max_det": 300}


def forward_numbers(size: str) -> dict[str, Any]:
    net = LibreFOMOModel(size, 1)
    fill(net)
    net.double()
    images = pictures(SIDES[size], SIDES[size]).double()
    take_batch_statistics(net, images)
    with torch.no_grad():
        return summary(net(images))


def loss_numbers(size: str, targets: list[list[tuple[float, ...]]]) -> dict[str, Any]:
    side = SIDES["s"]
    net = LibreFOMOModel(size, NC)
    fill(net)
    net.double().train()
    grids = []
    for rows in targets:
        table = np.array(rows, np.float32).reshape(-1, 5)
        grids.append(_boxes_xyxy_to_grid(table[:, 1:].astype(np.float64) * side, table[:, 0].astype(np.int64), side, side // STRIDE))
    criterion = FOMOLoss(NC, 100.0).double()
    total = criterion(net(pictures(side, side, count=len(targets)).double()), torch.stack(grids))["total_loss"]
    parameters = dict(net.named_parameters())
    norms = gradient_norms(total, parameters)
    cells = [cell for grid in grids for cell in grid.flatten().tolist()]
    kept = {name: norms[name] for name in [*spread(parameters, 24), "all"]}
    return {"value": float(total.detach()), "objects": {i: c for i, c in enumerate(cells) if c}, "gradient_norms": kept}


def predict_numbers(folder: Path, size: str) -> dict[str, Any]:
    """Points of a file and a picture. Statistics are those of inputs in [-1, 1], the network's own convention."""
    side = SIDES[size]
    net = LibreFOMOModel(size, 8)
    fill(net)
    take_batch_statistics(net, pictures(side, side) * 2 - 1)
    meta = {"schema_version": "1.0", "libreyolo_version": "1.6.0", "model_family": "fomo", "size": size, "task": "point", "nc": 8}
    path = folder / f"LibreFOMO{size}-point.pt"
    torch.save({**meta, "names": {i: f"n{i}" for i in range(8)}, "imgsz": side, "model": net.state_dict()}, path)
    drawn = (pictures(97, 131, count=1, seed=99)[0] * 255).round().to(torch.uint8)
    picture = Image.fromarray(np.ascontiguousarray(drawn.permute(1, 2, 0).numpy()))
    found = LibreFOMO(str(path), size=size, device="cpu").predict(picture, **PREDICT)
    points = (found[0] if isinstance(found, list) else found).points
    rows = torch.as_tensor(points.data).tolist()
    return {**PREDICT, "rows": [[round(number, 6) for number in row] for row in rows]}


def main(folder: str) -> None:
    record: dict[str, Any] = {size: {"forward": forward_numbers(size), "loss": loss_numbers(size, TARGETS)} for size in SIDES}
    record["s"]["loss_crowded"] = loss_numbers("s", CROWDED)
    (Path(folder) / "fomo.json").write_text(json.dumps(record, indent=0).replace("\n", "") + "\n")
    with tempfile.TemporaryDirectory() as place:
        found = {size: predict_numbers(Path(place), size) for size in SIDES}
    (Path(folder) / "predict-fomo.json").write_text(json.dumps(found) + "\n")
    for size in SIDES:
        lines = "".join(f"{name}\t{shape}\n" for name, shape in keys_of(LibreFOMOModel(size, 1)))
        with gzip.GzipFile(Path(folder) / f"keys-fomo-{size}.tsv.gz", "wb", mtime=0) as file:
            file.write(f"name\tshape\n{lines}".encode())


if __name__ == "__main__":
    main(sys.argv[1])
