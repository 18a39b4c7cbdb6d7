"""Weights files of a small network, in the forms that users have."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from libreyolo.engine import checkpoint
from libreyolo.engine.checkpoint import WeightsMeta
from libreyolo.models.yolo9 import network


def state_of(nc: int, **options: Any) -> dict[str, Tensor]:
    """Return the tensors of a yolo9t."""
    torch.manual_seed(nc)
    return network.build("t", nc, **options).state_dict()


@pytest.fixture(scope="session")
def state() -> dict[str, Tensor]:
    """The tensors of a yolo9t of 3 classes; a test that changes the dict copies it first."""
    return state_of(3)


@pytest.fixture(scope="session")
def content(state: dict[str, Tensor]) -> dict[str, Any]:
    """What a good weights file of 3 classes holds; a test that changes it copies it first."""
    return checkpoint.weights_dict(state, WeightsMeta("yolo9", "t", "detect", {0: "ant", 1: "bee", 2: "cat"}, 64, {"letterbox_pad": "topleft"}))


@pytest.fixture
def saved(tmp_path: Path, content: dict[str, Any]) -> Callable[..., Path]:
    """Save the good content with some keys replaced (or, where `...`, removed) and return the path."""

    def save(name: str = "weights.pt", **changes: Any) -> Path:
        changed = {k: v for k, v in {**content, **changes}.items() if v is not ...}
        torch.save(changed, tmp_path / name)
        return tmp_path / name

    return save
