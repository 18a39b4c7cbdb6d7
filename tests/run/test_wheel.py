"""What is installed from the wheel works in another folder."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.slow
def test_the_python_door_works_from_the_wheel_in_another_folder(tmp_path: Path) -> None:
    source = tmp_path / "source"  # setuptools leaves build/ behind: not in the user's checkout
    subprocess.run(["git", "clone", "--quiet", str(ROOT), str(source)], check=True)
    words = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation", "-w", str(tmp_path), str(source)]
    subprocess.run(words, check=True)
    (wheel,) = tmp_path.glob("libreyolo_train-*.whl")
    names = set(zipfile.ZipFile(wheel).namelist())
    assert {"conf/config.yaml", "conf/model/yolo9s.yaml", "conf/experiment/demo.yaml", "launch/spawn.py", "libreyolo/api.py"} <= names
    assert {"libreyolo/record/report/page.css", "libreyolo/record/report/page.js"} <= names
    assert not any(name.startswith(("tests/", "benchmarks/", "outputs/")) for name in names)
    zipfile.ZipFile(wheel).extractall(tmp_path / "site")
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    script = (
        "import sys, numpy as np\n"
        f"sys.path.insert(0, {str(tmp_path / 'site')!r})\n"
        "from libreyolo import LibreYOLO, door\n"
        f"assert LibreYOLO.__module__ == 'libreyolo.api' and door.__file__.startswith({str(tmp_path / 'site')!r})\n"
        "model = LibreYOLO('yolo9t')\n"
        "print(len(model.predict(np.zeros((40, 50, 3), np.uint8), imgsz=64)), len(door.help_text()) > 1000)\n"
    )
    run = subprocess.run([sys.executable, "-c", script], cwd=elsewhere, capture_output=True, text=True, check=False)
    assert run.stdout.split() == ["1", "True"], run.stderr
