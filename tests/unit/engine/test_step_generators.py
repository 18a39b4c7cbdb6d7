"""The process's own generators: the caller's are put back, and seeds reach all three."""

from __future__ import annotations

import random

import numpy as np
import pytest
import torch

from libreyolo.engine.generators import caller_untouched, seed_process


def draws() -> tuple[float, float, float]:
    return random.random(), float(np.random.rand()), float(torch.rand(1))


def test_the_caller_s_generators_go_on_as_if_nothing_had_happened() -> None:
    seed_process(1)
    expected = draws()
    seed_process(1)
    with caller_untouched():
        seed_process(2)
        draws()
    assert draws() == expected


def test_they_are_put_back_after_an_error_too() -> None:
    seed_process(1)
    expected = draws()
    seed_process(1)
    with pytest.raises(KeyError), caller_untouched():
        draws()
        raise KeyError
    assert draws() == expected


def test_a_seed_decides_all_three_and_another_seed_changes_all_three() -> None:
    found = []
    for seed in (7, 7, 2**62 + 12):
        seed_process(seed)
        found.append(draws())
    assert found[0] == found[1]
    assert all(a != b for a, b in zip(found[0], found[2], strict=True))


def test_a_seed_reaches_the_generators_of_every_gpu_that_is_in_use(monkeypatch: pytest.MonkeyPatch) -> None:
    of_gpus = (torch.Generator(), torch.Generator())
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "default_generators", of_gpus)
    seed_process(2**62 + 12)
    assert [generator.initial_seed() for generator in (torch.default_generator, *of_gpus)] == [2**62 + 12] * 3


def test_a_seed_gives_the_draws_that_torch_gives_for_it() -> None:
    seed_process(12345)
    ours = torch.rand(3)
    torch.manual_seed(12345)
    assert torch.equal(ours, torch.rand(3))
