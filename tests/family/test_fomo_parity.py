"""fomo is the published network and trains on the published loss: names, outputs, losses and gradients, in float64; and its predict."""

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
from libreyolo.models.fomo.loss import FOMOLoss
from libreyolo.models.fomo.network import FOMO, STRIDE, WIDTHS, build, infer
from libreyolo.ops.cells import target_grid
from tests.family.batches import detection_batch
from tests.family.parity import compare
from tests.family.parity.fill import CROWDED, TARGETS, fill, pictures

RECORD: dict[str, Any] = json.loads((compare.DATA / "fomo.json").read_text())
PREDICTED: dict[str, Any] = json.loads((compare.DATA / "predict-fomo.json").read_text())
SIDES = {"s": 96, "m": 192, "l": 224}
NC = 80


def filled(size: str, nc: int) -> FOMO:
    net = build(size, nc)
    fill(net)
    return net


@pytest.mark.parametrize("size", WIDTHS)
def test_names_and_shapes_are_those_of_the_published_trainer(size: str) -> None:
    net = build(size, 1)
    assert compare.keys_of(net) == compare.recorded_keys(f"fomo-{size}")
    assert infer(net.state_dict()) == {"size": size, "nc": 1}


@pytest.mark.parametrize("size", WIDTHS)
def test_evaluation_gives_the_recorded_logits(size: str) -> None:
    net = filled(size, 1).double()
    images = pictures(SIDES[size], SIDES[size]).double()
    compare.take_batch_statistics(net, images)
    with torch.no_grad():
        compare.assert_same_output(net(images), RECORD[size]["forward"], tolerance=1e-7, what=size)


@pytest.mark.parametrize(("size", "run"), [(size, run) for size in WIDTHS for run in ("loss", "loss_crowded") if run in RECORD[size]])
def test_training_gives_the_recorded_loss_and_gradients(size: str, run: str) -> None:
    """In the crowded one several objects share a cell, and one picture is empty."""
    targets = CROWDED if run == "loss_crowded" else TARGETS
    net = filled(size, NC).double().train()
    batch = detection_batch(pictures(SIDES["s"], SIDES["s"], count=len(targets)).double(), targets)
    recorded = RECORD[size][run]
    cells = target_grid(batch.boxes, batch.labels, batch.valid, (SIDES["s"] // STRIDE,) * 2, STRIDE).flatten()
    assert {str(i): int(cells[i]) for i in cells.nonzero().flatten().tolist()} == recorded["objects"]

    (term,) = FOMOLoss(NC, fg_weight=100.0).terms(net(batch.images), batch).values()
    value = term.total * term.scale(term.stats)
    assert float(value.detach()) == pytest.approx(recorded["value"], rel=1e-6)
    norms = compare.gradient_norms(value, dict(net.named_parameters()))
    # A bias before BatchNorm has no gradient but rounding.
    noise = 1e-9 * recorded["gradient_norms"]["all"]
    assert all(norms[n] < noise for n, r in recorded["gradient_norms"].items() if r < noise)
    compare.assert_same_numbers(norms, {n: r for n, r in recorded["gradient_norms"].items() if r >= noise}, tolerance=1e-6, what=f"{size} {run}")


@pytest.mark.parametrize("size", WIDTHS)
def test_points_of_a_file_and_a_picture_are_those_of_the_published_predict(size: str, tmp_path: Path) -> None:
    """Pillow's resize, the scale to [-1, 1], the cells' centres and suppression are in it: each of them wrong gives other points."""
    net = filled(size, 8)
    compare.take_batch_statistics(net, pictures(SIDES[size], SIDES[size]) * 2 - 1)
    meta = WeightsMeta("fomo", size, "point", {i: f"n{i}" for i in range(8)}, SIDES[size], {})
    checkpoint.write(checkpoint.weights_dict(net.state_dict(), meta), tmp_path / f"LibreFOMO{size}-point.pt")
    picture = (pictures(97, 131, count=1, seed=99)[0] * 255).round().to(torch.uint8).permute(1, 2, 0).contiguous().numpy()
    recorded = PREDICTED[size]
    [found] = LibreYOLO(tmp_path / f"LibreFOMO{size}-point.pt").predict(picture, conf=recorded["conf"], max_det=recorded["max_det"])
    rows = np.array(recorded["rows"])
    assert len(found) == len(rows) > 10
    assert len({row[2] for each in PREDICTED.values() for row in each["rows"]}) > 2
    order = np.lexsort((rows[:, 0], rows[:, 1], -np.round(rows[:, 3], 4)))
    mine = np.lexsort((found.xy[:, 0], found.xy[:, 1], -np.round(found.conf, 4)))
    np.testing.assert_allclose(found.xy[mine], rows[order, :2], atol=1e-3)
    assert (found.cls[mine] == rows[order, 2]).all()
    np.testing.assert_allclose(found.conf[mine], rows[order, 3], atol=1e-4)
