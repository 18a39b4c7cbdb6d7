"""A user's mistakes at the Hydra door: one sentence on stderr, a code other than 0, no traceback, nothing left behind."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from PIL import Image

from libreyolo import LibreYOLO
from libreyolo.errors import UserError
from tests.run.conftest import QUICK, draw_set, quick_overrides, train, train_py

pytestmark = pytest.mark.slow

MISTAKES = {
    "an unknown key": (["data=DATA", "epochz=3"], "Unknown key 'epochz'. Did you mean 'epochs'?"),
    "a batch of 0": (["data=DATA", "batch=0"], "batch=0 is not a batch"),
    "missing data": (["data=nowhere.yaml"], "nowhere.yaml"),
    "an unknown model": (["model=yolo9z", "data=DATA"], "model=yolo9z is not known. Did you mean"),
    "an input off the stride": (["data=DATA", "imgsz=13"], "every side must be a multiple of its stride 32. Use imgsz=32."),
    "a class that is not there": (["data=WRONG"], "3.txt:2"),
    "no arguments": ([], "data is missing: say what to train on, data=path/to/data.yaml"),
    "debug without data": (["experiment=debug"], "or try the embedded set: data=shapes."),
    "devices as a sweep": (["data=DATA", "device=0,1"], "write 'device=[0,1]' (quoted)"),
    "nothing to resume": (["resume=true"], "resume=true found no weights/last.pt below"),
}  # fmt: skip


@pytest.fixture(scope="module")
def wrong(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A set with a label of class 99 in the second line of 3.txt."""
    data = draw_set(tmp_path_factory.mktemp("wrong"))
    with (data.parent / "labels" / "train" / "3.txt").open("r+") as file:
        first = file.readline()
        file.seek(0)
        file.write(f"{first}99 0.5 0.5 0.2 0.2\n")
        file.truncate()
    return data


def assert_nothing_left(folder: Path) -> None:
    """Only the folder of all runs may stay, empty."""
    assert [str(p.relative_to(folder)) for p in folder.rglob("*")] in ([], ["outputs"])


def overrides(arguments: list[str], tiny: Path, wrong: Path) -> list[str]:
    return [a.replace("DATA", str(tiny)).replace("WRONG", str(wrong)) for a in arguments]


@pytest.mark.parametrize("mistake", MISTAKES)
def test_it_is_told_in_one_sentence_and_leaves_nothing(mistake: str, tiny: Path, wrong: Path, tmp_path: Path) -> None:
    arguments, words = MISTAKES[mistake]
    answer = train_py(*overrides(arguments, tiny, wrong), cwd=tmp_path)
    assert answer.code not in (0, None)
    assert words in answer.stderr
    told = answer.stderr.strip().splitlines()
    assert "Traceback" not in answer.stderr
    assert answer.stdout == ""
    # Mistakes in the data are found while it is read, after the lines that say where the run is.
    assert len(told) == 1 or mistake in ("missing data", "a class that is not there")
    assert words in told[-1]
    assert_nothing_left(tmp_path)


@pytest.mark.skipif(torch.cuda.is_available(), reason="the sentence is for machines without a GPU")
def test_a_gpu_that_is_not_there_is_told(tiny: Path, tmp_path: Path) -> None:
    answer = train_py(f"data={tiny}", "device=[0]", cwd=tmp_path)
    assert answer.code != 0
    (sentence,) = answer.stderr.strip().splitlines()
    assert "CUDA" in sentence
    assert "cpu" in sentence
    assert_nothing_left(tmp_path)


@pytest.mark.parametrize(
    ("arguments", "mistake"),
    [({"epochz": 3}, "an unknown key"), ({"batch": 0}, "a batch of 0"), ({"imgsz": 13}, "an input off the stride")],
)
def test_the_python_door_says_the_same(arguments: dict[str, object], mistake: str, tiny: Path, tmp_path: Path) -> None:
    with pytest.raises(UserError) as caught:
        LibreYOLO("yolo9t").train(tiny, project=tmp_path / "out", **arguments)
    assert MISTAKES[mistake][1] in str(caught.value)
    assert list(tmp_path.iterdir()) == []


def test_wrong_data_leaves_no_run_directory_in_python_either(wrong: Path, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"3\.txt:2"):
        LibreYOLO("yolo9t").train(wrong, **(QUICK | {"project": str(tmp_path / "out")}))
    assert list(tmp_path.iterdir()) == []


def test_a_truncated_picture_is_skipped_by_name_and_the_rest_trains(tmp_path: Path) -> None:
    data = draw_set(tmp_path / "set")
    picture = tmp_path / "set" / "images" / "train" / "5.png"
    Image.open(picture).resize((256, 256)).save(picture.with_suffix(".jpg"), quality=95)
    picture.unlink()
    whole = picture.with_suffix(".jpg").read_bytes()
    picture.with_suffix(".jpg").write_bytes(whole[: len(whole) * 6 // 10])
    answer = train_py(f"data={data}", *quick_overrides(), "epochs=1", f"project={tmp_path / 'out'}", cwd=tmp_path)
    assert answer.code == 0, answer.stderr
    assert "5.jpg" in answer.stderr
    assert "1 skipped" in answer.stderr
    assert picture.with_suffix(".jpg").read_bytes() == whole[: len(whole) * 6 // 10], "the user's files stay as they are"
    assert len(list((tmp_path / "out").glob("*/*/weights/best.pt"))) == 1


def test_a_run_that_fails_in_training_says_so_and_keeps_its_records(tiny: Path, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="the loss is not finite"):
        train(tiny, tmp_path / "out", lr0=1e30, warmup_epochs=0, nonfinite="stop")
    status = json.loads((tmp_path / "out" / "exp" / "status.json").read_text())
    assert status["state"] == "failed"
    assert "not finite" in status["error"]
