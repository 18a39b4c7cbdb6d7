"""Record data/unet.json and data/predict-unet-s.json from the published package. Run it as a script where that package, not ours, is installed:

pip install libreyolo==1.6.0 && python tests/family/parity/record_unet.py tests/family/parity/data
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
from fill import class_masks, fill, pictures
from PIL import Image
from torch import nn

from libreyolo import LibreYOLO
from libreyolo.models.unet.loss import UNetLoss
from libreyolo.models.unet.nn import LibreUNetNet

HW = (48, 80)
NC = 19
PREDICT_HW = (64, 96)


def filled() -> LibreUNetNet:
    net = LibreUNetNet(size="s", num_classes=NC)
    fill(net)
    return net


def forward_numbers() -> dict[str, Any]:
    """Class logits in evaluation; the package takes RGB in 0..1 and normalises it itself."""
    net = filled().double()
    images = pictures(*HW).double()
    take_batch_statistics(net, images)
    with torch.no_grad():
        return {"logits": summary(net(images))}


def loss_numbers() -> dict[str, Any]:
    """Each head's term as it is trained: the auxiliary one by its weight of 0.4. Without dropout."""
    net = filled().double().train()
    for module in net.modules():
        if isinstance(module, nn.Dropout2d):
            module.p = 0.0
    parameters = dict(net.named_parameters())
    masks = class_masks(*HW, num_classes=NC).long()
    found = UNetLoss(aux_weight=0.4)(net(pictures(*HW).double()), masks)
    kept = [*spread(parameters, 24), "all"]
    numbers: dict[str, Any] = {}
    for term, total in (("main", found["loss_ce"]), ("aux", 0.4 * found["loss_aux"])):
        norms = gradient_norms(total, parameters)
        numbers[term] = {"value": float(total.detach()), "gradient_norms": {name: norms[name] for name in kept}}
    return numbers


def predict_numbers(folder: Path) -> dict[str, Any]:
    """The class map of a picture of another size than the input: every seventh pixel."""
    net = filled()
    take_batch_statistics(net, pictures(*PREDICT_HW))
    meta = {"schema_version": "1.0", "libreyolo_version": "1.6.0", "model_family": "unet", "size": "s", "task": "semantic", "nc": NC}
    names = {i: f"n{i}" for i in range(NC)}
    torch.save({**meta, "names": names, "imgsz": 96, "imgsz_h": 64, "imgsz_w": 96, "model": net.state_dict()}, folder / "LibreUNets-sem.pt")
    drawn = (pictures(97, 131, count=1, seed=99)[0] * 255).round().to(torch.uint8)
    picture = Image.fromarray(np.ascontiguousarray(drawn.permute(1, 2, 0).numpy()))
    found = LibreYOLO(str(folder / "LibreUNets-sem.pt"), device="cpu").predict(picture, imgsz=PREDICT_HW)
    mask = np.asarray((found[0] if isinstance(found, list) else found).semantic_mask.data)
    return {"shape": list(mask.shape), "pixels": mask.reshape(-1)[::7].tolist()}


def main(folder: str) -> None:
    record = {"s": {"forward": forward_numbers(), "loss": loss_numbers()}}
    (Path(folder) / "unet.json").write_text(json.dumps(record, indent=0).replace("\n", "") + "\n")
    with tempfile.TemporaryDirectory() as place:
        (Path(folder) / "predict-unet-s.json").write_text(json.dumps(predict_numbers(Path(place)), separators=(",", ":")) + "\n")


if __name__ == "__main__":
    main(sys.argv[1])
