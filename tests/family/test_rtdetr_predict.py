"""`predict` of an rtdetr-r18 end to end: the published package's detections from the same file and picture."""

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
from libreyolo.models.rtdetr import network
from tests.family.parity import compare
from tests.family.parity.fill import fill, pictures

SIDE = 160
RECORD: dict[str, Any] = json.loads((compare.DATA / "predict-rtdetr-r18.json").read_text())


def test_detections_are_those_of_the_published_predict(tmp_path: Path) -> None:
    net = network.build("r18", 80)
    fill(net)
    compare.take_batch_statistics(net, pictures(SIDE, SIDE))
    path = tmp_path / "LibreRTDETRr18.pt"
    meta = WeightsMeta("rtdetr", "r18", "detect", {i: f"n{i}" for i in range(80)}, SIDE, {})
    checkpoint.write(checkpoint.weights_dict(net.state_dict(), meta), path)
    picture = (pictures(97, 131, count=1, seed=99)[0] * 255).round().to(torch.uint8).permute(1, 2, 0).contiguous().numpy()

    [found] = LibreYOLO(path).predict(picture, conf=RECORD["conf"], max_det=RECORD["max_det"], device="cpu")

    # Float32: another machine's rounding swaps a query of 300 and moves logits by up to 0.06 (the published package's own too).
    assert len(found) == 300
    assert (found.conf[:-1] >= found.conf[1:]).all()
    assert float(found.conf.sum()) == pytest.approx(RECORD["sum_scores"], rel=1e-3)
    assert np.abs(np.bincount(found.cls, minlength=80) - RECORD["labels"]).sum() <= 8
    for *box, score, label in RECORD["top"]:  # not clipped there
        near = (found.cls == label) & (np.abs(found.conf - score) < 5e-3)
        inside = np.clip(box, 0, [131, 97, 131, 97])
        assert np.abs(found.xyxy[near] - inside).max(axis=1).min() < 1.0, f"class {label} at {box} with {score} is missing"
