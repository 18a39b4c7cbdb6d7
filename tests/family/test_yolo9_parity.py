"""yolo9 is the published network and trains on the published loss: names, outputs, losses and gradients, in float64."""

from __future__ import annotations

import json
from typing import Any

import pytest
import torch
from torch import Tensor

from libreyolo.models.yolo9.decode import decode, detect
from libreyolo.models.yolo9.loss import YOLO9Loss
from libreyolo.models.yolo9.network import STRIDES, YOLO9, YOLO9Output, build, infer, tower_width
from tests.family.batches import detection_batch
from tests.family.parity import compare
from tests.family.parity.fill import CROWDED, TARGETS, fill, pictures

RECORD: dict[str, Any] = json.loads((compare.DATA / "yolo9.json").read_text())
SIDE = 160
SIZES = ("t", "s", "m", "c")


def filled(size: str, *, aux: bool = False) -> YOLO9:
    net = build(size, 80, aux=aux)
    fill(net)
    return net


@pytest.mark.parametrize("size", SIZES)
def test_names_and_shapes_are_those_of_the_published_weights(size: str) -> None:
    with_branch = compare.recorded_keys(f"yolo9-{size}")
    plain = [row for row in with_branch if not row[0].startswith("aux")]
    assert len(with_branch) > len(plain) > 900
    with torch.device("meta"):
        assert compare.keys_of(build(size, 80)) == plain
        assert compare.keys_of(build(size, 80, aux=True)) == with_branch


@pytest.mark.parametrize("size", SIZES)
def test_infer_reads_the_arguments_of_build_from_shapes(size: str) -> None:
    with torch.device("meta"):
        state = {
            name: torch.empty([int(side) for side in shape.split("x") if side != "scalar"]) for name, shape in compare.recorded_keys(f"yolo9-{size}")
        }
    assert infer(state) == {"size": size, "nc": 80, "tower_classes": tower_width(size, 80), "aux": True}


@pytest.mark.parametrize("size", SIZES)
def test_evaluation_gives_the_recorded_maps_features_and_boxes(size: str) -> None:
    net = filled(size).double()
    images = pictures(SIDE, SIDE).double()
    compare.take_batch_statistics(net, images)
    with torch.no_grad():
        output, features = net(images), net.features(images)
    boxes, probabilities = decode(output)
    found = {f"raw{stride}": level for stride, level in zip(STRIDES, output.main, strict=True)}
    found |= {f"x{stride}": level for stride, level in zip(STRIDES, features, strict=True)}
    found |= {"boxes": boxes, "probabilities": probabilities}
    assert set(found) == set(RECORD[size]["forward"])
    for name, tensor in found.items():
        compare.assert_same_output(tensor, RECORD[size]["forward"][name], tolerance=1e-7, what=f"{size} {name}")


def test_float32_evaluation_stays_within_rounding_of_the_recorded_maps() -> None:
    net, images = filled("t"), pictures(SIDE, SIDE)
    compare.take_batch_statistics(net, images)
    with torch.no_grad():
        output = net(images)
    for stride, level in zip(STRIDES, output.main, strict=True):
        compare.assert_same_output(level, RECORD["t"]["forward"][f"raw{stride}"], tolerance=2e-3, what=f"stride {stride}")


LOSSES = [
    pytest.param(size, run, marks=pytest.mark.slow if size in "mc" else ())
    for size in SIZES
    for run in ("loss", "loss_pgi", "loss_crowded")
    if run in RECORD[size]
]


@pytest.mark.parametrize(("size", "run"), LOSSES)
def test_training_gives_the_recorded_losses_and_gradients(size: str, run: str) -> None:
    targets = CROWDED if run == "loss_crowded" else TARGETS
    net = filled(size, aux=run != "loss").double().train()
    batch = detection_batch(pictures(SIDE, SIDE, count=len(targets)).double(), targets)
    terms = YOLO9Loss(80).terms(net(batch.images), batch)
    assert set(terms) == {"box", "cls", "dfl"} | (set() if run == "loss" else {"aux_box", "aux_cls", "aux_dfl"})
    for name, recorded in RECORD[size][run].items():
        value = sum(
            (terms[key].total * terms[key].scale(terms[key].stats.double()) for key in (name, f"aux_{name}") if key in terms),
            torch.zeros(()),
        )
        assert float(value.detach()) == pytest.approx(recorded["value"], rel=1e-6)
        norms = compare.gradient_norms(value, dict(net.named_parameters()))
        compare.assert_same_numbers(norms, recorded["gradient_norms"], tolerance=1e-6, what=f"{size} {run} {name}")


def letterboxed_picture() -> Tensor:
    """Return a 131 x 97 picture on a 160 x 160 canvas, top left, bilinear, grey 114: [1, 3, 160, 160] in [0, 1]."""
    picture = (pictures(97, 131, count=1, seed=99) * 255).round()
    resized = torch.nn.functional.interpolate(picture, size=(118, 160), mode="bilinear", align_corners=False).round()
    canvas = torch.full((1, 3, SIDE, SIDE), 114.0)
    canvas[:, :, :118] = resized
    return canvas / 255


def test_detections_of_a_picture_are_those_of_the_published_predict() -> None:
    recorded = json.loads((compare.DATA / "predict-yolo9-t.json").read_text())
    net = filled("t")
    compare.take_batch_statistics(net, pictures(SIDE, SIDE))
    with torch.no_grad():
        output = net(letterboxed_picture())
    settings = {"conf": recorded["conf"], "iou": recorded["iou"], "max_det": recorded["max_det"]}
    scale = SIDE / 131
    [(boxes, scores, labels)] = detect(output, **settings, content=torch.tensor([[0.0, 0.0, SIDE, 97 * scale]]))

    # The record's picture was resized by OpenCV, whose rounding differs from torch's by one grey level here and there: 1e-3 of a score.
    assert len(scores) == 300
    assert (scores[:-1] >= scores[1:]).all()
    assert float(scores.sum()) == pytest.approx(recorded["sum_scores"], rel=2e-3)
    assert (torch.bincount(labels, minlength=80) - torch.tensor(recorded["labels"])).abs().sum() <= 8
    for *box, score, label in recorded["top"]:
        same = (labels == int(label)) & ((scores - score).abs() < 3e-3) & ((boxes / scale - torch.tensor(box)).abs().amax(dim=1) < 0.5)
        assert same.any(), f"class {label} at {box} with {score} is missing"


def test_detect_reads_a_plain_list_of_maps_and_keeps_asked_classes() -> None:
    net = filled("t").eval()
    with torch.no_grad():
        output = net(pictures(64, 64))
    assert isinstance(output, YOLO9Output)
    of_list = detect(output.main, conf=0.5, iou=0.5, max_det=20, classes=[3, 7], multi_label=False)
    of_output = detect(output, conf=0.5, iou=0.5, max_det=20, classes=[3, 7], multi_label=False)
    for (boxes, scores, labels), (other_boxes, *_) in zip(of_list, of_output, strict=True):
        assert torch.equal(boxes, other_boxes)
        assert set(labels.tolist()) <= {3, 7}
        assert (scores > 0.5).all()
