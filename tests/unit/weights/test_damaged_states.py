"""A checkpoint whose training state is damaged, foreign or poisoned is one sentence before anything is built."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from libreyolo import resume
from libreyolo.build import Training
from libreyolo.engine.ema import EMA
from libreyolo.engine.progress import Progress
from libreyolo.errors import UserError

STATE: dict[str, Any] = {
    "optimizer": {"state": {}, "param_groups": []},
    "config": {"family": "yolo9", "size": "t"},
    "progress": Progress(2).as_dict(),
}
NAN = torch.tensor([0.0, float("nan")])


def test_a_whole_training_state_is_opened(saved: Callable[..., Path], state: dict[str, Tensor]) -> None:
    found = resume.open_checkpoint(saved("last.pt", **STATE, train_model=state, ema=state))
    assert found.config == STATE["config"] and found.content["progress"]["epoch"] == 2


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"config": ...}, "because its config is not what a run writes; train from its weights with weights="),
        ({"config": "x"}, "its config is not"),
        ({"config": {"family": "yolo9"}}, "its config is not"),
        ({"progress": "x"}, "its progress is not"),
        ({"progress": {"epoch": "two"}}, "its progress is not"),
        ({"progress": {"epoch": -1}}, "its progress is not"),
        ({"progress": {"epoch": 1, "of_tomorrow": 1}}, "its progress is not"),
        ({"optimizer": [1]}, "its optimizer is not"),
        ({"train_model": ...}, "its train_model is not"),
        ({"train_model": {"w": NAN}}, "because its weights are not finite (tensor w): resume an earlier checkpoint of the run"),
        ({"train_model": {}}, "holds no state dict"),
    ],
)
def test_a_damaged_one_is_told(changes: dict[str, Any], sentence: str, saved: Callable[..., Path], state: dict[str, Tensor]) -> None:
    path = saved("last.pt", **{**STATE, "train_model": state, "ema": state, **changes})
    with pytest.raises(UserError) as refused:
        resume.open_checkpoint(path)
    assert str(refused.value).startswith(str(path)) and sentence in str(refused.value)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"ema": ...}, "it lacks 'ema'"),
        ({"train_model": {"weight": torch.zeros(2, 2)}}, 'Missing key(s) in state_dict: "bias"'),
        ({"optimizer": {"state": {}, "param_groups": []}}, "different number of parameter groups"),
        ({"ranks": [1]}, "int"),
        ({"ema_updates": None}, "int"),
    ],
)
def test_one_that_does_not_fit_is_told_with_its_file(changes: dict[str, Any], reason: str) -> None:
    net = nn.Linear(2, 2)
    training = Training(None, net, EMA(net, decay=0.9, tau=1.0), torch.optim.SGD(net.parameters(), 0.1), ExitStack())  # type: ignore[arg-type]
    good = {"train_model": net.state_dict(), "model": {}, "ema": net.state_dict(), "ema_updates": 1, "optimizer": training.optimizer.state_dict()}
    training.load_state(good, Path("last.pt"))
    content = {key: value for key, value in {**good, **changes}.items() if value is not ...}
    with pytest.raises(UserError, match=r"^last\.pt does not fit this run and was not resumed: ") as refused:
        training.load_state(content, Path("last.pt"))
    assert reason in str(refused.value)


@pytest.mark.parametrize(
    ("names", "sentence"),
    [
        ({0: "ant", 1: "bee", 2: "cat"}, None),
        ({0: "ant", 1: "wasp", 2: "cat"}, None),  # spelt anew
        ({}, None),  # a task without classes
        ({0: "bee", 1: "ant", 2: "cat"}, "was trained with class 'ant' as id 0, which is 1 in the data now"),
        ({0: "ant", 1: "bee"}, "was trained on 3 classes and the data has 2 now"),
    ],
)
def test_the_data_of_a_resumed_run_has_its_classes_in_their_order(names: dict[int, str], sentence: str | None) -> None:
    content = {"names": {0: "ant", 1: "bee", 2: "cat"}}
    resumed = resume.Resumed(Path("run/weights/last.pt"), Path("run"), content, {})
    if sentence is None:
        resume.refuse_other_classes(resumed, names)
        return
    with pytest.raises(UserError) as refused:
        resume.refuse_other_classes(resumed, names)
    assert sentence in str(refused.value)
