"""resnet is the published network and trains on the published loss: names, outputs, losses and gradients, in float64; and its predict."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from libreyolo import LibreYOLO
from libreyolo.data.classify_loader import centre_batch
from libreyolo.engine import checkpoint
from libreyolo.engine.checkpoint import WeightsMeta
from libreyolo.interfaces.batch import ClassifyBatch
from libreyolo.models.resnet import FAMILY
from libreyolo.models.resnet.loss import build as build_loss
from libreyolo.models.resnet.network import SCALES, ResNet, build, infer
from libreyolo.ops.input import apply_input_spec
from tests.family.parity import compare
from tests.family.parity.fill import fill, pictures

RECORD: dict[str, Any] = json.loads((compare.DATA / "resnet.json").read_text())
PREDICTED: dict[str, Any] = json.loads((compare.DATA / "predict-resnet-18.json").read_text())
SIDE = 64


def filled(size: str) -> ResNet:
    net = build(size, 1000)
    fill(net)
    return net


def labelled(labels: list[list[int]], shares: list[list[float]]) -> ClassifyBatch:
    count = len(labels)
    return ClassifyBatch(
        images=pictures(SIDE, SIDE).double(), weight=torch.ones(count), index=torch.arange(count), epoch=0,
        key=torch.zeros(count, 2, dtype=torch.int64), labels=torch.tensor(labels), shares=torch.tensor(shares),
    )  # fmt: skip


@pytest.mark.parametrize("size", SCALES)
def test_names_and_shapes_are_those_of_the_published_weights(size: str) -> None:
    with torch.device("meta"):
        net = build(size, 1000)
    assert compare.keys_of(net) == compare.recorded_keys(f"resnet-{size}")
    assert infer(net.state_dict()) == {"size": size, "nc": 1000}


@pytest.mark.parametrize("size", SCALES)
def test_evaluation_gives_the_recorded_logits(size: str) -> None:
    net = filled(size).double()
    images = pictures(SIDE, SIDE).double()
    compare.take_batch_statistics(net, images)
    with torch.no_grad():
        compare.assert_same_output(net(images), RECORD[size]["forward"], tolerance=1e-7, what=size)


CASES = {
    "18 loss": labelled([[3, 3], [417, 417]], [[1.0, 0.0], [1.0, 0.0]]),
    "50 loss": labelled([[3, 3], [417, 417]], [[1.0, 0.0], [1.0, 0.0]]),
    "18 loss_mixed": labelled([[3, 417], [417, 3]], [[0.7, 0.3], [1.0, 0.0]]),
}


@pytest.mark.parametrize("case", CASES)
def test_training_gives_the_recorded_loss_and_gradients(case: str) -> None:
    size, run = case.split()
    batch, recorded = CASES[case], RECORD[size][run]
    weights = torch.linspace(0.5, 1.5, 1000, dtype=torch.float64) if run == "loss_mixed" else None
    net = filled(size).double().train()
    term = build_loss(1000, class_weights=weights).terms(net(batch.images), batch)["ce"]
    value = term.total * term.scale(term.stats)
    assert float(value.detach()) == pytest.approx(recorded["value"], rel=1e-6)
    norms = compare.gradient_norms(value, dict(net.named_parameters()))
    compare.assert_same_numbers(norms, recorded["gradient_norms"], tolerance=1e-6, what=case)


@pytest.mark.parametrize("row", PREDICTED["rows"], ids=lambda row: "x".join(map(str, row["shape"])))
def test_an_input_is_made_of_a_picture_to_the_bit(row: dict[str, Any]) -> None:
    batch = centre_batch([drawn(*row["shape"][:2])], (row["shape"][2],) * 2, FAMILY.input)
    compare.assert_same_output(apply_input_spec(batch.images, FAMILY.input)[0], row["input"], tolerance=1e-6, what=str(row["shape"]))


def test_classes_of_pictures_are_those_of_the_published_predict(tmp_path: Path) -> None:
    net = filled("18")
    compare.take_batch_statistics(net, pictures(96, 96))
    meta = WeightsMeta("resnet", "18", "classify", {i: f"n{i}" for i in range(1000)}, 96, {})
    checkpoint.write(checkpoint.weights_dict(net.state_dict(), meta), tmp_path / "LibreResNet18-cls.pt")
    model = LibreYOLO(tmp_path / "LibreResNet18-cls.pt")
    for row in PREDICTED["rows"]:
        [found] = model.predict(drawn(*row["shape"][:2]), imgsz=row["shape"][2])
        assert found.top5 == row["top5"]
        assert found.top5conf == pytest.approx(row["top5conf"], abs=1e-4)
        assert found.summary() == f"n{row['top5'][0]} {row['top5conf'][0]:.2f}"


def drawn(height: int, width: int) -> np.ndarray:
    return (pictures(height, width, count=1, seed=99)[0] * 255).round().to(torch.uint8).permute(1, 2, 0).contiguous().numpy()


def test_a_bare_state_dict_of_torchvision_s_names_is_told_by_its_tensors(tmp_path: Path) -> None:
    torch.save(build("34", 10).state_dict(), tmp_path / "resnet34-333f7ec4.pth")
    model = LibreYOLO(tmp_path / "resnet34-333f7ec4.pth")
    assert (model.family.name, model.size, model.nc, model.imgsz) == ("resnet", "34", 10, 224)
