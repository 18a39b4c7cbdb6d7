"""A run that stopped and went on is the run that never stopped, bit for bit on the CPU."""

from __future__ import annotations

import gc
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

from libreyolo import LibreYOLO, build, door
from libreyolo.data.loader import Loader
from libreyolo.errors import UserError
from libreyolo.place import Place
from libreyolo.record.tables import read_results
from tests.run.conftest import Run, draw_set, quick_overrides, train, train_py

# Mosaic closes after epoch 3 of 6, which is where the first part stops; the warm-up of 1.5 epochs ends inside it.
LONG: dict[str, Any] = {"epochs": 6, "no_aug_epochs": 3, "warmup_epochs": 1.5, "mixup_prob": 0.5, "degrees": 5.0, "eval_interval": 2}


def rows(run: Run) -> list[dict[str, Any]]:
    """Return results.csv without what a clock says."""
    return [
        {k: v for k, v in row.items() if k != "time" and not k.startswith(("speed/", "system/"))} for row in read_results(run.folder / "results.csv")
    ]


def differences(a: Any, b: Any, where: str = "") -> list[str]:
    """Return the places at which two checkpoints differ, paths and clocks left out."""
    if isinstance(a, torch.Tensor):
        return [] if torch.equal(a, b) else [where]
    if isinstance(a, dict):
        if a.keys() != b.keys():
            return [f"{where}: {a.keys() ^ b.keys()}"]
        return [d for k in a for d in differences(a[k], b[k], f"{where}/{k}")]
    if isinstance(a, list):
        return [d for i, (x, y) in enumerate(zip(a, b, strict=True)) for d in differences(x, y, f"{where}/{i}")]
    return [] if a == b else [where]


def assert_same_run(whole: Run, resumed: Run) -> None:
    clocks = ("/progress/seconds", "/progress/best_metrics/speed")
    told = ("/config/resume", "/config/stop_after_epoch", "/config/project", "/config/name", "/config/workers", "/config/device")
    for name in ("last.pt", "best.pt"):
        found = differences(whole.checkpoint(name), resumed.checkpoint(name))
        assert [d for d in found if not d.startswith(clocks + told)] == [], name
    assert rows(whole) == rows(resumed)


@pytest.fixture(scope="module")
def whole(tiny: Path, tmp_path_factory: pytest.TempPathFactory) -> Run:
    return train(tiny, tmp_path_factory.mktemp("whole"), **LONG)


@pytest.fixture(scope="module")
def stopped(tiny: Path, tmp_path_factory: pytest.TempPathFactory) -> Run:
    """The first three of six epochs."""
    return train(tiny, tmp_path_factory.mktemp("stopped"), stop_after_epoch=3, **LONG)


def copied(run: Run, folder: Path) -> Path:
    """Copy a run directory, so that every test resumes the same one; return the copy."""
    return Path(shutil.copytree(run.folder, folder / "run"))


@pytest.mark.slow
def test_stopped_when_mosaic_closes_and_resumed_from_python(whole: Run, stopped: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    begun: list[Any] = []
    start, build_network = Loader.start, build.training_network
    monkeypatch.setattr(Loader, "start", lambda self, *place: (begun.append(place), start(self, *place)))
    monkeypatch.setattr(build, "training_network", lambda *given: (begun.append("network"), build_network(*given))[1])
    folder = copied(stopped, tmp_path)
    assert [row["epoch"] for row in read_results(folder / "results.csv")] == [1, 2, 3]
    resumed = Run(LibreYOLO(folder / "weights" / "last.pt").train(resume=True))
    assert resumed.folder == folder
    assert "Going on from" in resumed.log
    # Loader processes read what is trained first while everything else is made, and those of the validations start before epochs 4 and 6 end.
    assert begun == [(3, 0, 6), "network", (0,), (0,)]
    assert gc.get_freeze_count() == 0
    assert_same_run(whole, resumed)


@pytest.mark.slow
def test_resumed_with_other_workers_through_the_hydra_door(whole: Run, stopped: Run, tmp_path: Path) -> None:
    folder = copied(stopped, tmp_path)
    answer = train_py(f"resume={folder}", "workers=2", "devices=cpu", cwd=tmp_path)
    assert answer.code == 0, answer.stderr
    assert "resume: workers=2 replaces the saved workers=0." in answer.stderr
    resumed = Run({"save_dir": str(folder)})
    assert_same_run(whole, resumed)
    assert {p.name for p in tmp_path.iterdir()} <= {"run", "outputs"}


@pytest.mark.slow
def test_stopped_inside_the_warm_up_while_accumulating(tiny: Path, tmp_path: Path) -> None:
    """Windows of two micro-batches of two pictures, in a set of seven: the last window is short."""
    data = draw_set(tmp_path / "set", num_train=7, num_val=1)
    numbers = LONG | {"epochs": 3, "no_aug_epochs": 1, "batch": 2, "nbs": 4}
    straight = train(data, tmp_path / "a", **numbers)
    first = train(data, tmp_path / "b", stop_after_epoch=1, **numbers)
    assert_same_run(straight, train(data, tmp_path / "b", resume=str(first.folder), **numbers))


@pytest.mark.slow
def test_more_epochs_plan_the_rest_anew(stopped: Run, tmp_path: Path) -> None:
    folder = copied(stopped, tmp_path)
    longer = Run(LibreYOLO(folder / "weights" / "last.pt").train(resume=True, epochs=8, stop_after_epoch=4))
    # Step 7 (of the fourth epoch's 6 and 7): peak 0.01 at step 3 and 0.0001 at the end, now 16 steps instead of 12.
    assert rows(longer)[-1]["lr/group0"] == pytest.approx(0.01 + (0.0001 - 0.01) * (7 - 3) / (16 - 3))
    assert "resume: epochs=8 replaces the saved epochs=6." in longer.log


def test_a_finished_run_is_refused_and_its_model_left_alone(whole: Run) -> None:
    model = LibreYOLO(whole.folder / "weights" / "last.pt")
    with pytest.raises(UserError, match="has finished all 6 of its 6 epochs; give a larger epochs= to train on"):
        model.train(resume=True)


@pytest.mark.parametrize("path", ["weights/last.pt", "weights", ""])
def test_a_checkpoint_its_folder_and_its_run_directory_all_name_it(whole: Run, path: str) -> None:
    with pytest.raises(UserError, match=r"last\.pt has finished all"):
        LibreYOLO("yolo9t").train(resume=str(whole.folder / path))


def test_auto_and_true_take_the_newest_run_below_the_project(whole: Run, tmp_path: Path) -> None:
    for wish in ("auto", True):
        with pytest.raises(UserError, match=r"last\.pt has finished all"):
            LibreYOLO("yolo9t").train(resume=wish, project=str(whole.folder.parent))
    with pytest.raises(UserError, match=r"resume=true found no weights/last\.pt below"):
        LibreYOLO("yolo9t").train(resume=True, project=str(tmp_path))
    with pytest.raises(UserError, match="data is missing"):  # auto starts afresh where there is nothing
        LibreYOLO("yolo9t").train(resume="auto", project=str(tmp_path))


def test_another_model_is_refused(stopped: Run) -> None:
    with pytest.raises(UserError, match=r"is a run of yolo9t, not of yolo9s"):
        LibreYOLO("yolo9s").train(resume=str(stopped.folder))


def test_a_plain_weights_file_is_refused(tmp_path: Path) -> None:
    model = LibreYOLO("yolo9t")
    model.save(tmp_path / "plain.pt")
    with pytest.raises(UserError, match=r"holds weights but no training state to resume; train from it with weights="):
        model.train(resume=str(tmp_path / "plain.pt"))


@pytest.mark.slow
def test_a_fine_tune_keeps_its_tower_width_and_letterbox_when_resumed_by_name(tiny: Path, tmp_path: Path) -> None:
    """The towers of an 80-class file are wider than a fresh two-class model's; the checkpoint says so, the model name does not."""
    start = LibreYOLO("yolo9t")
    start._extras["letterbox_pad"] = "center"
    start.save(tmp_path / "start.pt")
    first = train(tiny, tmp_path / "out", tmp_path / "start.pt", epochs=2, stop_after_epoch=1)
    second = Run(LibreYOLO("yolo9t").train(resume=str(first.folder), device="cpu"))
    content = second.checkpoint()
    assert content["progress"]["epoch"] == 2
    assert content["letterbox_pad"] == "center"
    assert content["model"]["head.cv3.0.0.conv.weight"].shape[0] == 80
    assert content["config"]["weights"] == str(tmp_path / "start.pt")


@pytest.mark.slow
def test_weights_kept_for_the_average_survive_a_stop(tiny: Path, tmp_path: Path) -> None:
    numbers = {"epochs": 4, "average_best": 3}
    straight = train(tiny, tmp_path / "a", **numbers)
    first = train(tiny, tmp_path / "b", stop_after_epoch=2, **numbers)
    second = train(tiny, tmp_path / "b", resume=str(first.folder), **numbers)
    a, b = straight.checkpoint("average.pt")["model"], second.checkpoint("average.pt")["model"]
    assert differences(a, b) == []
    assert not list(second.folder.glob("weights/candidate_*"))


@pytest.mark.slow
def test_the_same_command_with_auto_goes_on_in_the_same_directory(tiny: Path, tmp_path: Path) -> None:
    command = [f"data={tiny}", *quick_overrides(), f"project={tmp_path / 'out'}", "resume=auto"]
    assert train_py(*command, "stop_after_epoch=1", cwd=tmp_path).code == 0
    assert train_py(*command, cwd=tmp_path).code == 0
    (results,) = (tmp_path / "out").glob("*/*/results.csv")
    assert [row["epoch"] for row in read_results(results)] == [1, 2]


def test_fewer_epochs_than_were_trained_are_refused_also_where_the_run_was_stopped(stopped: Run) -> None:
    with pytest.raises(UserError, match=r"last\.pt has finished 3 epochs, more than epochs=2; give a larger epochs= to train on"):
        LibreYOLO("yolo9t").train(resume=str(stopped.folder), epochs=2)


def test_two_places_to_start_from_are_a_contradiction(stopped: Run) -> None:
    with pytest.raises(UserError, match=r"pretrained=True and resume=.*last\.pt both say where to start: give one of them"):
        LibreYOLO("yolo9t").train(resume=str(stopped.folder), pretrained=True)
    typed = {"weights": "x.pt", "resume": str(stopped.folder), "project": "outputs", "family": "yolo9", "size": "t"}
    with pytest.raises(UserError, match=r"weights=x\.pt and resume=.* both say where to start"):
        door.train_from_config(typed, ["weights=x.pt"], Place(stopped.folder.parent))


@pytest.mark.slow
def test_an_argument_that_the_saved_state_does_not_fit_is_named(stopped: Run, tmp_path: Path) -> None:
    folder = copied(stopped, tmp_path)
    with pytest.raises(UserError, match=r"cannot go on as asked \(optimizer=adamw replaces the saved optimizer=sgd\): leave that out, or start anew"):
        LibreYOLO("yolo9t").train(resume=str(folder), optimizer="adamw")
