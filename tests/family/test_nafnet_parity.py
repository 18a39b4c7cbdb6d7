"""nafnet is the published network and trains on the published loss: names, outputs, losses and gradients, in float64; its metric and its predict."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from libreyolo import LibreYOLO
from libreyolo.engine import checkpoint
from libreyolo.engine.checkpoint import WeightsMeta
from libreyolo.metrics.similarity import psnr, ssim
from libreyolo.models.nafnet.loss import CharbonnierLoss
from libreyolo.models.nafnet.network import WIDTHS, NAFNet, build, infer
from tests.family.parity import compare
from tests.family.parity.fill import fill, pictures

RECORD: dict[str, Any] = json.loads((compare.DATA / "nafnet.json").read_text())
BY_SIZE = ["s", pytest.param("l", marks=pytest.mark.slow)]


def filled(size: str) -> NAFNet:
    net = build(size)
    fill(net)
    return net


@pytest.mark.parametrize("size", WIDTHS)
def test_names_and_shapes_are_those_of_the_published_weights(size: str) -> None:
    with torch.device("meta"):
        net = build(size)
    assert compare.keys_of(net) == compare.recorded_keys(f"nafnet-{size}")
    assert infer(net.state_dict()) == {"size": size, "nc": 0}


@pytest.mark.parametrize("size", BY_SIZE)
def test_evaluation_gives_the_recorded_pictures(size: str) -> None:
    with torch.no_grad():
        output = filled(size).double().eval()(pictures(64, 80).double())
    compare.assert_same_output(output, RECORD[size]["forward"], tolerance=1e-9, what=size)


@pytest.mark.slow
def test_large_pictures_are_pooled_in_windows_as_recorded() -> None:
    with torch.no_grad():
        output = filled("s").double().eval()(pictures(70, 500, count=1).double())
    compare.assert_same_output(output, RECORD["s"]["local"], tolerance=1e-9, what="local")


@pytest.mark.parametrize("size", BY_SIZE)
def test_training_gives_the_recorded_loss_and_gradients(size: str) -> None:
    net = filled(size).double().train()
    terms = CharbonnierLoss().terms(net(pictures(64, 80).double()), pictures(64, 80, seed=4321).double(), torch.ones(2, 1, 1, 1))
    recorded, term, shown = RECORD[size]["loss"], terms["restore"], terms["psnr"]
    value = term.total * term.scale(term.stats)
    assert float(value.detach()) == pytest.approx(recorded["value"], rel=1e-9)
    assert shown.value is not None
    assert float(shown.value(shown.stats)) == pytest.approx(recorded["psnr"], rel=1e-9)
    norms = compare.gradient_norms(value, dict(net.named_parameters()))
    compare.assert_same_numbers(norms, recorded["gradient_norms"], tolerance=1e-6, what=size)


def test_psnr_and_ssim_are_the_published_ones() -> None:
    one, other = pictures(20, 24).double()
    assert psnr(one, other) == pytest.approx(RECORD["similarity"]["psnr"], abs=1e-5)
    assert ssim(one, other) == pytest.approx(RECORD["similarity"]["ssim"], abs=1e-6)


def test_a_picture_of_odd_sides_is_restored_as_by_the_published_predict(tmp_path: Path) -> None:
    """Reflection at the right and the bottom, clipping, rounding and the crop are in it."""
    net = filled("s")
    with torch.no_grad():
        net.ending.weight.mul_(1e-3)
        net.ending.bias.mul_(1e-3)  # type: ignore[union-attr]
    meta = WeightsMeta("nafnet", "s", "restore", {}, 256, {})
    checkpoint.write(checkpoint.weights_dict(net.state_dict(), meta), tmp_path / "LibreNAFNets-restore.pt")
    picture = (pictures(97, 131, count=1, seed=99)[0] * 255).round().to(torch.uint8).permute(1, 2, 0).contiguous().numpy()
    [found] = LibreYOLO(tmp_path / "LibreNAFNets-restore.pt").predict(picture)
    recorded = RECORD["s"]["predict"]["summary"]
    summary = compare.summary(torch.from_numpy(found.restored))  # type: ignore[attr-defined]
    assert summary["shape"] == recorded["shape"] == [97, 131, 3]
    assert max(abs(a - b) for a, b in zip(summary["samples"], recorded["samples"], strict=True)) <= 1  # a rounding at one half
    assert summary["rms"] == pytest.approx(recorded["rms"], abs=0.01)
    assert len({round(value) for value in recorded["samples"]} - {0, 255}) > 30
