"""A unet through the doors: trained, stopped and resumed, validated, used; on one rank and on two."""

from __future__ import annotations

import csv
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from libreyolo import LibreYOLO
from libreyolo.__main__ import main
from libreyolo.data.semantic_shapes import make_semantic_shapes
from libreyolo.errors import UserError
from libreyolo.models.unet import network
from libreyolo.record.tables import read_results
from tests.run.conftest import Run, train_py

pytestmark = pytest.mark.slow

KEYS: dict[str, Any] = {
    "imgsz": 32, "eval_imgsz": [32, 48], "batch": 4, "epochs": 3, "workers": 0, "device": "cpu", "warmup_epochs": 1, "eval_interval": 1,
    "save_period": 0, "ema_tau": 2.0, "lr0": 0.05,
}  # fmt: skip
METRICS = ("metrics/mIoU", "metrics/pixel_accuracy", "metrics/fitness")
PLOTS = {"labels.png", "train_batch.png", "confusion.png", "iou.png", "predictions.png", "curves.png"}


@dataclass(frozen=True)
class Trained:
    """A narrow unet's straight run of three epochs, and the same stopped after the first and resumed."""

    data: Path
    straight: Run
    resumed: Run
    model: LibreYOLO


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Trained]:
    folder = tmp_path_factory.mktemp("unet")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("LIBREYOLO_CACHE", str(folder / "cache"))
        patch.setitem(network.WIDTHS, "s", 4)
        data = make_semantic_shapes(folder / "set", num_train=6, num_val=3, size=40)
        keys = KEYS | {"project": str(folder)}
        model = LibreYOLO("unets")
        straight = Run(model.train(data, name="straight", **keys))
        stopped = LibreYOLO("unets").train(data, name="stopped", stop_after_epoch=1, **keys)
        resumed = Run(LibreYOLO("unets").train(resume=stopped["save_dir"], device="cpu", stop_after_epoch=3))
        yield Trained(data, straight, resumed, model)


def assert_equal(one: Any, other: Any, place: str = "") -> None:
    if isinstance(one, torch.Tensor):
        assert torch.equal(one, other), place
    elif isinstance(one, dict):
        assert one.keys() == other.keys(), place
        for key in one:
            assert_equal(one[key], other[key], f"{place}/{key}")
    else:
        assert one == other, place


def test_stopped_and_resumed_it_is_the_unbroken_run_to_the_bit(trained: Trained) -> None:
    ends = [run.checkpoint() for run in (trained.straight, trained.resumed)]
    assert ends[0]["progress"]["global_step"] == ends[1]["progress"]["global_step"] == 6
    for part in ("train_model", "ema", "model"):
        assert_equal(ends[0][part], ends[1][part], part)
    tables = [read_results(run.folder / "results.csv") for run in (trained.straight, trained.resumed)]
    clocks = [{k: v for row in table for k, v in row.items() if k != "time" and not k.startswith(("speed/", "system/"))} for table in tables]
    assert clocks[0] == clocks[1]


def test_the_table_has_the_tasks_columns_and_the_folder_its_pictures(trained: Trained) -> None:
    rows = read_results(trained.straight.folder / "results.csv")
    assert [c for c in rows[0] if c.startswith(("train/", "metrics/"))] == ["train/loss", "train/main_loss", "train/aux_loss", *METRICS]
    assert [row["current_metric_name"] for row in rows] == ["metrics/mIoU"] * 3
    assert float(rows[-1]["train/main_loss"]) < float(rows[0]["train/main_loss"])  # type: ignore[arg-type]
    assert {path.name for path in (trained.straight.folder / "plots").iterdir()} == PLOTS
    assert "train: 6 pictures with masks, 7 of 7 classes occur, 0.00 % of the pixels ignored" in trained.straight.log
    assert {p.name for p in trained.data.parent.iterdir()} == {"data.yaml", "images", "masks"}


def test_files_are_named_by_where_they_are_judged_and_a_validation_gives_the_row_of_the_table(trained: Trained) -> None:
    path = trained.straight.folder / "weights" / "best.pt"
    best = LibreYOLO(path)
    assert (best.imgsz, best.nc, best.names[6]) == ([32, 48], 7, "cross")
    assert trained.model.imgsz == [32, 48]
    [row] = [r for r in read_results(trained.straight.folder / "results.csv") if r["epoch"] == best._file.content["best_epoch"]]  # type: ignore[union-attr]
    expected = [float(row[name]) for name in METRICS]  # type: ignore[arg-type]
    assert 0 < expected[0] < 1
    for model, arguments in ((best, {}), (best, {"batch": 1}), (trained.model, {"data": str(trained.data)})):
        found = model.val(workers=0, device="cpu", **arguments)
        assert [found[name] for name in METRICS] == pytest.approx(expected, abs=1e-6)
    assert best.val(workers=0, device="cpu", imgsz=64)["speed/images_seen"] == 3
    for setting in ({"conf": 0.5}, {"iou": 0.5}):
        with pytest.raises(UserError, match="means nothing for judging a class for every pixel"):
            best.val(device="cpu", **setting)


def test_predictions_have_the_pictures_size_a_summary_and_a_drawing(trained: Trained, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (50, 70, 3), dtype=np.uint8)
    [found] = trained.model.predict(pixels, device="cpu")
    assert (found.mask.shape, found.mask.dtype) == ((50, 70), np.uint8)
    assert found.mask.max() < 7
    assert sum(found.shares.values()) == pytest.approx(1.0)
    assert found.plot().shape[1:] == (70, 3)
    with pytest.raises(UserError, match=r"classes=\[1\] means nothing for predicting a class for every pixel"):
        trained.model.predict(pixels, classes=[1])
    Image.fromarray(pixels).save(tmp_path / "photo.png")
    weights = str(trained.straight.folder / "weights" / "last.pt")
    assert main(["predict", weights, str(tmp_path / "photo.png"), "--save", str(tmp_path / "drawn"), "--device", "cpu"]) == 0
    assert "photo.png: " in capsys.readouterr().out
    assert Image.open(tmp_path / "drawn" / "photo.png").width == 70
    assert main(["val", weights, "--device", "cpu", "--workers", "0"]) == 0
    assert "metrics/mIoU" in capsys.readouterr().out


def test_a_file_of_other_classes_is_fine_tuned_and_the_log_says_what_was_taken(trained: Trained, tmp_path: Path) -> None:
    trained.model.save(tmp_path / "LibreUNets-sem.pt")
    (trained.data.parent / "two.yaml").write_text(
        "path: .\ntrain: images/train\nval: images/val\nnames: [other, shape]\nlabel_mapping: {0: 0, 1: 1, 2: 1, 3: 1, 4: 1, 5: 1, 6: 1}\n"
    )
    tuned = LibreYOLO(tmp_path / "LibreUNets-sem.pt")
    keys = KEYS | {"project": str(tmp_path), "epochs": 1, "max_steps": 1, "val_loss": True, "save_plots": False}
    run = Run(tuned.train(trained.data.parent / "two.yaml", **keys))
    assert (tuned.nc, tuned.names) == (2, {0: "other", 1: "shape"})
    assert "144 of 148 tensors taken from" in run.log
    [row] = read_results(run.folder / "results.csv")
    assert 0.1 < float(row["val/main_loss"]) < 10  # type: ignore[arg-type]


def test_two_ranks_started_by_train_py_judge_as_one_does(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The whole network; five pictures on two ranks, so one has a padded repeat and one validates a picture less."""
    monkeypatch.setitem(network.WIDTHS, "s", 64)
    data = make_semantic_shapes(tmp_path / "set", num_train=5, num_val=3, size=40)
    keys = {
        **{k: v for k, v in KEYS.items() if k != "eval_imgsz"}, "epochs": 1, "warmup_epochs": 0, "ema": False, "momentum": 0.0, "lr0": 0.01,
        "save_plots": False, "model": "unets", "data": data, "nproc": 2, "hydra.run.dir": tmp_path / "run",
    }  # fmt: skip
    answer = train_py(*(f"{k}={str(v) if isinstance(v, Path) else str(v).lower()}" for k, v in keys.items()), cwd=tmp_path)
    assert answer.code == 0, answer.stderr
    assert "2 ranks on cpu" in (tmp_path / "run" / "train.log").read_text()
    with (tmp_path / "run" / "results.csv").open(newline="") as file:
        [row] = list(csv.DictReader(file))
    assert row["speed/images_seen"] == "3.0"
    found = LibreYOLO(tmp_path / "run" / "weights" / "best.pt").val(workers=0, device="cpu")
    assert [found[name] for name in METRICS] == pytest.approx([float(row[name]) for name in METRICS], abs=1e-4)


def test_a_wrong_mask_is_told_before_the_first_step_and_leaves_nothing(tmp_path: Path) -> None:
    data = make_semantic_shapes(tmp_path / "set", num_train=3, num_val=1, size=40)
    Image.fromarray(np.full((40, 40), 9, np.uint8)).save(data.parent / "masks" / "train" / "00001.png")
    answer = train_py("model=unets", f"data={data}", "imgsz=32", "device=cpu", cwd=tmp_path)
    assert answer.code == 1
    assert "Traceback" not in answer.stderr
    told = answer.stderr.strip().splitlines()[-1]
    assert "masks/train/00001.png has the value 9 in 1600 pixels, but the classes are 0..6 and 255 is ignored" in told
    assert not list((tmp_path / "outputs").rglob("*.csv"))
