"""The demo of masks, in short."""

from __future__ import annotations

import inspect
from pathlib import Path

import pytest
import yaml

from libreyolo import LibreYOLO
from libreyolo.data.semantic_shapes import make_semantic_shapes
from libreyolo.models.unet import network

PRESET = yaml.safe_load((Path(__file__).resolve().parents[2] / "conf" / "experiment" / "demo-semantic.yaml").read_text(encoding="utf-8"))


def test_the_demo_feeds_its_pictures_as_they_are_drawn() -> None:
    assert PRESET["imgsz"] == inspect.signature(make_semantic_shapes).parameters["size"].default


@pytest.mark.slow
def test_a_narrow_network_learns_from_half_the_set_what_shuffled_masks_do_not_teach(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Measured: mIoU 0.29; with the masks of the next picture of the batch 0.12, which is background everywhere."""
    monkeypatch.setitem(network.WIDTHS, "s", 8)
    keys = {name: value for name, value in PRESET.items() if name != "defaults"}
    changes = {"epochs": 3, "lr0": 0.003, "eval_interval": 3, "device": "cpu", "save_plots": False, "project": str(tmp_path)}
    data = make_semantic_shapes(tmp_path / "set", num_train=256, num_val=32)
    result = LibreYOLO("unets").train(data, **{**keys, **changes})
    assert result["val_metrics"]["metrics/mIoU"] > 0.2
