"""A training of rtdetr as a user starts it: stopped and resumed, and from a file of another class count."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from libreyolo import LibreYOLO
from tests.run.conftest import QUICK, draw_set

KEYS = {k: v for k, v in QUICK.items() if k != "aux_weight"} | {"warmup_epochs": 0, "lr0": 1e-3}


@pytest.mark.slow
def test_stopped_and_resumed_it_is_the_unbroken_run_to_the_bit(tmp_path: Path) -> None:
    data, keys = draw_set(tmp_path / "set"), KEYS | {"project": str(tmp_path)}
    straight = LibreYOLO("rtdetrr18").train(data, name="straight", **keys)
    stopped = LibreYOLO("rtdetrr18").train(data, name="stopped", stop_after_epoch=1, **keys)
    resumed = LibreYOLO("rtdetrr18").train(resume=stopped["save_dir"], stop_after_epoch=2)
    ends: list[dict[str, Any]] = [torch.load(run["last_checkpoint"], weights_only=True) for run in (straight, resumed)]
    assert ends[0]["progress"]["global_step"] == ends[1]["progress"]["global_step"] == 4
    for part in ("train_model", "ema"):
        assert all(torch.equal(tensor, ends[1][part][name]) for name, tensor in ends[0][part].items())
    assert set(straight["epoch_loss_items"][0]) == {"vfl", "bbox", "giou"}
    lrs = sorted({group["lr"] for group in ends[0]["optimizer"]["param_groups"]})
    assert lrs == pytest.approx([5e-6, 1e-3])


@pytest.mark.slow
def test_a_published_file_is_fine_tuned_to_other_classes(tmp_path: Path) -> None:
    LibreYOLO("rtdetrr18").save(tmp_path / "LibreRTDETRr18.pt")
    model = LibreYOLO(tmp_path / "LibreRTDETRr18.pt")
    assert model.nc == 80
    started = {name: tensor.clone() for name, tensor in model.net.state_dict().items()}
    model.train(draw_set(tmp_path / "set"), **KEYS | {"project": str(tmp_path), "epochs": 1, "max_steps": 1, "lr_backbone": 0.0})
    assert (model.nc, model.names) == (2, {0: "red", 1: "blue"})
    assert tuple(model.net.get_parameter("decoder.denoising_class_embed.weight").shape) == (3, 256)
    weight = "backbone.res_layers.3.blocks.1.branch2b.conv.weight"
    assert torch.equal(model.net.get_parameter(weight), started[weight])  # taken from the file, and at a rate of 0 still there
    [found] = model.predict(tmp_path / "set" / "images" / "val" / "0.png", conf=0.0)
    assert len(found) == 2 * (8 * 8 + 4 * 4 + 2 * 2)
