"""What was there before a training is left out of Python's searches for garbage while it runs, and no longer."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterator

import pytest

from libreyolo.engine.garbage import set_apart


class Ring:
    """Garbage that only a search finds."""

    def __init__(self) -> None:
        self.self = self


@pytest.fixture(autouse=True)
def nothing_apart() -> Iterator[None]:
    gc.unfreeze()
    yield
    gc.unfreeze()


def dropped() -> weakref.ref[Ring]:
    return weakref.ref(Ring())


def test_what_was_there_before_is_not_looked_at_until_the_block_ends_and_what_comes_inside_is() -> None:
    gc.disable()
    try:
        before = dropped()
        with set_apart():
            inside = dropped()
            gc.collect()
            assert before() is not None and inside() is None
        gc.collect()
        assert before() is None
    finally:
        gc.enable()


def test_an_inner_block_sets_more_apart_and_ends_nothing() -> None:
    with set_apart():
        first = gc.get_freeze_count()
        kept = [[] for _ in range(100)]
        with pytest.raises(KeyError), set_apart():
            assert gc.get_freeze_count() >= first + len(kept)
            raise KeyError
        assert gc.get_freeze_count() >= first
    assert gc.get_freeze_count() == 0


def test_what_the_caller_had_set_apart_stays_so() -> None:
    gc.freeze()
    with set_apart():
        pass
    assert gc.get_freeze_count() > 0
