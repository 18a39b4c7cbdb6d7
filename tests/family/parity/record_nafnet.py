"""Record data/nafnet.json and data/keys-nafnet-*.tsv.gz from the published package. Run it as a script where that package, not ours, is installed:

pip install libreyolo==1.6.0 && python tests/family/parity/record_nafnet.py tests/family/parity/data
"""

from __future__ import annotations

import gzip
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch
from compare import gradient_norms, keys_of, spread, summary
from fill import fill, pictures
from PIL import Image
from torch import nn

from libreyolo.models.nafnet.model import NAFNET_SIZE_CONFIGS, LibreNAFNet
from libreyolo.models.nafnet.nn import NAFNetLocal, use_global_pooling
from libreyolo.validation.restore_validator import psnr_rgb, ssim_rgb

EPS = 1e-3


def network(size: str) -> nn.Module:
    net = NAFNetLocal(**NAFNET_SIZE_CONFIGS[size])
    fill(net)
    return net.double().eval()


def forward_numbers(size: str, height: int, width: int, count: int) -> dict[str, Any]:
    with torch.no_grad():
        return summary(network(size)(pictures(height, width, count=count).double()))


def loss_numbers(size: str) -> dict[str, Any]:
    """The published trainer's loss in its own words: the mean of sqrt(difference^2 + eps^2), with pooling over the whole crop."""
    net = network(size).train()
    use_global_pooling(net)
    difference = net(pictures(64, 80).double()) - pictures(64, 80, seed=4321).double()
    total = (difference.square() + EPS**2).sqrt().mean()
    parameters = dict(net.named_parameters())
    norms = gradient_norms(total, parameters)
    kept = [*spread(parameters, 24), "all"]
    psnr = -10 * float(torch.log10(difference.detach().square().mean()))
    return {"value": float(total.detach()), "psnr": psnr, "gradient_norms": {name: norms[name] for name in kept}}


def similarity_numbers() -> dict[str, float]:
    one, other = pictures(20, 24, count=2).double()
    return {"psnr": float(psnr_rgb(one, other)), "ssim": float(ssim_rgb(one, other))}


def predict_numbers() -> dict[str, Any]:
    """A picture whose sides are no multiple of 16, through the published predict; weights made small so that few values are clipped."""
    model = LibreNAFNet(size="s", device="cpu")
    fill(model.model)
    with torch.no_grad():
        model.model.ending.weight.mul_(1e-3)
        model.model.ending.bias.mul_(1e-3)
    drawn = (pictures(97, 131, count=1, seed=99)[0] * 255).round().to(torch.uint8)
    picture = Image.fromarray(np.ascontiguousarray(drawn.permute(1, 2, 0).numpy()))
    found = model.predict(picture)
    result = found[0] if isinstance(found, list) else found
    restored = np.asarray(getattr(result.restored, "data", result.restored))
    assert restored.dtype == np.uint8, restored.dtype
    return {"summary": summary(torch.from_numpy(restored.copy()))}


def main(folder: str) -> None:
    record: dict[str, Any] = {}
    for size in "sl":
        record[size] = {"forward": forward_numbers(size, 64, 80, 2), "loss": loss_numbers(size)}
        rows = "".join(f"{name}\t{shape}\n" for name, shape in keys_of(network(size)))
        with gzip.GzipFile(Path(folder) / f"keys-nafnet-{size}.tsv.gz", "wb", mtime=0) as file:
            file.write(f"name\tshape\n{rows}".encode())
    # A side above 384 is pooled locally; 70 is no multiple of 16.
    record["s"]["local"] = forward_numbers("s", 70, 500, 1)
    record["similarity"] = similarity_numbers()
    record["s"]["predict"] = predict_numbers()
    (Path(folder) / "nafnet.json").write_text(json.dumps(record, indent=0).replace("\n", "") + "\n")


if __name__ == "__main__":
    main(sys.argv[1])
