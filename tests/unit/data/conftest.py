"""A cache folder of each test's own, and a builder of small sets."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

BuildSet = Callable[..., Path]


@pytest.fixture(autouse=True)
def cache_root(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    root = tmp_path_factory.mktemp("cache")
    monkeypatch.setenv("LIBREYOLO_CACHE", str(root))
    return root


def save_picture(path: Path, hw: tuple[int, int] = (24, 32), seed: int = 0) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    pixels = np.random.default_rng(seed).integers(0, 256, (*hw, 3), dtype=np.uint8)
    Image.fromarray(pixels).save(path)
    return path


def write_text(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(text.encode())
    return path


@pytest.fixture
def build_set(tmp_path: Path) -> BuildSet:
    """Return a function that writes pictures and labels (None: no file) below `root` and returns the data.yaml."""

    def build(
        train: list[str | None],
        val: list[str | None] | None = None,
        *,
        nc: int = 2,
        root: Path = tmp_path / "set",
        yaml: str = "",
    ) -> Path:
        for split, texts in (("train", train), ("val", val or [])):
            for index, text in enumerate(texts):
                save_picture(root / "images" / split / f"{index:02d}.jpg", seed=index)
                if text is not None:
                    write_text(root / "labels" / split / f"{index:02d}.txt", text)
        val_line = "" if val is None else "val: images/val\n"
        names = ", ".join(f"name{index}" for index in range(nc))
        return write_text(root / "data.yaml", yaml or f"path: .\ntrain: images/train\n{val_line}names: [{names}]\n")

    return build


@pytest.fixture
def six_pictures(tmp_path: Path) -> Path:
    root = tmp_path / "my data" / "ünïcode" / "ds"
    for folder in ("a", "b"):
        for index in range(3):
            save_picture(root / "images" / folder / f"{index}.JPG" if index else root / "images" / folder / "deep" / f"{index}.png")
    return root
