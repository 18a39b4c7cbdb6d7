"""rtdetr is the published network and trains on the published loss: names, outputs, losses and gradients, in float64.

Float32 is no measure here: with weights made by rule, rounding of 1e-7 in the encoder swaps queries and grows to whole units of the logits, in the
published package too when the machine changes. In float64 both agree to ten digits.
"""

from __future__ import annotations

import json
from typing import Any

import pytest
import torch
from torch import Tensor

from libreyolo.models.rtdetr import network
from libreyolo.models.rtdetr.loss import GAINS, RTDETRLoss
from libreyolo.nn import denoising
from tests.family.batches import detection_batch
from tests.family.parity import compare
from tests.family.parity.fill import CROWDED, TARGETS, fill, pictures

RECORD: dict[str, Any] = json.loads((compare.DATA / "rtdetr.json").read_text())
SIDE = 128
LARGE = ("r50", "r101", "l", "x", "r34", "r50m")
BY_SIZE = [pytest.param(size, marks=pytest.mark.slow if size in LARGE else ()) for size in network.PLANS]


@pytest.mark.parametrize("size", network.PLANS)
def test_names_and_shapes_are_those_of_the_published_weights(size: str) -> None:
    with torch.device("meta"):
        net = network.build(size, 80)
    published = compare.recorded_keys(f"rtdetr-{size}")
    assert compare.keys_of(net) == published
    assert network.infer(net.state_dict()) == {"size": size, "nc": 80}


@pytest.mark.parametrize("size", BY_SIZE)
def test_evaluation_gives_the_recorded_logits_and_boxes(size: str) -> None:
    net = network.build(size, 80)
    fill(net)
    net.double()
    images = pictures(SIDE, SIDE).double()
    compare.take_batch_statistics(net, images)
    with torch.no_grad():
        output = net(images)
    assert output.denoised is None
    for name, tensor in (("logits", output.matching.logits[0]), ("boxes", output.matching.boxes[0])):
        compare.assert_same_output(tensor, RECORD[size]["forward"][name], tolerance=1e-6, what=f"{size} {name}")


def constant_noise(seed: int, keys: Any, num_queries: int, num_classes: int) -> denoising.Noise:
    """Return what the recorder put in the place of random numbers."""
    count = len(list(keys))
    shape = (count, num_queries, 4)
    return denoising.Noise(torch.full(shape[:2], 0.5), torch.zeros(shape[:2], dtype=torch.int64), torch.full(shape, -1.0), torch.full(shape, 0.5))


LOSSES = [
    pytest.param(size, run, marks=pytest.mark.slow if size != "r18" or run == "loss_crowded" else ())
    for size in ("r18", "r50m")
    for run in ("loss", "loss_denoising", "loss_crowded")
    if run in RECORD[size]
]


@pytest.mark.parametrize(("size", "run"), LOSSES)
def test_training_gives_the_recorded_losses_and_gradients(size: str, run: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(denoising, "draw", constant_noise)
    targets = CROWDED if run == "loss_crowded" else TARGETS
    net = network.build(size, 80)
    fill(net)
    net.double().train()
    batch = detection_batch(pictures(SIDE, SIDE, count=len(targets)).double(), targets)
    criterion = RTDETRLoss(80, num_denoising=0 if run == "loss" else 100)
    output = net(*criterion.inputs(batch, criterion.facts(batch)))
    terms = criterion.terms(output, batch)
    assert list(terms) == list(GAINS)
    last_layers = criterion.matching_sums(output, batch)[:, -2] / sum(map(len, targets))
    for name, last in zip(GAINS, last_layers, strict=True):
        recorded = RECORD[size][run][name]
        term = terms[name]
        value: Tensor = term.total * term.scale(term.stats.double())
        assert float(last.detach()) == pytest.approx(recorded["last_layer"], rel=1e-6)
        assert float(value.detach()) == pytest.approx(recorded["value"], rel=1e-6)
        norms = compare.gradient_norms(value, dict(net.named_parameters()))
        compare.assert_same_numbers(norms, recorded["gradient_norms"], tolerance=1e-5, what=f"{size} {run} {name}")
