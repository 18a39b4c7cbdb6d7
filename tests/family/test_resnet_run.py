"""A resnet18 through the doors: on the command line with everything drawn at random, stopped, resumed, used; and on two ranks."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from libreyolo import LibreYOLO
from libreyolo.__main__ import main
from libreyolo.data.class_shapes import make_class_shapes
from libreyolo.errors import UserError
from libreyolo.record.tables import read_results
from tests.run.conftest import Run, train_py

pytestmark = pytest.mark.slow

# Two steps an epoch on 32 px; every random part on, two epochs of three.
QUICK: dict[str, Any] = {
    "imgsz": 32, "batch": 8, "epochs": 3, "no_aug_epochs": 1, "workers": 0, "device": "cpu", "save_period": 0, "ema_tau": 5.0, "mixup": 0.3,
    "cutmix": 0.3, "erasing": 0.3, "auto_augment": "randaugment", "label_smoothing": 0.1, "cls_pw": 0.5, "class_balanced": True, "crop_pct": 0.8,
}  # fmt: skip
METRICS = ("accuracy_top1", "accuracy_top5", "precision", "recall", "f1")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Emptied at the end: a checkpoint of a resnet18 takes a quarter of a gigabyte."""
    made = tmp_path_factory.mktemp("resnet")
    yield made
    shutil.rmtree(made, ignore_errors=True)


@pytest.fixture(scope="module")
def data(folder: Path) -> Path:
    """The folder of 14 training and 7 validation pictures."""
    return make_class_shapes(folder / "set", num_train=14, num_val=7, size=40).parent


@pytest.fixture(scope="module")
def runs(folder: Path, data: Path) -> dict[str, Run]:
    """A straight run in Python, and one that was started on the command line from another class count, stopped, and resumed in Python."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("LIBREYOLO_CACHE", str(folder / "cache"))
        LibreYOLO("resnet18").save(folder / "LibreResNet18-cls.pt")
        straight = LibreYOLO(folder / "LibreResNet18-cls.pt")
        found = {"straight": Run(straight.train(data, project=str(folder), name="straight", save_plots=False, **QUICK))}
        typed = [f"{name}={str(value).lower()}" for name, value in QUICK.items()]
        answer = train_py("model=resnet18", "weights=LibreResNet18-cls.pt", f"data={data}", "stop_after_epoch=1", *typed, cwd=folder)
        assert answer.code == 0, answer.stderr
        (weights,) = folder.glob("outputs/*/*/weights")
        return found | {"resumed": Run(LibreYOLO("resnet18").train(resume=str(weights.parent), device="cpu"))}


def test_stopped_and_resumed_it_is_the_unbroken_run_to_the_bit(runs: dict[str, Run]) -> None:
    straight, resumed = (run.checkpoint() for run in runs.values())
    for part in ("train_model", "ema"):
        assert all(torch.equal(tensor, resumed[part][name]) for name, tensor in straight[part].items())
    assert without_clocks(runs["straight"]) == without_clocks(runs["resumed"])


def without_clocks(run: Run) -> list[dict[str, Any]]:
    rows = read_results(run.folder / "results.csv")
    return [{k: v for k, v in row.items() if k != "time" and not k.startswith(("speed/", "system/"))} for row in rows]


def test_the_table_has_the_columns_of_the_task(runs: dict[str, Run]) -> None:
    rows = read_results(runs["resumed"].folder / "results.csv")
    assert len(rows) == 3
    assert {f"metrics/{name}" for name in METRICS} | {"train/ce_loss", "metrics/fitness", "lr/group0", "class/ring/recall"} <= rows[0].keys()
    for row in rows:
        assert row["current_metric"] == row["metrics/accuracy_top1"] == row["metrics/fitness"]
        assert row["current_metric_name"] == "metrics/accuracy_top1"
        assert row["train/loss"] == pytest.approx(row["train/ce_loss"])


def test_pictures_are_drawn_and_every_other_record_is_there(runs: dict[str, Run]) -> None:
    folder = runs["resumed"].folder
    for name in ("labels", "train_batch", "confusion", "predictions", "curves"):
        with Image.open(folder / "plots" / f"{name}.png") as picture:
            assert len(np.unique(np.asarray(picture.convert("L")))) > 10
    assert {"results.csv", "metrics.jsonl", "status.json", "summary.json", "train_config.yaml", "train.log"} <= {p.name for p in folder.iterdir()}


def test_all_but_the_last_layer_came_from_the_file(runs: dict[str, Run]) -> None:
    assert "120 of 122 tensors taken from" in runs["resumed"].log
    saved = runs["resumed"].checkpoint("best.pt")
    assert (saved["model_family"], saved["size"], saved["task"], saved["nc"], saved["imgsz"]) == ("resnet", "18", "classify", 6, 32)
    assert saved["names"][0] == "circle" and tuple(saved["model"]["fc.weight"].shape) == (6, 512)
    assert saved["best_mAP50"] == saved["best_mAP50_95"] == saved["best_metric_value"]


def test_val_of_the_best_weights_gives_its_row_and_predict_sees_what_val_saw(runs: dict[str, Run], data: Path) -> None:
    """crop_pct was the run's own: it is in the file."""
    run = runs["resumed"]
    best = run.checkpoint("best.pt")
    row = read_results(run.folder / "results.csv")[int(best["best_epoch"]) - 1]
    model = LibreYOLO(run.folder / "weights" / "best.pt")
    found = model.val(batch=3, workers=0)
    assert {k: v for k, v in found.items() if not k.startswith("speed/")} == {
        k: row[k] for k in [*(f"metrics/{m}" for m in METRICS), "metrics/fitness"]
    }
    results = model.predict(sorted((data / "val").glob("*/*.jpg")), batch=4)
    right = [model.names[r.top1] == r.path.parent.name for r in results if r.path]
    assert sum(right) / 7 == pytest.approx(row["metrics/accuracy_top1"])
    assert (best["crop_pct"], model._spec().crop_pct) == (0.8, 0.8)


def test_the_shell_predicts_and_validates(runs: dict[str, Run], data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    weights, picture = str(runs["resumed"].folder / "weights" / "best.pt"), next((data / "val" / "ring").iterdir())
    assert main(["predict", weights, str(picture), "--save", str(tmp_path)]) == 0
    line = capsys.readouterr().out.splitlines()[0]
    [result] = LibreYOLO(weights).predict(picture)
    assert line == f"{picture}: {result.names[result.top1]} {result.top1conf:.2f}"
    assert result.probs.sum() == pytest.approx(1.0, abs=1e-5)
    assert (tmp_path / f"{picture.stem}.png").exists()
    assert main(["val", weights, "--split", "train", "--workers", "0"]) == 0
    assert "metrics/accuracy_top1" in capsys.readouterr().out
    assert main(["predict", weights, str(picture), "--conf", "0.3"]) == 1
    assert "conf=0.3 means nothing for predicting classes" in capsys.readouterr().err


def test_classes_in_another_order_are_not_compared(runs: dict[str, Run], data: Path, tmp_path: Path) -> None:
    (tmp_path / "data.yaml").write_text(f"path: {data}\ntrain: train\nval: val\nnames: [cross, circle, ring, square, star, triangle]\n")
    with pytest.raises(UserError, match="has the classes of this model in another order"):
        LibreYOLO(runs["straight"].folder / "weights" / "best.pt").val(tmp_path / "data.yaml")


def test_two_ranks_give_the_row_that_one_gives(folder: Path, data: Path) -> None:
    """From weights that are there, at a small rate, with synchronised statistics: rounding is all that differs. Every random part is on."""
    LibreYOLO("resnet18").save(folder / "start.pt")
    keys = QUICK | {"epochs": 1, "no_aug_epochs": 0, "lr0": 1e-5, "save_plots": False, "project": str(folder), "val_loss": True, "imgsz": 48}
    tables = []
    for name, more in (("one", {}), ("two", {"nproc": 2, "sync_bn": True})):
        result = LibreYOLO(folder / "start.pt").train(data, name=name, **keys, **more)
        tables.append(read_results(Path(result["save_dir"]) / "results.csv")[0])
    assert tables[1]["train/ce_loss"] == pytest.approx(tables[0]["train/ce_loss"], rel=1e-4)
    assert tables[1]["val/ce_loss"] == pytest.approx(tables[0]["val/ce_loss"], rel=1e-4)
    assert tables[1]["speed/images_seen"] == tables[0]["speed/images_seen"] == 7
    for name in METRICS:
        assert tables[1][f"metrics/{name}"] == pytest.approx(tables[0][f"metrics/{name}"], abs=0.15)  # a picture may stand on the edge
