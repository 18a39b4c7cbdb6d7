"""unet is the published network and trains on the published loss: names, outputs, losses and gradients, in float64; and its predict."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from libreyolo import LibreYOLO
from libreyolo.engine import checkpoint
from libreyolo.engine.checkpoint import WeightsMeta
from libreyolo.models.unet import FAMILY
from libreyolo.models.unet.loss import UNetLoss
from libreyolo.models.unet.network import UNet, build, infer
from libreyolo.ops.input import apply_input_spec
from tests.family.batches import semantic_batch
from tests.family.parity import compare
from tests.family.parity.fill import class_masks, fill, pictures

RECORD: dict[str, Any] = json.loads((compare.DATA / "unet.json").read_text())["s"]
PREDICTED: dict[str, Any] = json.loads((compare.DATA / "predict-unet-s.json").read_text())
HW = (48, 80)


def filled() -> UNet:
    net = build("s", 19)
    fill(net)
    return net


def prepared(images: torch.Tensor) -> torch.Tensor:
    """As the task hands them to the network: the published one normalises them itself."""
    return apply_input_spec(images, FAMILY.input)


def test_names_and_shapes_are_those_of_the_published_weights() -> None:
    with torch.device("meta"):
        net = build("s", 19)
    assert compare.keys_of(net) == compare.recorded_keys("unet-s")
    assert infer(net.state_dict()) == {"size": "s", "nc": 19}


def test_evaluation_gives_the_recorded_logits() -> None:
    net = filled().double()
    images = prepared(pictures(*HW).double())
    compare.take_batch_statistics(net, images)
    with torch.no_grad():
        compare.assert_same_output(net(images), RECORD["forward"]["logits"], tolerance=1e-7, what="logits")


def test_training_gives_the_recorded_losses_and_gradients() -> None:
    net = filled().double().train()
    for module in net.modules():
        if isinstance(module, nn.Dropout2d):
            module.p = 0.0
    batch = semantic_batch(prepared(pictures(*HW).double()), class_masks(*HW, num_classes=19))
    terms = UNetLoss(19, aux_weight=0.4).terms(net(batch.images), batch)
    assert set(terms) == set(RECORD["loss"])
    for name, recorded in RECORD["loss"].items():
        value = terms[name].total * terms[name].scale(terms[name].stats)
        assert float(value.detach()) == pytest.approx(recorded["value"], rel=1e-6)
        norms = compare.gradient_norms(value, dict(net.named_parameters()))
        compare.assert_same_numbers(norms, recorded["gradient_norms"], tolerance=1e-6, what=name)


def test_the_class_map_of_a_picture_of_another_size_is_that_of_the_published_predict(tmp_path: Path) -> None:
    """OpenCV's resize to a rectangle, the means, and logits (not classes) brought back are in it: each of them wrong gives other classes."""
    net = filled()
    compare.take_batch_statistics(net, prepared(pictures(64, 96)))
    meta = WeightsMeta("unet", "s", "semantic", {i: f"n{i}" for i in range(19)}, [64, 96], {})
    checkpoint.write(checkpoint.weights_dict(net.state_dict(), meta), tmp_path / "LibreUNets-sem.pt")
    model = LibreYOLO(tmp_path / "LibreUNets-sem.pt")
    assert model.imgsz == [64, 96]
    picture = (pictures(97, 131, count=1, seed=99)[0] * 255).round().to(torch.uint8).permute(1, 2, 0).contiguous().numpy()
    [found] = model.predict(picture)
    assert list(found.mask.shape) == PREDICTED["shape"]
    found_pixels, recorded = found.mask.reshape(-1)[::7], np.array(PREDICTED["pixels"])
    assert len(np.unique(recorded)) > 10
    assert (found_pixels != recorded).mean() < 0.002  # where two logits are equal but for rounding
    assert sum(found.shares.values()) == pytest.approx(1.0)
