"""A yoloxn through the doors: fine-tuned from 80 classes on the command line, stopped, resumed in Python in its last epochs, used."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from libreyolo import LibreYOLO
from libreyolo.record.tables import read_results
from tests.run.conftest import QUICK, Run, draw_set, train_py

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def resumed(tmp_path_factory: pytest.TempPathFactory) -> Run:
    folder = tmp_path_factory.mktemp("yolox")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("LIBREYOLO_CACHE", str(folder / "cache"))
        data = draw_set(folder / "set")
        LibreYOLO("yoloxn").save(folder / "LibreYOLOXn.pt")
        own = {name: value for name, value in QUICK.items() if name != "aux_weight"} | {"stop_after_epoch": 1, "project": folder, "data": data}
        answer = train_py("model=yoloxn", "weights=LibreYOLOXn.pt", *(f"{n}={str(v) if isinstance(v, Path) else str(v).lower()}" for n, v in own.items()), cwd=folder)
        assert answer.code == 0, answer.stderr
        (weights,) = folder.glob("*/*/weights")
        model = LibreYOLO("yoloxn")
        run = Run(model.train(resume=str(weights.parent), device="cpu"))
        assert model.nc == 2
        return run


def test_every_tensor_but_the_class_layers_came_from_the_file(resumed: Run) -> None:
    total = len(LibreYOLO("yoloxn").net.state_dict())
    assert f"{total - 6} of {total} tensors taken from" in resumed.log


def test_the_l1_term_is_there_from_the_first_epoch_without_mosaic(resumed: Run) -> None:
    first, second = read_results(resumed.folder / "results.csv")
    assert first["train/l1_loss"] is None
    for name in ("iou", "obj", "cls"):
        assert float(first[f"train/{name}_loss"]) > 0  # type: ignore[arg-type]
        assert float(second[f"train/{name}_loss"]) > 0  # type: ignore[arg-type]
    assert float(second["train/l1_loss"]) > 0  # type: ignore[arg-type]


def test_the_file_says_what_it_is_and_predicts(resumed: Run) -> None:
    saved = resumed.checkpoint("last.pt")
    assert (saved["model_family"], saved["size"], saved["nc"], saved["names"], saved["imgsz"]) == ("yolox", "n", 2, {0: "red", 1: "blue"}, 64)
    assert saved["epoch"] == 1
    model = LibreYOLO(resumed.folder / "weights" / "last.pt")
    assert torch.equal(model.net.state_dict()["head.cls_preds.0.bias"], saved["model"]["head.cls_preds.0.bias"])
    source = next(Path(saved["config"]["data"]).parent.glob("images/val/*.png"))
    [found] = model.predict(source, conf=0.0001)
    assert len(found) > 0
