"""The figures of benchmarks.peers: from events and records to cells."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from PIL import Image

from benchmarks.peers import alone, rows, sets
from benchmarks.peers.__main__ import lacks
from benchmarks.peers.process import Ended
from benchmarks.peers.rows import ROWS, Place, Row, ours, records, result, results_of, theirs, validation
from benchmarks.peers.store import Result
from benchmarks.peers.table import RATIOS, step_alone, tables
from benchmarks.peers.theirs import watched


def ended(*events: tuple[str, dict[str, Any]], code: int | None = 0) -> Ended:
    return Ended(code, [{"event": kind, **facts} for kind, facts in events], ["the last line"], began=100.0, seconds=50.0)


def place(tmp_path: Path, **keys: Any) -> Place:
    return Place(tmp_path, **{"device": "cpu", "num_gpus": 1, "pictures": 8, "epochs": 2, "steps": 1, **keys})


def test_the_rate_is_that_of_the_epochs_after_the_first_and_the_held_ones_are_the_step() -> None:
    stamps = [130.0, 140.0, 150.0, 153.0, 155.0]
    told = [("first step", {"time": 112.5}), ("version", {"version": "x 1"})]
    told += [("epoch", {"time": stamp}) for stamp in stamps] + [("waited", {"seconds": s}) for s in (9.0, 4.0, 6.0)]
    found = results_of(ended(*told), pictures=100, epochs=3)
    assert found == {"images_per_second": 10.0, "waiting": 0.5, "alone": 50.0, "first_step_s": 12.5, "version": "x 1"}


def test_a_process_that_died_in_its_first_epoch_gives_no_rate() -> None:
    found = results_of(ended(("first step", {"time": 112.5}), ("epoch", {"time": 130.0})), pictures=100, epochs=3)
    assert found == {"first_step_s": 12.5}


def test_how_a_process_ended_decides_the_row() -> None:
    assert result(ended(), {"version": "x 1", "waiting": 0.5}, limit=60, left=100) == Result("done", {"waiting": 0.5}, "x 1")
    assert result(ended(code=None), {"waiting": 0.5}, limit=60, left=100) == Result("cut off", {"waiting": 0.5}, "after 60 s", ["the last line"])
    assert result(ended(code=None), {}, limit=60, left=40) is None
    assert result(ended(code=2), {}, limit=60, left=100) == Result("failed", {}, "exit 2: the last line", ["the last line"])
    lacking = ended(("not here", {"why": "x is not installed for python"}), code=3)
    assert result(lacking, {}, limit=60, left=100) == Result("not here", {}, "x is not installed for python")


@pytest.mark.parametrize("script", ["libreyolo_peer.py", "ultralytics_peer.py"])
def test_a_peer_that_is_not_installed_is_a_row_that_says_so(script: str, tmp_path: Path) -> None:
    (tmp_path / "site").mkdir()
    (tmp_path / "site" / "torch.py").write_text("class Tensor: ...\nclass device: ...\n")
    for name in ("libreyolo", "ultralytics", "polars"):
        (tmp_path / "site" / f"{name}.py").write_text(f"raise ImportError('no', name={name!r})\n")
    row = Row("peer", theirs, batch=4, script=script)
    found = theirs(row, place(tmp_path, peer_site=str(tmp_path / "site")), 100.0)
    assert found == Result("not here", {}, f"{script.removesuffix('_peer.py')} is not installed for {sys.executable}")


def test_ours_is_never_measured_in_the_place_of_the_published_libreyolo(tmp_path: Path) -> None:
    site = Path(rows.__file__).parents[2]
    (tmp_path / "torch.py").write_text("class Tensor: ...\nclass device: ...\n")
    fake = {"libreyolo/__init__.py": f"__file__ = {str(site / 'libreyolo' / '__init__.py')!r}\n", "libreyolo/models/__init__.py": ""}
    fake |= {"libreyolo/models/yolo9/__init__.py": "", "libreyolo/models/yolo9/model.py": "LibreYOLO9 = None\n"}
    fake |= {"libreyolo/training/__init__.py": "", "libreyolo/training/trainer.py": ""}
    for name, text in fake.items():
        (tmp_path / "site" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "site" / name).write_text(text)
    (tmp_path / "site" / "torch.py").write_text("class Tensor: ...\nclass device: ...\n")
    found = theirs(Row("peer", theirs, batch=4, script="libreyolo_peer.py"), place(tmp_path, peer_site=str(tmp_path / "site")), 100.0)
    assert found is not None and found.state == "failed" and "in the place of the published libreyolo" in found.note


def events(text: str) -> list[dict[str, Any]]:
    return [json.loads(line.removeprefix("BENCH ")) for line in text.splitlines() if line.startswith("BENCH ")]


def test_a_watched_loader_tells_the_first_step_and_the_waiting_and_then_repeats_its_first_batch(capsys: pytest.CaptureFixture[str]) -> None:
    batches = [{"img": torch.full((2, 3, 4, 4), float(i)), "cls": torch.full((2,), i), "names": ["a", "b"]} for i in range(3)]
    loader = watched.Watched(batches, epochs=1, device="cpu")
    first = list(loader)
    assert [b["img"][0, 0, 0, 0].item() for b in first] == [0, 1, 2]
    assert [e["event"] for e in events(capsys.readouterr().out)] == ["first step", "waited"]
    first[0]["img"].fill_(9)  # what the trainer did to its own batch
    held = list(loader)
    assert len(held) == len(loader) == 3
    assert all(b["img"][0, 0, 0, 0] == 0 and b["names"] == ["a", "b"] for b in held)
    held[0]["cls"].fill_(7)
    assert next(iter(loader))["cls"].tolist() == [0, 0]
    assert events(capsys.readouterr().out) == []


def test_a_loader_that_is_not_to_be_held_goes_on_reading() -> None:
    loader = watched.Watched([torch.zeros(1), torch.ones(1)], epochs=1, device="cpu", held=False)
    assert [b.item() for b in [*loader, *loader]] == [0, 1, 0, 1]


def test_traffic_counts_reads_and_writes_by_hand() -> None:
    a, b = torch.zeros(10), torch.zeros(10)
    for work, expected in (
        (lambda: a + b, 3 * 40),
        (lambda: a.add_(b), 3 * 40),  # both read, one written
        (lambda: a * a, 2 * 40),  # one tensor is read once
        (lambda: a.view(2, 5).t(), 0),
        (lambda: torch.empty(10), 0),
        (lambda: torch.zeros(10), 40),
        (lambda: torch.zeros(1).expand(10) + a, 4 + 4 + 40 + 40),  # made, then read; not ten times
        (lambda: torch._foreach_add_([a, b], 1.0), 4 * 40),
    ):
        with alone.Traffic() as counted:
            work()
        assert counted.total == expected, counted.bytes


def test_traffic_counts_the_backward_too() -> None:
    x = torch.ones(10, requires_grad=True)
    with alone.Traffic() as forward:
        y = (x * 2.0).sum()
    with alone.Traffic() as backward:
        y.backward()
    assert forward.total == 40 + 40 + 40 + 4  # read, written, read, written
    assert backward.bytes["mul"] == 40 + 40 - 36  # the gradient of a sum is one number in memory


def test_own_step_of_rows_that_share_it_and_of_two_gpus() -> None:
    found = {"ours": Result("done", {"alone": 500.0})}
    by_name = {row.name: row for row in ROWS}
    assert [step_alone(by_name[n], found) for n in ("ours", "ours-4-cores", "ours-2-gpus", "yoloxs")] == [500.0, 500.0, 1000.0, None]


def test_the_page_shows_shares_ratios_and_the_ceiling() -> None:
    done = {
        "ours": Result("done", {"images_per_second": 450.0, "alone": 500.0, "waiting": 0.04, "memory_gb": 20.0, "first_step_s": 12.0}, machine="m"),
        "libreyolo": Result("cut off", {"images_per_second": 150.0}, "after 300 s", machine="m"),
        "ultralytics": Result("not here", {}, "ultralytics is not installed", machine="m"),
        "ours-2-gpus": Result("done", {"images_per_second": 900.0}, machine="m"),
        "validation": Result("done", {"pictures": 4096.0, "seconds": 10.0, "serial": 2.0}, machine="m"),
        "validation-2-gpus": Result("done", {"pictures": 4096.0, "seconds": 6.0, "serial": 2.0}, machine="m"),
        "roofline": Result("done", {"bytes": 4e9, "bandwidth": 4e12, "largest": "mul 60%"}, machine="m"),
    }
    page = tables(ROWS, done, ["m"])
    for line in (
        "| ours | 450 | 500 | 90% | 4.0% | 20.0 | 12.0 s |  |",
        "| libreyolo | 150 |  |  |  |  |  | cut off: after 300 s |",
        "| ultralytics |  |  |  |  |  |  | not here: ultralytics is not installed |",
        "| ours-2-gpus | 900 | 1000 | 90% |  |  |  |  |",
        "| validation | 4096 | 10.00 | 8.00 | 2.00 |  |",
        "| roofline | 4.000 | 4000 | 1000 | 500 | 50% | mul 60% |  |",
        "| ours / libreyolo | 3.00 | 3.3 |",
        "| ours-2-gpus / ours | 2.00 | 1.9 |",
        "| ours / its step alone | 0.90 | 0.9 |",
        "| validation, sharded part: time on 1 / on 2 | 2.00 | 1.8 |",
    ):
        assert line in page.splitlines()
    assert "ours-no-aux" not in page and "more than one machine" not in page
    assert "more than one machine" in tables(ROWS, done, ["m", "n"])


def test_rows_have_names_of_their_own_and_what_is_compared_exists() -> None:
    names = [row.name for row in ROWS]
    assert len(set(names)) == len(names)
    assert {n for pair in RATIOS for n in pair[:2]} | {row.step_of for row in ROWS if row.step_of} <= set(names)


def test_rows_that_need_more_gpus_are_left_for_another_machine(tmp_path: Path) -> None:
    two = {row.name for row in ROWS if lacks(row, place(tmp_path, device="cuda", num_gpus=1))}
    assert two == {row.name for row in ROWS if row.name.endswith("-2-gpus")}
    assert [row.name for row in ROWS if lacks(row, place(tmp_path))] == ["libreyolo-2-gpus", "ultralytics-2-gpus"]


def test_the_sets_hold_the_same_pictures_in_every_view(tmp_path: Path) -> None:
    boxes, judged = sets.detection(tmp_path, 2), sets.judged_detection(tmp_path, 2)
    described = yaml.safe_load(judged.read_text())
    assert (described["train"], described["val"], yaml.safe_load(boxes.read_text())["val"]) == ("images/train", "images/train", "images/val")
    picture = (boxes.parent / "images" / "train" / "000001.jpg").read_bytes()
    folders, masks, pairs = sets.class_folders(tmp_path, 2), sets.masks(tmp_path, 2), sets.pairs(tmp_path, 2)
    for place in (folders / "val" / "class1", masks.parent / "images" / "train", pairs.parent / "inputs" / "train"):
        assert (place / "000001.jpg").read_bytes() == picture
    drawn = sets.scene(1)
    with Image.open(masks.parent / "masks" / "train" / "000001.png") as mask:
        assert mask.size == (640, 480) and list(mask.convert("L").tobytes()) == drawn.mask.reshape(-1).tolist()
    label, cx, cy = drawn.rows[-1].split()[:3]  # drawn last, so nothing hides it
    assert drawn.mask[int(float(cy) * 480), int(float(cx) * 640)] == int(label) % sets.NUM_FOLDERS + 1


@pytest.mark.slow
def test_a_training_of_ours_tells_its_moments_and_leaves_its_records(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LIBREYOLO_CACHE", str(tmp_path / "cache"))
    row = Row("small", validation, "resnet18", batch=4, imgsz=32, data=sets.class_folders, limit=500)
    where = place(tmp_path, workers=0)
    data, pictures = rows.make_data(row, where)
    done, run_dir = rows._train(row, where, 500.0, data, {"epochs": 2, "eval_interval": 1, "min_samples": pictures})
    assert done.code == 0, done.tail
    assert [e["event"] for e in done.events] == ["first step", "validation", "epoch", "validation", "epoch"]
    assert all(0 < e["serial"] < e["seconds"] for e in done.of("validation"))
    found = results_of(done, pictures, 2) | records(run_dir)
    assert set(found) == {"images_per_second", "first_step_s", "waiting", "in_epoch"}  # and on a GPU its memory
    assert found["in_epoch"] > found["images_per_second"] > 0 and 0 < found["first_step_s"] < done.seconds


def test_a_step_alone_and_its_traffic_are_told(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LIBREYOLO_CACHE", str(tmp_path / "cache"))
    data = sets.class_folders(tmp_path, 8)
    asked = {
        "model": "resnet18",
        "data": str(data),
        "batch": 4,
        "device": "cpu",
        "steps": 1,
        "keys": rows.our_keys(Row("x", ours, imgsz=32), place(tmp_path)),
    }
    alone.main(asked)
    alone.main({**asked, "count": True})
    timed, counted = events(capsys.readouterr().out)
    assert timed["event"] == "alone" and timed["images_per_second"] > 0
    weights = 4 * 11_180_616  # of resnet18 with 8 classes, float32
    assert counted["event"] == "traffic" and counted["bytes_per_picture"] > 3 * weights / 4  # gradient written; weight read and written
    assert counted["copy_bytes_per_second"] > 0
