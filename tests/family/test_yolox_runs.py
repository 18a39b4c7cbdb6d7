"""A yoloxn through the doors: fine-tuned from 80 classes on the command line, stopped, resumed in Python in its last epochs, used."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from libreyolo import LibreYOLO
from libreyolo.data.shapes import make_shapes
from libreyolo.record.tables import read_results
from tests.run.conftest import QUICK, Run, draw_set, train_py

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def resumed(tmp_path_factory: pytest.TempPathFactory) -> Run:
    folder = tmp_path_factory.mktemp("yolox")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("LIBREYOLO_CACHE", str(folder / "cache"))
        data = draw_set(folder / "set")
        LibreYOLO("yoloxn").save(folder / "LibreYOLOXn.pt")
        own = {name: value for name, value in QUICK.items() if name != "aux_weight"} | {"stop_after_epoch": 1, "project": folder, "data": data}
        answer = train_py(
            "model=yoloxn",
            "weights=LibreYOLOXn.pt",
            *(f"{n}={str(v) if isinstance(v, Path) else str(v).lower()}" for n, v in own.items()),
            cwd=folder,
        )
        assert answer.code == 0, answer.stderr
        (weights,) = folder.glob("*/*/weights")
        model = LibreYOLO("yoloxn")
        run = Run(model.train(resume=str(weights.parent), device="cpu"))
        assert model.nc == 2
        return run


def test_every_tensor_but_the_class_layers_came_from_the_file(resumed: Run) -> None:
    total = len(LibreYOLO("yoloxn").net.state_dict())
    assert f"{total - 6} of {total} tensors taken from" in resumed.log


def test_the_l1_term_is_there_from_the_first_epoch_without_mosaic(resumed: Run) -> None:
    first, second = read_results(resumed.folder / "results.csv")
    assert first["train/l1_loss"] is None
    for name in ("iou", "obj", "cls"):
        assert float(first[f"train/{name}_loss"]) > 0  # type: ignore[arg-type]
        assert float(second[f"train/{name}_loss"]) > 0  # type: ignore[arg-type]
    assert float(second["train/l1_loss"]) > 0  # type: ignore[arg-type]


def test_the_file_says_what_it_is_and_predicts(resumed: Run) -> None:
    saved = resumed.checkpoint("last.pt")
    assert (saved["model_family"], saved["size"], saved["nc"], saved["names"], saved["imgsz"]) == ("yolox", "n", 2, {0: "red", 1: "blue"}, 64)
    assert saved["epoch"] == 1
    model = LibreYOLO(resumed.folder / "weights" / "last.pt")
    assert torch.equal(model.net.state_dict()["head.cls_preds.0.bias"], saved["model"]["head.cls_preds.0.bias"])
    source = next(Path(saved["config"]["data"]).parent.glob("images/val/*.png"))
    [found] = model.predict(source, conf=0.0001)
    assert len(found) > 0


def test_sixteen_pictures_are_learned_by_heart(tmp_path: Path) -> None:
    """Judged on what it was trained on. So short a training needs `precise_bn`: BatchNorm's own averages still hold a tenth of their start."""
    data = make_shapes(tmp_path / "set", num_train=16, num_val=1, size=64)
    data.write_text(data.read_text().replace("val: images/val", "val: images/train"))
    result = LibreYOLO("yoloxn").train(
        data, imgsz=64, batch=16, epochs=80, no_aug_epochs=80, optimizer="adamw", lr0=0.003, scheduler="cos", warmup_epochs=5, hsv_prob=0.0,
        flip_prob=0.0, ema=False, precise_bn=16, eval_interval=80, save_period=0, save_plots=False, workers=0, device="cpu", project=str(tmp_path),
    )  # fmt: skip
    rows = read_results(Path(result["save_dir"]) / "results.csv")
    for name in ("iou", "obj", "cls", "l1"):
        assert float(rows[-1][f"train/{name}_loss"]) < 0.6 * float(rows[0][f"train/{name}_loss"]), name  # type: ignore[arg-type]
    assert result["val_metrics"]["speed/images_seen"] == 16
    assert result["val_metrics"]["metrics/mAP50-95"] > 0.5
