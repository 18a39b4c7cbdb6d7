"""What a run leaves: records that parse, where it came from, and the means to run it again."""

from __future__ import annotations

import csv
import json
import math
from pathlib import Path

import pytest
import torch
import yaml
from PIL import Image

from libreyolo import LibreYOLO
from libreyolo.record.tables import read_results
from tests.run.conftest import Run, draw_set, quick_overrides, train, train_py

# The header of LibreYOLO 1.6.0's results.csv for a yolo9 detection run.
HEADER = (
    "epoch,time,train/loss,validated,is_best,current_metric,current_metric_name,best_metric,best_metric_name,best_epoch,train/box_loss,"
    "train/cls_loss,train/dfl_loss,metrics/precision,metrics/recall,metrics/mAP50-95,metrics/mAP50,metrics/mAP75,metrics/precision(B),"
    "metrics/recall(B),metrics/mAP50(B),metrics/mAP50-95(B),metrics/mAP_small,metrics/mAP_medium,metrics/mAP_large,metrics/AR1,metrics/AR10,"
    "metrics/AR100,metrics/AR_max_det,metrics/max_det,metrics/AR_small,metrics/AR_medium,metrics/AR_large,metrics/best_conf,"
    "metrics/best_conf_f1,speed/preprocess_ms,speed/inference_ms,speed/postprocess_ms,speed/total_ms,speed/total_s,speed/images_seen,"
    "lr/group0,lr/group1,lr/group2"
)
# After them, ours: speed, waiting and memory of the training, and what each class measures.
OURS = "system/images_per_second,system/waiting_share,system/gpu_memory_gb,class/red/mAP50-95,class/red/mAP50,class/blue/mAP50-95,class/blue/mAP50"
TRAINING_KEYS = {
    "model", "schema_version", "libreyolo_version", "model_family", "size", "task", "nc", "names", "imgsz", "is_ema_weights", "train_model", "ema",
    "ema_updates", "optimizer", "epoch", "config", "loss", "best_mAP50_95", "best_mAP50", "best_metric_key", "best_metric_name",
    "best_metric_value", "best_metric", "best_epoch", "letterbox_pad", "progress",
}  # fmt: skip


@pytest.fixture(scope="module")
def run(tiny: Path, tmp_path_factory: pytest.TempPathFactory) -> Run:
    """Two epochs from the command line, with everything a run draws."""
    folder = tmp_path_factory.mktemp("whole_run")
    command = [f"data={tiny}", *quick_overrides(), "save_plots=true", "save_period=1", "lr0=0.02", f"project={folder}"]
    answer = train_py(*command, cwd=folder)
    assert answer.code == 0, answer.stderr
    (weights,) = folder.glob("*/*/weights")
    return Run({"save_dir": str(weights.parent)})


pytestmark = pytest.mark.slow


def test_every_file_is_there(run: Run) -> None:
    files = {str(p.relative_to(run.folder)) for p in run.folder.rglob("*") if p.is_file()}
    expected = {
        ".lock",
        "train_config.yaml",
        "environment.json",
        "results.csv",
        "metrics.jsonl",
        "status.json",
        "summary.json",
        "train.log",
        "report.html",
    }
    expected |= {f"weights/{name}.pt" for name in ("last", "best", "epoch_1", "epoch_2")}
    expected |= {f"plots/{name}.png" for name in ("labels", "train_batch", "curves", "pr_curve", "f1_curve", "confusion", "predictions")}
    expected |= {f".hydra/{name}.yaml" for name in ("config", "hydra", "overrides")}
    assert files == expected


def test_every_picture_opens_and_is_not_of_one_colour(run: Run) -> None:
    for path in (run.folder / "plots").glob("*.png"):
        with Image.open(path) as picture:
            assert len(set(picture.convert("RGB").resize((32, 32)).tobytes())) > 3, path.name


def test_results_have_the_published_columns_in_their_order_and_then_ours(run: Run) -> None:
    assert (run.folder / "results.csv").read_text().splitlines()[0] == f"{HEADER},{OURS}"


def test_results_parse_and_every_number_is_finite(run: Run) -> None:
    with (run.folder / "results.csv").open() as file:
        table = list(csv.DictReader(file))
    assert [row["epoch"] for row in table] == ["1", "2"]
    for row in table:
        for name, cell in row.items():
            assert name.endswith("_name") or math.isfinite(float(cell)), (name, cell)
        parts = sum(float(row[f"train/{part}_loss"]) for part in ("box", "cls", "dfl"))
        assert float(row["train/loss"]) == pytest.approx(parts)
    lines = [json.loads(line) for line in (run.folder / "metrics.jsonl").read_text().splitlines()]
    assert lines == read_results(run.folder / "results.csv")


def test_the_configuration_holds_every_number_and_what_was_typed(run: Run, tiny: Path) -> None:
    config = yaml.safe_load((run.folder / "train_config.yaml").read_text())
    assert (config["lr0"], config["batch"], config["data"], config["family"], config["size"]) == (0.02, 4, str(tiny), "yolo9", "t")
    composed = yaml.safe_load((run.folder / ".hydra" / "config.yaml").read_text())
    assert {k: v for k, v in config.items() if composed[k] != v} == {}
    assert run.checkpoint()["config"] == config


def test_the_environment_says_how_to_get_here_again(run: Run) -> None:
    (entry,) = json.loads((run.folder / "environment.json").read_text())
    assert entry["command"][1].endswith("train.py")
    assert "lr0=0.02" in entry["command"]
    assert entry["packages"]["torch"] == torch.__version__ or torch.__version__.startswith(entry["packages"]["torch"])
    assert len(entry["git"].get("commit", "x" * 40)) == 40
    assert (entry["world_size"], entry["device"]) == (1, "cpu")


def test_status_and_summary_agree_with_the_table(run: Run) -> None:
    status, summary = (json.loads((run.folder / name).read_text()) for name in ("status.json", "summary.json"))
    last = read_results(run.folder / "results.csv")[-1]
    assert (status["state"], status["epoch"], status["epochs"]) == ("completed", 2, 2)
    assert status["best_metric"] == summary["best_metric"] == last["best_metric"] == run.checkpoint()["best_metric"]


def test_a_checkpoint_has_the_published_keys_and_plain_values(run: Run) -> None:
    content = run.checkpoint()
    assert set(content) == TRAINING_KEYS
    assert (content["epoch"], content["imgsz"], content["names"]) == (1, 64, {0: "red", 1: "blue"})
    assert all(torch.equal(content["model"][name], tensor) for name, tensor in content["ema"].items())
    assert content["ema_updates"] == 4
    best = read_results(run.folder / "results.csv")[content["best_epoch"] - 1]
    assert (content["best_mAP50_95"], content["best_mAP50"]) == (best["metrics/mAP50-95"], best["metrics/mAP50"])


def test_it_can_be_run_again_and_typed_keys_win(run: Run, tmp_path: Path) -> None:
    answer = train_py(f"cfg={run.folder / 'train_config.yaml'}", f"project={tmp_path / 'again'}", "save_plots=false", cwd=tmp_path)
    assert answer.code == 0, answer.stderr
    (weights,) = (tmp_path / "again").glob("*/*/weights")
    again = Run({"save_dir": str(weights.parent)})
    first, second = run.checkpoint(), again.checkpoint()
    assert [name for name, tensor in first["train_model"].items() if not torch.equal(tensor, second["train_model"][name])] == []
    assert {k for k, v in first["config"].items() if v != second["config"][k]} == {"project", "save_plots"}


def test_its_configuration_goes_through_the_python_door_too(run: Run, tmp_path: Path) -> None:
    again = Run(
        LibreYOLO("yolo9t").train(cfg=run.folder / "train_config.yaml", project=str(tmp_path), save_plots=False, epochs=1, stop_after_epoch=1)
    )
    assert again.checkpoint()["config"]["lr0"] == 0.02
    assert len(read_results(again.folder / "results.csv")) == 1


WITHOUT_VALIDATION = {
    "no val key": ("train: images/train\n", {}),
    "val is null": ("train: images/train\nval: null\n", {}),
    "val=false": ("", {"val": False}),
}


@pytest.mark.parametrize("case", WITHOUT_VALIDATION)
def test_without_validation_a_run_warns_and_leaves_usable_weights(case: str, tmp_path: Path) -> None:
    yaml_lines, arguments = WITHOUT_VALIDATION[case]
    done = train(draw_set(tmp_path / "set", num_train=4, yaml=yaml_lines), tmp_path / "out", epochs=1, save_plots=True, **arguments)
    assert arguments or "WARNING" in done.log
    assert arguments or "val" in next(line for line in done.log.splitlines() if "WARNING" in line)
    for name in ("last.pt", "best.pt"):
        assert done.checkpoint(name)["epoch"] == 0
    (row,) = read_results(done.folder / "results.csv")
    assert (row["validated"], row["is_best"], row["best_metric"]) == (0, 0, None)
    assert done.result["best_metric"] is None


def test_a_validation_split_of_background_alone_gives_defined_numbers(tmp_path: Path) -> None:
    data = draw_set(tmp_path / "set", num_train=4, num_val=2)
    for label in (tmp_path / "set" / "labels" / "val").iterdir():
        label.write_text("")
    done = train(data, tmp_path / "out", epochs=1, val_loss=True)
    (row,) = read_results(done.folder / "results.csv")
    assert "nan" not in (done.folder / "results.csv").read_text().lower()
    assert row["metrics/mAP50-95"] is not None
    assert {name for name in row if name.startswith("val/")} == {"val/box_loss", "val/cls_loss", "val/dfl_loss"}
    assert row["val/box_loss"] == 0.0
    assert (done.folder / "weights" / "best.pt").exists()


def test_debug_takes_a_few_steps_and_checks_everything(tiny: Path, tmp_path: Path) -> None:
    answer = train_py("experiment=debug", f"data={tiny}", "imgsz=64", "batch=2", f"project={tmp_path}", cwd=tmp_path)
    assert answer.code == 0, answer.stderr
    (weights,) = tmp_path.glob("*/*/weights")
    content = Run({"save_dir": str(weights.parent)}).checkpoint()
    assert content["progress"]["global_step"] == 4
    (row,) = read_results(weights.parent / "results.csv")
    assert row["validated"] == 1
    assert row["val/box_loss"] is not None
    assert len(list((weights.parent / "plots").glob("*.png"))) == 7
