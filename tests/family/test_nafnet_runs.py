"""A nafnet through every door: started on the command line, stopped, resumed, on two ranks, judged, and used. With few blocks, to be quick."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from libreyolo import LibreYOLO
from libreyolo.__main__ import main
from libreyolo.data.shapes_restore import make_shapes_restore
from libreyolo.engine import checkpoint
from libreyolo.engine.checkpoint import WeightsMeta
from libreyolo.errors import UserError
from libreyolo.models.nafnet.network import Layout, build
from libreyolo.record.tables import read_results
from libreyolo.results import RestoreResult
from tests.run.conftest import Run, train_py

pytestmark = pytest.mark.slow

KEYS: dict[str, Any] = {
    "device": "cpu", "imgsz": 32, "batch": 4, "workers": 0, "epochs": 2, "ema_decay": 0.5, "ema_tau": 2.0, "save_period": 0, "plot_samples": 2,
}  # fmt: skip


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Six pairs to train on, three of different odd sizes to validate on, and a file of a network with few blocks."""
    place = tmp_path_factory.mktemp("nafnet")
    data = make_shapes_restore(place / "set", num_train=6, num_val=3, size=48)
    for index, (w, h) in enumerate(((48, 48), (33, 40), (48, 20))):
        for kind in ("inputs", "targets"):
            path = data.parent / kind / "val" / f"{index:05d}.png"
            Image.open(path).crop((0, 0, w, h)).save(path)
    torch.manual_seed(0)
    net = build("s", layout=Layout((1, 1), 1, (1, 1)))
    checkpoint.write(checkpoint.weights_dict(net.state_dict(), WeightsMeta("nafnet", "s", "restore", {}, 256, {})), place / "small.pt")
    return place


@pytest.fixture(scope="module")
def runs(folder: Path) -> dict[str, Run]:
    """Straight on one rank, on two, and begun on the command line and resumed in Python."""
    data = str(folder / "set" / "data.yaml")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("LIBREYOLO_CACHE", str(folder / "cache"))
        found = {"one": Run(LibreYOLO(folder / "small.pt").train(data, project=str(folder / "one"), **KEYS))}
        two = {**KEYS, "nproc": 2, "save_plots": False, "degradation": "denoise", "degradation_set": "shapes"}
        found["two"] = Run(LibreYOLO(folder / "small.pt").train(data, project=str(folder / "two"), **two))
        typed = [f"{name}={value}" for name, value in KEYS.items()]
        answer = train_py("model=nafnets", "weights=small.pt", f"data={data}", "stop_after_epoch=1", "save_plots=false", *typed, cwd=folder)
        assert answer.code == 0, answer.stderr
        (weights,) = (folder / "outputs").glob("*/*/weights")
        found["resumed"] = Run(LibreYOLO("nafnets").train(resume=str(weights.parent), device="cpu"))
    return found


def figures(run: Run) -> list[dict[str, Any]]:
    rows = read_results(run.folder / "results.csv")
    return [{k: v for k, v in row.items() if k != "time" and not k.startswith("speed/")} for row in rows]


def test_the_columns_are_those_of_the_published_trainer(runs: dict[str, Run]) -> None:
    first, last = figures(runs["one"])
    assert [name for name in first if name.startswith(("train/", "metrics/", "lr/"))] == [
        "train/loss",
        "train/restore_loss", "train/psnr_loss", "metrics/PSNR", "metrics/SSIM", "metrics/fitness", "lr/group0", "lr/group1", "lr/group2",
    ]  # fmt: skip
    assert first["train/loss"] == first["train/restore_loss"]  # the PSNR beside it is no part of the loss
    assert first["current_metric_name"] == "metrics/PSNR"
    assert last["train/loss"] < first["train/loss"]
    assert runs["one"].result["final_loss"] == pytest.approx(last["train/loss"])
    assert runs["one"].checkpoint()["loss"] == pytest.approx(last["train/loss"])


def test_a_run_stopped_and_resumed_is_the_unbroken_one_to_the_bit(runs: dict[str, Run]) -> None:
    assert figures(runs["resumed"]) == figures(runs["one"])
    straight, resumed = runs["one"].checkpoint(), runs["resumed"].checkpoint()
    for part in ("model", "train_model"):
        assert all(torch.equal(tensor, resumed[part][name]) for name, tensor in straight[part].items())
    states = [saved["optimizer"]["state"] for saved in (straight, resumed)]
    assert all(torch.equal(states[0][k]["exp_avg"], states[1][k]["exp_avg"]) for k in states[0])


def test_two_ranks_train_the_same_model(runs: dict[str, Run]) -> None:
    for one, two in zip(figures(runs["one"]), figures(runs["two"]), strict=True):
        assert [two[k] for k in ("metrics/PSNR", "metrics/SSIM", "train/loss", "train/psnr_loss")] == pytest.approx(
            [one[k] for k in ("metrics/PSNR", "metrics/SSIM", "train/loss", "train/psnr_loss")], rel=1e-4
        )


def test_pictures_were_drawn(runs: dict[str, Run]) -> None:
    drawn = runs["one"].folder / "plots"
    assert sorted(p.name for p in drawn.iterdir()) == ["curves.png", "data.png", "psnr.png", "restored.png", "train_batch.png"]
    assert "could not be drawn" not in runs["one"].log
    assert not (runs["two"].folder / "plots").exists()


def test_files_say_what_they_are_and_no_class_is_invented(runs: dict[str, Run]) -> None:
    saved = runs["two"].checkpoint("best.pt")
    told = {k: saved[k] for k in ("model_family", "size", "task", "nc", "names", "imgsz", "best_metric_key", "degradation", "dataset")}
    assert told == {
        "model_family": "nafnet", "size": "s", "task": "restore", "nc": 1, "names": {0: "image"}, "imgsz": 32,
        "best_metric_key": "metrics/PSNR", "degradation": "denoise", "dataset": "shapes",
    }  # fmt: skip
    assert "degradation" not in runs["one"].checkpoint()
    assert not {"num_classes", "classes", "max_det", "single_cls"} & set(saved["config"])


@pytest.mark.parametrize("batch", [1, 3])
def test_a_stand_alone_validation_of_best_pt_gives_its_row(runs: dict[str, Run], batch: int) -> None:
    """The pictures differ in size, so they are judged one by one whatever the batch."""
    best = next(row for row in reversed(figures(runs["one"])) if row["is_best"])
    found = LibreYOLO(runs["one"].folder / "weights" / "best.pt").val(batch=batch, workers=0, device="cpu")
    metrics = {k: v for k, v in found.items() if k.startswith("metrics/")}
    assert metrics == pytest.approx({k: best[k] for k in metrics}, rel=1e-6)
    assert found["speed/images_seen"] == 3


def test_predictions_keep_the_picture_s_size_and_what_is_saved_is_restored(runs: dict[str, Run], folder: Path, tmp_path: Path) -> None:
    model = LibreYOLO(runs["one"].folder / "weights" / "best.pt")
    results = model.predict(folder / "set" / "inputs" / "val", batch=3, device="cpu", save=tmp_path)
    assert [r.picture.shape for r in results] == [(48, 48, 3), (40, 33, 3), (20, 48, 3)]
    for result in results:
        assert isinstance(result, RestoreResult)
        assert result.restored.shape == result.picture.shape
        assert result.names == {}
        assert result.plot().shape == (result.picture.shape[0], 2 * result.picture.shape[1] + 4, 3)
        assert result.path is not None
        assert (np.asarray(Image.open(tmp_path / result.path.name)) == result.restored).all()
        alone = model.predict(result.picture, device="cpu")[0]
        assert np.abs(alone.restored.astype(int) - result.restored).max() <= 1  # type: ignore[attr-defined]
    changed = np.abs(results[1].restored.astype(int) - results[1].picture).mean()  # type: ignore[attr-defined]
    assert results[1].summary() == f"33x40, changed by {changed:.1f} of 255 on average"


def test_the_shell_restores_and_judges(runs: dict[str, Run], folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    best = str(runs["one"].folder / "weights" / "best.pt")
    assert main(["predict", best, str(folder / "set" / "inputs" / "val" / "00001.png"), "--save", str(tmp_path), "--device", "cpu"]) == 0
    assert "00001.png: 33x40, changed by " in capsys.readouterr().out
    assert Image.open(tmp_path / "00001.png").size == (33, 40)
    assert main(["val", best, "--workers", "0", "--device", "cpu"]) == 0
    assert "metrics/PSNR" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("verb", "settings", "words"),
    [
        ("predict", {"imgsz": 64}, "imgsz=64 means nothing here: nafnet is used on every picture at its own size; leave it out."),
        ("predict", {"conf": 0.3}, "conf=0.3 means nothing for restoring pictures: it has no such settings."),
        ("predict", {"classes": [0]}, "classes=[0] means nothing for restoring pictures"),
        ("val", {"imgsz": 64}, "imgsz=64 means nothing here"),
        ("val", {"conf": 0.3}, "conf=0.3 means nothing for judging restored pictures"),
        ("val", {"max_det": 3}, "Unknown key 'max_det'."),
        ("val", {"split": "test"}, "has no test split"),
    ],
)
def test_what_means_nothing_is_refused(verb: str, settings: dict[str, Any], words: str, folder: Path) -> None:
    model = LibreYOLO(folder / "small.pt")
    source = {"predict": np.zeros((8, 8, 3), np.uint8), "val": str(folder / "set" / "data.yaml")}[verb]
    with pytest.raises(UserError) as caught:
        getattr(model, verb)(source, **settings)
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_mistake_in_the_data_ends_a_run_of_two_ranks_with_its_sentence(folder: Path, tmp_path: Path) -> None:
    broken = tmp_path / "data.yaml"
    broken.write_text(f"path: {folder}/set\ntrain: inputs/train\ntarget_dir: nowhere\n")
    with pytest.raises(UserError, match="train: none of the 6 pictures is usable"):
        LibreYOLO(folder / "small.pt").train(str(broken), project=str(tmp_path / "runs"), **KEYS)
    assert not list((tmp_path / "runs").glob("*/weights"))
