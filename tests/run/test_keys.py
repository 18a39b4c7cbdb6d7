"""Root keys do what they say, seen from outside."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from libreyolo import LibreYOLO, schema
from libreyolo.assembly import assembly_for
from libreyolo.assembly.parts import Seat
from libreyolo.engine.freeze import parts
from libreyolo.errors import UserError
from libreyolo.record.tables import read_results
from tests.run.conftest import QUICK, draw_picture, draw_set, train

SEAT = Seat(0, 1, 1, torch.device("cpu"))


def assembly(data: Path | str | None, cwd: Path, **arguments: Any) -> Any:
    """Return a run's data as `train` would read it, without training."""
    values = QUICK | {"mosaic_prob": 0.0, "flip_prob": 0.0, "hsv_prob": 0.0} | arguments | ({} if data is None else {"data": str(data)})
    family = schema.family("yolo9")
    return assembly_for(family)(family, schema.resolve(family, "t", values), family.input, cwd)


def epoch_indices(found: Any, epoch: int = 0) -> list[int]:
    batches = list(found.train_loader(SEAT, 4).epoch(epoch))
    return [int(i) for b in batches for i, w in zip(b.index, b.weight, strict=True) if w > 0]


def labels_seen(found: Any) -> set[int]:
    return {int(c) for b in found.train_loader(SEAT, 4).epoch(0) for c in b.labels[b.valid]}


def test_data_dir_replaces_the_root_of_the_yaml(tmp_path: Path) -> None:
    data = draw_set(tmp_path / "set", num_train=3)
    elsewhere = tmp_path / "data.yaml"
    elsewhere.write_text("path: /nowhere/at/all\n" + data.read_text().split("\n", 1)[1])
    assert len(assembly(elsewhere, tmp_path, data_dir=str(tmp_path / "set")).data.train) == 3


def test_data_dir_alone_is_the_folder_of_the_yaml_relative_to_where_the_command_was_given(tmp_path: Path) -> None:
    draw_set(tmp_path / "set", num_train=3)
    assert len(assembly(None, tmp_path, data_dir="set").data.train) == 3


def test_a_class_count_that_contradicts_the_data_is_refused(tiny: Path, tmp_path: Path) -> None:
    assert len(assembly(tiny, tmp_path, num_classes=2).names) == 2
    with pytest.raises(UserError, match=r"num_classes=5, but .* has 2 classes"):
        assembly(tiny, tmp_path, num_classes=5)


def test_min_samples_repeats_a_tiny_set_evenly(tiny: Path, tmp_path: Path) -> None:
    indices = epoch_indices(assembly(tiny, tmp_path, min_samples=16))
    assert len(indices) >= 16
    assert set(np.bincount(indices)) == {len(indices) // 8}


def test_class_balanced_repeats_pictures_of_a_rare_class(tmp_path: Path) -> None:
    """One picture of 40 holds class 1: a share of 0.025 below the threshold of 0.1 repeats it sqrt(4) = 2 times."""
    data = draw_set(tmp_path / "set", num_train=1)
    for i in range(40, 78):
        draw_picture(tmp_path / "set" / "images" / "train" / f"{i}.png", i, (0,))
    draw_picture(tmp_path / "set" / "images" / "train" / "99.png", 99, (1,))
    pictures = assembly(data, tmp_path).data.train
    rare = next(i for i in range(40) if pictures.path(i).name == "99.png")

    def shown(**arguments: Any) -> int:
        found = assembly(data, tmp_path, **arguments)
        return sum(epoch_indices(found, epoch).count(rare) for epoch in range(2))

    assert shown() == 2
    assert shown(class_balanced=True) == 4


def test_single_cls_merges_all_labels_into_class_0(tiny: Path, tmp_path: Path) -> None:
    assert labels_seen(assembly(tiny, tmp_path)) == {0, 1}
    merged = assembly(tiny, tmp_path, single_cls=True)
    assert labels_seen(merged) == {0}
    assert len(merged.names) == 1


def test_classes_keeps_only_those_without_renumbering(tiny: Path, tmp_path: Path) -> None:
    kept = assembly(tiny, tmp_path, classes=[1])
    assert labels_seen(kept) == {1}
    assert len(kept.names) == 2
    with pytest.raises(UserError, match="classes"):
        assembly(tiny, tmp_path, classes=[7])


def test_class_weights_are_inverse_frequencies_to_the_given_power_with_mean_1(tiny: Path, tmp_path: Path) -> None:
    """The set has 8 boxes of class 0 and 4 of class 1: to the power 0.5 the weights stand as 1 to the root of 2."""
    weights = assembly(tiny, tmp_path, cls_pw=0.5).task().criterion.class_weights
    assert weights.mean().item() == pytest.approx(1.0)
    assert (weights[1] / weights[0]).item() == pytest.approx(2**0.5)
    assert assembly(tiny, tmp_path, cls_pw=0.0).task().criterion.class_weights is None


@pytest.mark.parametrize("once", [{"epochs": 1}, {"max_steps": 3}])
def test_pictures_that_are_seen_only_once_are_kept_only_where_that_is_asked_for(tiny: Path, tmp_path: Path, once: dict[str, Any]) -> None:
    for keys, kept in (({"epochs": 2}, True), (once, False), ({**once, "cache": "ram"}, True), ({"epochs": 2, "cache": False}, False)):
        found = assembly(tiny, tmp_path, **keys)
        assert (found.data.train.cache is not None) == (found.data.val.cache is not None) == kept, keys
        found.close()


def first_batch(found: Any) -> Tensor:
    try:
        return next(iter(found.train_loader(SEAT, 4).epoch(0))).images
    finally:
        found.close()


def test_a_cache_in_memory_or_on_disk_shows_the_same_pictures(tiny: Path, tmp_path: Path) -> None:
    plain = first_batch(assembly(tiny, tmp_path, cache=False))
    assert torch.equal(plain, first_batch(assembly(tiny, tmp_path, cache="ram")))
    on_disk = assembly(tiny, tmp_path, cache="disk")
    assert torch.equal(plain, first_batch(on_disk))
    assert torch.equal(plain, first_batch(assembly(tiny, tmp_path, cache="disk"))), "read back from the disk"
    assert {p.name for p in tiny.parent.iterdir()} == {"data.yaml", "images", "labels"}, "nothing is written beside the user's files"


def test_a_tracker_whose_package_is_missing_is_told_before_training_and_leaves_nothing(
    tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "mlflow", None)
    with pytest.raises(UserError, match=r"needs the package mlflow, which is not installed; run: pip install"):
        train(tiny, tmp_path / "out", loggers=["csv", "mlflow"])
    assert list(tmp_path.iterdir()) == []


def test_weights_in_python_name_the_constructor(tiny: Path, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"LibreYOLO\('a\.pt'\)\.train"):
        train(tiny, tmp_path, weights="a.pt")


@pytest.mark.slow
def test_deterministic_leaves_torch_and_the_environment_as_they_were(tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CUBLAS_WORKSPACE_CONFIG", raising=False)
    seen: dict[str, Any] = {}

    class Look:
        def on_train_start(self, event: Any) -> None:
            seen.update(on=torch.are_deterministic_algorithms_enabled(), workspace=os.environ.get("CUBLAS_WORKSPACE_CONFIG"))
            seen.update(search=torch.backends.cudnn.benchmark)

    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))  # torch's compiler sets it when it is first imported, in whichever test that is
    before = dict(os.environ)
    train(tiny, tmp_path, epochs=1, deterministic=True, callbacks=[Look()])
    assert seen == {"on": True, "workspace": ":4096:8", "search": False}
    assert not torch.are_deterministic_algorithms_enabled()
    assert dict(os.environ) == before
    train(tiny, tmp_path, epochs=1, cudnn_benchmark=True, callbacks=[Look()])
    assert seen == {"on": False, "workspace": None, "search": True}
    assert not torch.backends.cudnn.benchmark


@pytest.mark.slow
def test_a_user_who_asked_torch_for_determinism_still_has_it_after_an_ordinary_run(tiny: Path, tmp_path: Path) -> None:
    torch.use_deterministic_algorithms(True, warn_only=True)
    try:
        train(tiny, tmp_path, epochs=1)
        assert torch.are_deterministic_algorithms_enabled()
        assert torch.is_deterministic_algorithms_warn_only_enabled()
    finally:
        torch.use_deterministic_algorithms(False)


@pytest.mark.slow
def test_freeze_and_precise_bn_and_save_period_and_average_in_one_run(tiny: Path, tmp_path: Path) -> None:
    model = LibreYOLO("yolo9t")
    model.save(tmp_path / "start.pt")
    done = train(tiny, tmp_path / "out", tmp_path / "start.pt", freeze=3, precise_bn=8, save_period=2, average_best=2, epochs=3)
    live, start = done.checkpoint()["train_model"], torch.load(tmp_path / "start.pt", weights_only=True)["model"]
    frozen = tuple(f"{name}." for name in parts(model.net)[:3])
    assert [n for n in live if n.startswith(frozen) and not torch.equal(live[n], start[n])] == []
    assert [n for n in live if not n.startswith(frozen) and live[n].shape == start[n].shape and not torch.equal(live[n], start[n])]
    assert {p.name for p in (done.folder / "weights").iterdir()} == {"last.pt", "best.pt", "epoch_2.pt", "average.pt"}
    assert done.result["average_checkpoint"] == str(done.folder / "weights" / "average.pt")
    LibreYOLO(done.folder / "weights" / "average.pt")


@pytest.mark.slow
def test_an_eval_interval_beyond_the_last_epoch_still_validates_the_end(tiny: Path, tmp_path: Path) -> None:
    done = train(tiny, tmp_path, eval_interval=50)
    assert [row["validated"] for row in read_results(done.folder / "results.csv")] == [0, 1]
    assert done.checkpoint("best.pt")["epoch"] == 1
