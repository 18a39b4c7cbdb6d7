"""The demo of classes, in short: its preset on pictures that it has to learn by heart."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from libreyolo.data.class_shapes import make_class_shapes
from libreyolo.record.tables import read_results
from tests.run.conftest import train_py


@pytest.mark.slow
def test_the_demo_s_preset_learns_two_dozen_pictures_by_heart(tmp_path: Path) -> None:
    """Judged on what it was trained on. Labels shuffled within the batch leave it at chance, a sixth."""
    data = make_class_shapes(tmp_path / "set", num_train=24, num_val=1, size=32)
    data.write_text(data.read_text().replace("val: val", "val: train"))
    short = ["imgsz=32", "epochs=2", "min_samples=300", "eval_interval=2", "batch=8", "save_plots=false"]
    still = ["scale=[1.0,1.0]", "flip_prob=0", "flipud=0", "crop_pct=1.0"]
    answer = train_py("experiment=demo-classify", f"data={data}", "device=cpu", *short, *still, f"hydra.run.dir={tmp_path / 'run'}", cwd=tmp_path)
    assert answer.code == 0, answer.stderr
    last = read_results(tmp_path / "run" / "results.csv")[-1]
    assert last["speed/images_seen"] == 24
    assert float(last["metrics/accuracy_top1"]) > 0.8  # type: ignore[arg-type]
    assert (tmp_path / "run" / "weights" / "best.pt").is_file()
    shutil.rmtree(tmp_path / "run")  # half a gigabyte
