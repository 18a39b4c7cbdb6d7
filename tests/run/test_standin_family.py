"""A family is one folder and one yaml: with nothing else changed it trains through every door, validates, predicts, saves and loads."""

from __future__ import annotations

import filecmp
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from tests.run.conftest import ROOT, draw_set

PARTS = Path(__file__).parent / "standin"
SHORT = ("model=standina", "epochs=1", "batch=4", "workers=0", "eval_interval=1", "save_period=0", "device=cpu", "warmup_epochs=0", "seed=3")
# In Python, on two ranks that it starts itself; then everything that a trained model is for.
SCRIPT = """
import json, sys
from libreyolo import LibreYOLO

if __name__ == "__main__":
    arguments = json.loads(sys.argv[1])
    model = LibreYOLO("standina")
    result = model.train(**arguments, nproc=2)
    model.save("mine.pt")
    again = LibreYOLO("mine.pt")
    pictures = [str(p) for p in sorted(__import__("pathlib").Path("set/images/val").iterdir())]
    boxes = [[r.xyxy.tolist() for r in m.predict(pictures, conf=0.001)] for m in (model, again)]
    found = {
        "family": [model.family.name, again.family.name, LibreYOLO(result["last_checkpoint"]).family.name],
        "names": {str(k): v for k, v in again.names.items()},
        "best": result["best_metric"],
        "val": LibreYOLO(result["best_checkpoint"]).val(workers=0, device="cpu")["metrics/mAP50-95"],
        "same": boxes[0] == boxes[1],
        "boxes": sum(map(len, boxes[0])),
    }
    print(json.dumps(found))
"""


@pytest.fixture(scope="module")
def copy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The project with the family added, and a set to train on."""
    folder = tmp_path_factory.mktemp("standin")
    for name in ("libreyolo", "launch", "conf"):
        shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "train.py", folder)
    shutil.copytree(PARTS / "family", folder / "libreyolo" / "models" / "standin", ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(PARTS / "standina.yaml", folder / "conf" / "model")
    draw_set(folder / "set", num_train=8, num_val=3)
    (folder / "like.py").write_text(SCRIPT)
    return folder


def run(copy: Path, *words: str) -> str:
    """Run Python in the copy and return what it printed."""
    environment = {**os.environ, "LIBREYOLO_CACHE": str(copy / "cache"), "PYTHONPATH": str(copy), "OMP_NUM_THREADS": "1"}
    done = subprocess.run([sys.executable, *words], cwd=copy, env=environment, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
    return done.stdout


def added(copy: Path) -> set[str]:
    """Return the files of the program that the copy has and the project has not, or has otherwise."""
    found = set()
    for name in ("libreyolo", "launch", "conf"):
        for path in (copy / name).rglob("*"):
            own = ROOT / path.relative_to(copy)
            if path.is_file() and "__pycache__" not in path.parts and not (own.is_file() and filecmp.cmp(path, own, shallow=False)):
                found.add(str(path.relative_to(copy)))
    return found


@pytest.mark.slow
def test_one_folder_and_one_yaml_train_through_every_door(copy: Path) -> None:
    folder = {f"libreyolo/models/standin/{name}.py" for name in ("__init__", "network", "loss", "decode", "recipe")}
    assert added(copy) == folder | {"conf/model/standina.yaml"}

    run(copy, "train.py", *SHORT, "data=set/data.yaml", "side_gain=0.4", "hydra.run.dir=alone")
    run(
        copy,
        "-m",
        "torch.distributed.run",
        "--standalone",
        "--nproc_per_node=2",
        "train.py",
        *SHORT,
        "data=set/data.yaml",
        "save_plots=false",
        "hydra.run.dir=torchrun",
    )
    arguments = {
        "data": "set/data.yaml",
        "epochs": 1,
        "batch": 4,
        "workers": 0,
        "eval_interval": 1,
        "save_period": 0,
        "save_plots": False,
        "device": "cpu",
    }
    found = json.loads(run(copy, "like.py", json.dumps({**arguments, "warmup_epochs": 0, "seed": 3})).splitlines()[-1])

    assert found["family"] == ["standin"] * 3
    assert found["names"] == {"0": "red", "1": "blue"}
    assert found["same"]
    assert found["boxes"] > 0
    assert found["val"] == pytest.approx(found["best"], abs=1e-9)
    alone, ranks = (torch.load(copy / name / "weights" / "last.pt", weights_only=True) for name in ("alone", "torchrun"))
    assert (alone["model_family"], alone["config"]["side_gain"], ranks["config"]["side_gain"]) == ("standin", 0.4, 0.5)
    assert "2 ranks on cpu" in (copy / "torchrun" / "train.log").read_text()
    assert (copy / "alone" / "plots" / "predictions.png").is_file()
    assert added(copy) == folder | {"conf/model/standina.yaml"}
