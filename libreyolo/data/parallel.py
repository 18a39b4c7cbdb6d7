"""Work on many files at once."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

Item = TypeVar("Item")
Result = TypeVar("Result")


def in_threads(work: Callable[[Item], Result], items: Sequence[Item]) -> Iterator[Result]:
    """Map in order over threads: the time goes into waiting for the disk and into Pillow, which both let other threads run."""
    chunk = 64  # one future a picture would cost as much as opening it

    def many(start: int) -> list[Result]:
        return [work(item) for item in items[start : start + chunk]]

    with ThreadPoolExecutor(min(16, 2 * (os.cpu_count() or 1))) as pool:
        for results in pool.map(many, range(0, len(items), chunk)):
            yield from results
