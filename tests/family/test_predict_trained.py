"""A model from training to use: fine-tuned from another class count, validated, saved, and used from the shell."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from libreyolo import LibreYOLO
from libreyolo.__main__ import main
from libreyolo.record.tables import read_results
from tests.run.conftest import QUICK, draw_set

JUDGED = ("metrics/mAP50-95", "metrics/mAP50", "metrics/precision", "metrics/recall", "metrics/AR10")


@dataclass(frozen=True)
class Tuned:
    """An 80-class model after its training on two classes."""

    model: LibreYOLO
    data: Path
    folder: Path
    best: Path


def frame_some_pictures(folder: Path) -> None:
    """Give two validation pictures one object nearly as large as they are: what a network that has hardly trained finds."""
    for label in sorted((folder / "labels" / "val").iterdir())[:2]:
        label.write_text("0 0.5 0.5 0.9 0.9\n")


@pytest.fixture(scope="module")
def tuned(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Tuned]:
    folder = tmp_path_factory.mktemp("tuned")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("LIBREYOLO_CACHE", str(folder / "cache"))
        data = draw_set(folder / "set")
        frame_some_pictures(data.parent)
        LibreYOLO("yolo9t").save(folder / "LibreYOLO9t.pt")
        model = LibreYOLO(folder / "LibreYOLO9t.pt")
        (folder / "exp" / "weights").mkdir(parents=True)
        (folder / "exp" / "weights" / ".last.pt.1.tmp").touch()  # of an earlier life, killed while it saved
        result = model.train(data, **(QUICK | {"project": str(folder), "lr0": 1e-4, "exist_ok": True}))
        yield Tuned(model, data, folder, Path(result["best_checkpoint"]))


def test_the_callers_object_is_the_new_model(tuned: Tuned) -> None:
    model = tuned.model
    assert (model.nc, model.names, model.net.nc) == (2, {0: "red", 1: "blue"}, 2)
    for level in range(3):
        assert tuple(model.net.get_parameter(f"head.cv3.{level}.2.weight").shape[:2]) == (2, 80)
    saved = torch.load(tuned.best, weights_only=True)
    assert (saved["nc"], saved["names"], saved["imgsz"]) == (2, {0: "red", 1: "blue"}, 64)
    assert all(torch.equal(tensor, saved["model"][name]) for name, tensor in model.net.state_dict().items())


def test_nothing_is_left_of_a_save_that_was_killed(tuned: Tuned) -> None:
    assert {p.name for p in tuned.best.parent.iterdir()} == {"last.pt", "best.pt"}


def test_a_stand_alone_validation_gives_the_row_of_the_run(tuned: Tuned) -> None:
    """Of the file alone, in any batch, from the caller's object, and of a weights file with the data named."""
    rows = read_results(tuned.best.parents[1] / "results.csv")
    row = next(r for r in rows if r["epoch"] == LibreYOLO(tuned.best)._file.content["best_epoch"])
    expected = {name: float(row[name]) for name in JUDGED}
    assert 0 < expected["metrics/mAP50-95"] < expected["metrics/mAP50"] < 1
    tuned.model.save(tuned.folder / "mine.pt")
    for name, model, arguments in [
        ("best.pt", LibreYOLO(tuned.best), {}),
        ("best.pt, one by one", LibreYOLO(tuned.best), {"batch": 1}),
        ("the caller's", tuned.model, {}),
        ("saved", LibreYOLO(tuned.folder / "mine.pt"), {"data": str(tuned.data)}),
    ]:
        found = model.val(**arguments, workers=0, device="cpu")
        assert {k: found[k] for k in JUDGED} == pytest.approx(expected, abs=1e-4), name


def test_it_predicts_and_what_it_saves_predicts_the_same(tuned: Tuned) -> None:
    picture = np.asarray(Image.open(next((tuned.data.parent / "images" / "val").iterdir())))
    tuned.model.save(tuned.folder / "again.pt")
    [one] = tuned.model.predict(picture, conf=0.001)
    [other] = LibreYOLO(tuned.folder / "again.pt").predict(picture, conf=0.001)
    assert len(one) > 0
    assert set(one.cls) <= {0, 1}
    assert np.array_equal(one.xyxy, other.xyxy)
    assert np.array_equal(one.conf, other.conf)


def test_the_shell_validates_and_predicts(tuned: Tuned, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["val", str(tuned.best), "--workers", "0", "--device", "cpu"]) == 0
    printed = dict(line.split() for line in capsys.readouterr().out.splitlines())
    assert (printed["speed/images_seen"], printed["metrics/max_det"]) == ("4", "300")  # counts are no fractions
    rows = read_results(tuned.best.parents[1] / "results.csv")
    best = max(float(r["metrics/mAP50-95"]) for r in rows)
    assert float(printed["metrics/mAP50-95"]) == pytest.approx(best, abs=1e-4)

    source, drawn = tuned.data.parent / "images" / "val", tmp_path / "drawn"
    assert main(["predict", str(tuned.best), str(source), "--conf", "0.0001", "--save", str(drawn), "--device", "cpu", "--max-det", "2"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 5
    assert lines[0].startswith(f"{source / '100.png' if (source / '100.png').exists() else source / '0.png'}: ")
    assert all("red" in line or "blue" in line for line in lines[:4])
    assert len(list(drawn.iterdir())) == 4
    two = [str(path) for path in sorted(source.iterdir())[:2]]  # what a shell makes of photos/*.png
    assert main(["predict", str(tuned.best), *two, "--save", str(drawn), "--device", "cpu"]) == 0
    assert [line.split(": ")[0] for line in capsys.readouterr().out.splitlines()] == [*two, "Pictures"]


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["predict", "{best}", "nowhere.jpg"], "nowhere.jpg: no such picture"),
        (["predict", "nowhere.pt", "x.jpg"], "nowhere.pt was not found"),
        (["predict", "{best}", "{set}", "--device", "99"], "device="),
        (["predict", "{best}", "{set}", "--imgsz", "64", "64", "64"], "imgsz=[64, 64, 64] must be"),
        (["val", "{best}", "--data", "nowhere.yaml"], "nowhere.yaml"),
        (["val", "{best}", "--split", "test", "--workers", "0"], "has no test split"),
    ],
)
def test_the_shell_answers_a_mistake_in_one_sentence(arguments: list[str], sentence: str, tuned: Tuned, capsys: pytest.CaptureFixture[str]) -> None:
    places = {"best": str(tuned.best), "set": str(tuned.data.parent / "images" / "val")}
    assert main([a.format(**places) for a in arguments]) == 1
    told = capsys.readouterr().err
    assert sentence in told
    assert told.count("\n") == 1


def test_the_help_shows_commands_that_work(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["--help"])
    assert ended.value.code == 0
    assert "python -m libreyolo val outputs/" in capsys.readouterr().out
    with pytest.raises(SystemExit) as ended:
        main(["predict"])
    assert ended.value.code == 2
    with pytest.raises(SystemExit):
        main([])
    assert "required: {check,val,predict,report}" in capsys.readouterr().err
