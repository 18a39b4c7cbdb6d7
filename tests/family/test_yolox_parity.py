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
HEAVY, HEAVY_SIDE = "mlx", 64  # recorded for smaller pictures, and with gradients of the terms' sum only
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


@pytest.fixture(scope="module", params=BY_SIZE)
def network(request: pytest.FixtureRequest) -> YOLOX:
    """One size, filled, in float64: to fill 99 million weights takes longer than to run them."""
    return filled(request.param).double()


def test_evaluation_gives_the_recorded_maps(network: YOLOX) -> None:
    images = pictures(SIDE, SIDE).double()
    compare.take_batch_statistics(network, images)
    with torch.no_grad():
        maps = network(images)
    for stride, level in zip(STRIDES, maps, strict=True):
        level[:, 4:].sigmoid_()  # the published network gives probabilities in evaluation
        recorded = RECORD[network.size]["forward"][f"map{stride}"]
        compare.assert_same_output(level, recorded, tolerance=1e-7, what=f"{network.size} map{stride}")


def test_training_gives_the_recorded_losses_and_gradients(network: YOLOX) -> None:
    assert_recorded_losses(network, "loss", TARGETS)


def test_a_crowded_and_an_empty_picture_give_the_recorded_losses_and_gradients() -> None:
    assert_recorded_losses(filled("n").double(), "loss_crowded", CROWDED)


def assert_recorded_losses(net: YOLOX, run: str, targets: list[list[tuple[float, ...]]]) -> None:
    side = HEAVY_SIDE if net.size in HEAVY else SIDE
    batch = detection_batch(pictures(side, side, count=len(targets)).double(), targets)
    terms = YOLOXLoss(80, epochs=1, no_aug_epochs=1).terms(net.train()(batch.images), batch)
    values = {name: term.total * term.scale(term.stats) for name, term in terms.items()}
    values["sum"] = torch.stack(list(values.values())).sum()
    recorded = RECORD[net.size][run]
    assert set(terms) == set(recorded) - {"sum"}
    for name, numbers in recorded.items():
        assert float(values[name].detach()) == pytest.approx(numbers["value"], rel=1e-6)
        if "gradient_norms" in numbers:
            norms = compare.gradient_norms(values[name], dict(net.named_parameters()))
            compare.assert_same_numbers(norms, numbers["gradient_norms"], tolerance=1e-6, what=f"{net.size} {run} {name}")


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
