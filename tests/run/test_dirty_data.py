"""A set with everything that real sets hold trains on two ranks, and is afterwards what it was before."""

from __future__ import annotations

import hashlib
import json
import math
import os
import subprocess
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from libreyolo import LibreYOLO
from libreyolo.data.detection import load_detection
from libreyolo.record.tables import read_results
from tests.run.conftest import QUICK, draw_set

pytestmark = pytest.mark.slow
# Names that a path, a spreadsheet, a terminal's markup, a formula or a page would take for their own.
NAMES = ("../../evil", "=cmd|'/C calc'!A0", "[red]x[/red]", "$\\frac{x}$", "<script>alert(1)</script>", "%s %d {0}")


def digests(folder: Path) -> dict[str, str]:
    return {str(p.relative_to(folder)): hashlib.sha256(p.read_bytes()).hexdigest() for p in sorted(folder.rglob("*")) if p.is_file()}


def draw_zoo(folder: Path) -> Path:
    """Pictures of every mode, turned, thin, broken and misnamed; labels of every kind; names that are not harmless."""
    draw_set(folder, num_train=4, num_val=2)
    images, labels = folder / "images" / "train", folder / "labels" / "train"
    grey = np.tile(np.arange(48, dtype=np.uint8), (40, 1))
    Image.fromarray(grey).save(images / "grey.PNG")
    Image.fromarray(grey > 20).save(images / "one_bit.png")
    Image.fromarray(grey.astype(np.uint16) * 257).save(images / "sixteen.png")
    Image.fromarray(np.dstack([grey] * 4)).save(images / "clear.png")
    Image.new("CMYK", (40, 40), (0, 200, 200, 0)).save(images / "print.jpg")
    Image.new("P", (40, 40), 3).save(images / "moving.gif", save_all=True, append_images=[Image.new("P", (40, 40), 5)])
    exif = Image.Exif()
    exif[0x0112] = 8
    Image.new("RGB", (60, 30), (200, 40, 40)).save(images / "turned.jpg", exif=exif)
    for name, size in (("dot.png", (1, 1)), ("wire.png", (700, 1)), ("line\nbreak é.png", (1, 90))):
        Image.new("RGB", size, (10, 200, 10)).save(images / name)
    (images / "zero.jpg").touch()
    (images / "page.jpg").write_text("<html>not found</html>")
    whole = (images / "turned.jpg").read_bytes()
    (images / "cut.jpg").write_bytes(whole[: len(whole) * 6 // 10])
    (images / "loop").symlink_to(images)
    texts = {
        "grey": "\ufeff0.0\t0.5 0.5 0.4 0.4\r\n",
        "one_bit": "1 0.1 0.1 0.5 0.1 0.5 0.4 0.1 0.4\n",
        "sixteen": "0 512 300 40 40\n0 nan 0.5 0.1 0.1\n",
        "clear": "0 0.98 0.5 0.08 0.2\n0 0.98 0.5 0.08 0.2\n",
        "print": " \n",
        "dot": "0 0.5 0.5 1 1\n",
        "wire": "1 0.5 0.5 0.5 1\n",
        "line\nbreak é": "1 0.5 0.5 1 0.5\n",
    }
    for name, text in texts.items():
        (labels / f"{name}.txt").write_bytes(text.encode())
    content = (folder / "data.yaml").read_text().replace("[red, blue]", json.dumps(NAMES))
    (folder / "data.yaml").write_text(content)
    return folder / "data.yaml"


@pytest.fixture(scope="module")
def zoo(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return draw_zoo(tmp_path_factory.mktemp("zoo"))


def test_it_trains_on_two_ranks_with_finite_numbers_and_not_a_byte_of_it_changes(
    zoo: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    before, above = digests(zoo.parent), sorted(zoo.parent.parent.iterdir())
    arguments = QUICK | {"epochs": 1, "no_aug_epochs": 0, "warmup_epochs": 0, "mosaic_prob": 1.0, "save_plots": True, "max_steps": 2}
    arguments |= {"project": str(tmp_path / "out"), "nproc": 2}
    result = LibreYOLO("yolo9t").train(zoo, **arguments)
    assert digests(zoo.parent) == before
    assert sorted(zoo.parent.parent.iterdir()) == above
    assert result["epoch_losses"] and all(math.isfinite(loss) for loss in result["epoch_losses"])
    folder = Path(result["save_dir"])
    (row,) = read_results(folder / "results.csv")
    assert row["epoch"] == 1
    log = (folder / "train.log").read_text()
    assert "train: 14 pictures" in log
    assert "3 skipped" in log
    for name in ("zero.jpg", "page.jpg", "cut.jpg"):
        assert f"{name}: " in log
    assert "2 ranks" in log
    # Names never become part of a path: what a run leaves is the same for any names.
    written = [p for p in tmp_path.rglob("*") if p.is_file()]
    assert written and all(p.is_relative_to(folder) for p in written)
    assert not [p for p in written if "evil" in p.name or "script" in p.name]
    pages = [p for p in written if p.suffix in (".html", ".htm", ".svg")]
    assert pages == [folder / "report.html"]  # the one file in which a name could be markup
    assert not [name for name in NAMES if "<" in name and name in pages[0].read_text(encoding="utf-8")]
    assert (folder / "plots" / "labels.png").exists()
    assert LibreYOLO(folder / "weights" / "last.pt").names == dict(enumerate(NAMES))


def test_every_rank_sees_the_same_list_whoever_reads_first(zoo: Path, tmp_path: Path) -> None:
    lists = []
    for _ in range(2):  # made, then from the cache
        train = load_detection(zoo).train
        lists.append([str(train.path(i)) for i in range(len(train))])
    assert lists[0] == lists[1] == sorted(lists[0])
    assert len(lists[0]) == 14


def test_a_download_key_starts_no_program_and_no_connection(zoo: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "data.yaml"
    path.write_text(f"path: {zoo.parent}\n" + zoo.read_text().replace("path: .\n", "") + f"download: |\n  touch {tmp_path / 'mark'}\n")
    for place, name in ((subprocess, "Popen"), (os, "system"), (__import__("socket"), "socket")):
        monkeypatch.setattr(place, name, lambda *_, **__: pytest.fail("started"))
    assert len(load_detection(path).train) == 14
    assert not (tmp_path / "mark").exists()
