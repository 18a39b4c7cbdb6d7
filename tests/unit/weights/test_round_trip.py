"""What is saved is what is loaded: metadata, tensors, and the wrappers of other programs."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from libreyolo import LibreYOLO, weights
from libreyolo.engine import checkpoint
from libreyolo.engine.checkpoint import WeightsMeta
from tests.unit.weights.conftest import state_of

META = WeightsMeta("yolo9", "t", "detect", {0: "ant", 1: "bee"}, 64, {})


def same(one: Mapping[str, Tensor], other: Mapping[str, Tensor]) -> bool:
    return list(one) == list(other) and all(torch.equal(one[k], other[k]) and one[k].dtype == other[k].dtype for k in one)


def test_a_weights_file_holds_the_nine_keys_in_their_types(saved: Callable[..., Path], state: dict[str, Tensor], tmp_path: Path) -> None:
    LibreYOLO(saved()).save(tmp_path / "out.pt")
    content = torch.load(tmp_path / "out.pt", weights_only=True)
    assert same(content.pop("model"), state)
    assert content == {
        "schema_version": "1.0",
        "libreyolo_version": "1.6.0",
        "model_family": "yolo9",
        "size": "t",
        "task": "detect",
        "nc": 3,
        "names": {0: "ant", 1: "bee", 2: "cat"},
        "imgsz": 64,
        "letterbox_pad": "topleft",
    }


def test_saved_tensors_are_whole_copies_on_the_cpu(tmp_path: Path) -> None:
    """A view of one row must not drag its whole storage into the file, nor a saved content change with the network."""
    wide = torch.arange(100_000.0).reshape(1000, 100)
    content = checkpoint.weights_dict({"row": wide[3], "turned": wide[:2].t()}, META)
    wide.zero_()
    assert content["model"]["row"].tolist() == [float(v) for v in range(300, 400)]
    assert content["model"]["turned"].is_contiguous()
    checkpoint.write(content, tmp_path / "w.pt")
    assert (tmp_path / "w.pt").stat().st_size < 20_000


def test_extras_go_through_a_load_and_a_save_and_none_is_not_written(saved: Callable[..., Path], tmp_path: Path) -> None:
    path = saved(letterbox_pad="center", licence="CC0", quant=None)
    model = LibreYOLO(path)
    model.save(tmp_path / "out.pt")
    content = torch.load(tmp_path / "out.pt", weights_only=True)
    assert (content["letterbox_pad"], content["licence"]) == ("center", "CC0")
    assert "quant" not in content


@pytest.mark.parametrize(
    ("imgsz", "written", "read"),
    [
        (64, {"imgsz": 64}, 64),
        ([64, 64], {"imgsz": 64}, 64),
        ([96, 64], {"imgsz": 96, "imgsz_h": 96, "imgsz_w": 64}, [96, 64]),
    ],
)
def test_a_rectangular_input_is_written_as_its_larger_side_and_both(
    imgsz: int | list[int], written: dict[str, int], read: Any, tmp_path: Path
) -> None:
    content = checkpoint.weights_dict({}, WeightsMeta("yolo9", "t", "detect", {0: "ant"}, imgsz, {}))
    assert {k: v for k, v in content.items() if k.startswith("imgsz")} == written
    meta = checkpoint.read_meta(content, tmp_path)
    assert meta is not None
    assert meta.imgsz == read


@pytest.mark.parametrize(
    ("names", "read"),
    [
        (["ant", "bee", "cat"], {0: "ant", 1: "bee", 2: "cat"}),
        ({0: "ant", 2: "cat"}, {0: "ant", 1: "class_1", 2: "cat"}),
        ({"0": "ant", "1": "bee", "2": "cat"}, {0: "ant", 1: "bee", 2: "cat"}),
        ({2: "cat", 0: 7, 1: "bee"}, {0: "7", 1: "bee", 2: "cat"}),
    ],
)
def test_names_may_be_a_list_or_a_dict_with_gaps(names: Any, read: dict[int, str], saved: Callable[..., Path]) -> None:
    found = weights.load(saved(names=names)).names
    assert found == read
    assert list(found) == [0, 1, 2]


def test_missing_names_are_warned_of(saved: Callable[..., Path], caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        weights.load(saved(names=["ant"]))
    assert "names 1 of its 3 classes; the others are called class_1" in caplog.text


def test_a_training_checkpoint_gives_its_model_and_not_its_live_weights(saved: Callable[..., Path], state: dict[str, Tensor]) -> None:
    live = {k: torch.zeros_like(v) for k, v in state.items()}
    path = saved(train_model=live, ema=live, optimizer={"state": {}}, epoch=4, config={"imgsz": 64}, progress={})
    file = weights.load(path)
    assert same(file.state, state)
    assert file.extras == {"letterbox_pad": "topleft"}  # training state is no extra: it must not be written on


@pytest.mark.parametrize(
    "wrap",
    [
        lambda s: s,
        lambda s: {"state_dict": s, "epoch": 3},
        lambda s: {"model": s, "ema": None},
        lambda s: {"model": {"state_dict": s}},
        lambda s: {"net": s},
        lambda s: {"ema_net": s},
        lambda s: {"ema": s, "model": {k: torch.zeros_like(v) for k, v in s.items()}},
        lambda s: {"ema": {"module": s, "updates": 5}, "model": {k: torch.zeros_like(v) for k, v in s.items()}},
        lambda s: {"model": {f"module.{k}": v for k, v in s.items()}},
        lambda s: {"model": {f"_orig_mod.{k}": v for k, v in s.items()}},
    ],
)
def test_files_of_other_programs_are_unwrapped(wrap: Callable[[dict[str, Tensor]], Any], state: dict[str, Tensor], tmp_path: Path) -> None:
    torch.save(wrap(state), tmp_path / "foreign.pt")
    file = weights.load(tmp_path / "foreign.pt")
    assert same(file.state, state)
    assert (file.family.name, file.size, file.names, file.imgsz) == ("yolo9", "t", {i: f"class_{i}" for i in range(3)}, 640)


def test_the_training_branch_of_a_file_is_dropped_for_inference_and_kept_for_a_fine_tune(saved: Callable[..., Path], tmp_path: Path) -> None:
    with_branch = state_of(3, aux=True)
    model = LibreYOLO(saved(model=with_branch))
    assert len(with_branch) == 1770
    assert len(model.net.state_dict()) == 1338
    start = model._start(model.family.recipe(), tmp_path, None)
    assert start.state is not None
    assert len(start.state) == 1770


def test_a_file_without_step_counters_loads(saved: Callable[..., Path], state: dict[str, Tensor]) -> None:
    """Old files left BatchNorm's counters out."""
    old = {k: v for k, v in state.items() if not k.endswith("num_batches_tracked")}
    assert same({k: v for k, v in LibreYOLO(saved(model=old)).net.state_dict().items() if k in old}, old)
