"""What becomes of the tests after one that broke the GPU."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from tests import gpu_state


def item(name: str, *marks: str) -> Any:
    return SimpleNamespace(nodeid=name, get_closest_marker=lambda mark: mark if mark in marks else None)


def test_only_tests_on_the_gpu_after_the_one_that_broke_it_are_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu_state, "broken_by", [])
    works = [True]
    monkeypatch.setattr(gpu_state, "answers", lambda: works[0])
    gpu_state.pytest_runtest_teardown(item("first", "gpu"))
    gpu_state.pytest_runtest_setup(item("second", "gpu"))
    works[0] = False
    gpu_state.pytest_runtest_teardown(item("on the CPU"))
    gpu_state.pytest_runtest_setup(item("second", "gpu"))
    gpu_state.pytest_runtest_teardown(item("second", "gpu"))
    with pytest.raises(pytest.skip.Exception, match="has not answered this process since second"):
        gpu_state.pytest_runtest_setup(item("third", "gpu"))
    gpu_state.pytest_runtest_setup(item("on the CPU"))


@pytest.mark.parametrize("error", [None, RuntimeError("Offset increment outside graph capture encountered unexpectedly.")])
def test_a_gpu_that_draws_no_number_does_not_answer(error: Exception | None, monkeypatch: pytest.MonkeyPatch) -> None:
    def rand(*size: int, device: str) -> Any:
        assert device == "cuda"
        if error:
            raise error
        return torch.zeros(1)

    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch, "rand", rand)
    assert gpu_state.answers() == (error is None)
