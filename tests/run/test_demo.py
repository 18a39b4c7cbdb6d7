"""The demo: the preset that a newcomer runs first, in short."""

from __future__ import annotations

import csv
import inspect
import os
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from libreyolo.data.shapes import make_shapes
from libreyolo.data.shapes_restore import make_shapes_restore
from libreyolo.record.tables import read_results
from tests.run.conftest import train_py

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize("name", ["demo", "demo-point"])
def test_the_demo_feeds_its_pictures_as_they_are_drawn(name: str) -> None:
    drawn = inspect.signature(make_shapes).parameters["size"].default
    demo = yaml.safe_load((ROOT / "conf" / "experiment" / f"{name}.yaml").read_text(encoding="utf-8"))
    assert demo["imgsz"] == drawn


@pytest.mark.slow
def test_a_short_restoration_demo_takes_noise_out(tmp_path: Path) -> None:
    """An eighth of the demo on small crops: 21.3 dB. The inputs have 20.4; trained towards other pictures' targets the demo stays under 14."""
    set_file = make_shapes_restore(tmp_path / "set", num_train=160, num_val=6, size=64)
    keys = ["epochs=2", "imgsz=32", "eval_interval=2", "save_plots=false", "device=cpu", f"data={set_file}", f"hydra.run.dir={tmp_path / 'run'}"]
    answer = train_py("experiment=demo-restore", *keys, cwd=tmp_path)
    assert answer.code == 0, answer.stderr
    assert float(read_results(tmp_path / "run" / "results.csv")[-1]["metrics/PSNR"]) > 20.9  # type: ignore[arg-type]


@pytest.mark.slow
def test_a_short_demo_learns_to_find_shapes(tmp_path: Path) -> None:
    """A quarter of the demo. Measured: mAP50 0.33; with anchors assigned at random the whole demo stays under 0.01."""
    set_file = make_shapes(tmp_path / "set", num_train=512, num_val=64)
    run = subprocess.run(
        [
            sys.executable,
            str(ROOT / "train.py"),
            "experiment=demo",
            f"data={set_file}",
            "device=cpu",
            "epochs=9",
            "eval_interval=9",
            "workers=0",
            "save_plots=false",
            f"hydra.run.dir={tmp_path / 'run'}",
        ],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT), "LIBREYOLO_CACHE": str(tmp_path / "cache"), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode == 0, run.stderr
    with (tmp_path / "run" / "results.csv").open(newline="") as file:
        last = list(csv.DictReader(file))[-1]
    assert float(last["metrics/mAP50"]) > 0.15
    assert (tmp_path / "run" / "weights" / "best.pt").is_file()
