"""cache=auto and cache=ram: what a training and its validations ask for is what is kept, whichever task asks, also where pictures are shrunk."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from libreyolo import schema
from libreyolo.assembly import assembly_for
from libreyolo.assembly.parts import Judged, Seat
from libreyolo.data import picture_set
from libreyolo.data.class_shapes import make_class_shapes
from libreyolo.data.semantic_shapes import make_semantic_shapes
from libreyolo.data.shapes import make_shapes
from libreyolo.data.shapes_restore import make_shapes_restore

SEAT = Seat(0, 1, 1, torch.device("cpu"))
# Pictures of 150 pixels and inputs of 64 or less: training sees them shrunk, a validation as they are.
FAMILIES: list[tuple[str, str, Callable[..., Path]]] = [
    ("yolo9", "t", make_shapes),  # letterboxed
    ("yolox", "n", make_shapes),
    ("rtdetr", "r18", make_shapes),  # stretched: both sides are covered
    ("fomo", "s", make_shapes),
    ("resnet", "18", make_class_shapes),
    ("unet", "s", make_semantic_shapes),
    ("nafnet", "s", make_shapes_restore),
]


def batches(found: Any) -> list[Any]:
    """Return an epoch of training and a validation."""
    seen = []
    for loader in (found.train_loader(SEAT, 4), found.val_loader(SEAT, 4)):
        seen += list(loader.epoch(0))
        loader.close()
    return seen


@pytest.mark.parametrize(("family_name", "size", "make"), FAMILIES, ids=[name for name, *_ in FAMILIES])
def test_no_picture_is_decoded_twice_and_none_looks_different(
    family_name: str, size: str, make: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = make(tmp_path / "set", num_train=8, num_val=4, size=150)
    family = schema.family(family_name)

    def assembly(cache: Any, judged: Judged | None = None) -> Any:
        keys = {"data": str(data), "imgsz": 64, "batch": 4, "workers": 0, "epochs": 2, "cache": cache}
        recipe = schema.resolve(family, size, keys)
        return assembly_for(family)(family, recipe, family.input, tmp_path, judged)

    plain = batches(assembly(False))
    kept = assembly("auto")
    calls: list[Path] = []

    def counted(decode: Callable[..., Any]) -> Callable[..., Any]:
        def call(path: Path, *arguments: Any) -> Any:
            calls.append(path)
            return decode(path, *arguments)

        return call

    for name in ("decode_picture", "decode_part"):
        monkeypatch.setattr(picture_set, name, counted(getattr(picture_set, name)))
    found = batches(kept)
    assert calls == []
    kept.close()
    assert len(found) == len(plain) == 3
    for one, other in zip(plain, found, strict=True):
        assert torch.equal(one.images, other.images)
    # Who only judges sees each picture once, and keeps none.
    names = kept.names
    judging = assembly("auto", Judged("val", names))
    assert calls == []
    list(judging.val_loader(SEAT, 4).epoch(0))
    assert len(calls) == len(set(calls)) > 0
    judging.close()
