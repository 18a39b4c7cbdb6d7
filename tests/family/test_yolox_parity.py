"""yolox is the published network and trains on the published loss: names, outputs, losses and gradients, in float64; and its predict."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from libreyolo import LibreYOLO
from libreyolo.engine import checkpoint
from libreyolo.engine.checkpoint import WeightsMeta
from libreyolo.models.yolox.loss import YOLOXLoss
from libreyolo.models.yolox.network import SCALES, STRIDES, YOLOX, build, infer
from tests.family.batches import detection_batch
from tests.family.parity import compare
from tests.family.parity.fill import CROWDED, TARGETS, fill, pictures

RECORD: dict[str, Any] = json.loads((compare.DATA / "yolox.json").read_text())
PREDICTED: dict[str, Any] = json.loads((compare.DATA / "predict-yolox-n.json").read_text())
SIDE = 160
HEAVY = "mlx"
BY_SIZE = [pytest.param(size, marks=pytest.mark.slow if size in HEAVY else ()) for size in SCALES]


def filled(size: str) -> YOLOX:
    net = build(size, 80)
    fill(net)
    return net


@pytest.mark.parametrize("size", SCALES)
def test_names_and_shapes_are_those_of_the_published_weights(size: str) -> None:
    with torch.device("meta"):
        net = build(size, 80)
    assert compare.keys_of(net) == compare.recorded_keys(f"yolox-{size}")
    assert infer(net.state_dict()) == {"size": size, "nc": 80}


@pytest.mark.parametrize("size", BY_SIZE)
def test_evaluation_gives_the_recorded_maps(size: str) -> None:
    net = filled(size).double()
    images = pictures(SIDE, SIDE).double()
    compare.take_batch_statistics(net, images)
    with torch.no_grad():
        maps = net(images)
    for stride, level in zip(STRIDES, maps, strict=True):
        level[:, 4:].sigmoid_()  # the published network gives probabilities in evaluation
        compare.assert_same_output(level, RECORD[size]["forward"][f"map{stride}"], tolerance=1e-7, what=f"{size} map{stride}")


@pytest.mark.parametrize(("size", "run"), [(size, run) for size in "nts" for run in ("loss", "loss_crowded") if run in RECORD[size]])
def test_training_gives_the_recorded_losses_and_gradients(size: str, run: str) -> None:
    targets = CROWDED if run == "loss_crowded" else TARGETS
    net = filled(size).double().train()
    batch = detection_batch(pictures(SIDE, SIDE, count=len(targets)).double(), targets)
    terms = YOLOXLoss(80, epochs=1, no_aug_epochs=1).terms(net(batch.images), batch)
    assert set(terms) == set(RECORD[size][run])
    for name, recorded in RECORD[size][run].items():
        value = terms[name].total * terms[name].scale(terms[name].stats)
        assert float(value.detach()) == pytest.approx(recorded["value"], rel=1e-6)
        norms = compare.gradient_norms(value, dict(net.named_parameters()))
        compare.assert_same_numbers(norms, recorded["gradient_norms"], tolerance=1e-6, what=f"{size} {run} {name}")


def test_detections_of_a_file_and_a_picture_are_those_of_the_published_predict(tmp_path: Path) -> None:
    """BGR in 0..255, Pillow's resize and the padding are in it: each of them wrong gives other boxes."""
    net = filled("n")
    compare.take_batch_statistics(net, pictures(SIDE, SIDE) * 255)
    meta = WeightsMeta("yolox", "n", "detect", {i: f"n{i}" for i in range(80)}, SIDE, {})
    checkpoint.write(checkpoint.weights_dict(net.state_dict(), meta), tmp_path / "LibreYOLOXn.pt")
    picture = (pictures(97, 131, count=1, seed=99)[0] * 255).round().to(torch.uint8).permute(1, 2, 0).contiguous().numpy()
    settings = {key: PREDICTED[key] for key in ("conf", "iou", "max_det")}
    [found] = LibreYOLO(tmp_path / "LibreYOLOXn.pt").predict(picture, **settings)

    assert len(found) == len(PREDICTED["rows"]) > 50
    assert len(set(found.cls)) > 20
    missing = []
    for *box, score, label in PREDICTED["rows"]:
        near = (found.cls == label) & (np.abs(found.conf - score) < 2e-3) & (np.abs(found.xyxy - box).max(axis=1) < 0.1)
        missing += [] if near.any() else [(label, score, box)]
    assert not missing
