"""Going over all files of a split: in threads, in order, with a line in the log; and when too few of them are usable."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from libreyolo.data.memory import available_cpus
from libreyolo.errors import UserError

logger = logging.getLogger(__name__)

Item = TypeVar("Item")
Result = TypeVar("Result")

NO_FILE = (-1, -1)
_SECONDS_BETWEEN_LINES = 5.0


def stamp(path: str) -> tuple[int, int]:
    """Return size and mtime in ns of a file, NO_FILE where there is none."""
    try:
        status = os.stat(path)  # noqa: PTH116 - twice a picture, and Path() would cost more than the call
    except OSError:
        return NO_FILE
    return status.st_size, status.st_mtime_ns


def parallel(work: Callable[[Item], Result], items: Sequence[Item]) -> Iterator[Result]:
    """Map in order over threads: the time goes into waiting for the disk and into Pillow, which both let other threads run."""
    chunk = 64  # one future a picture would cost as much as opening it

    def many(start: int) -> list[Result]:
        return [work(item) for item in items[start : start + chunk]]

    with ThreadPoolExecutor(min(16, 2 * available_cpus())) as pool:
        for results in pool.map(many, range(0, len(items), chunk)):
            yield from results


def progress(results: Iterable[Result], total: int, split: str) -> Iterator[tuple[int, Result]]:
    """Count results, with a line in the log every few seconds."""
    told = time.monotonic()
    for place, result in enumerate(results):
        if time.monotonic() - told > _SECONDS_BETWEEN_LINES:
            told = time.monotonic()
            logger.info("%s: %d of %d pictures scanned", split, place, total)
        yield place, result


def refuse_unusable(skipped: Sequence[tuple[str, str]], num_usable: int, split: str) -> None:
    """Raise UserError where no picture of a split is usable, or more are not than are; `skipped` holds (file, reason)."""
    num_bad = len(skipped)
    if num_bad <= num_usable:
        return
    examples = "; ".join(f"{path}: {reason}" for path, reason in skipped[:3])
    total = num_bad + num_usable
    which = f"none of the {total} pictures is usable" if num_usable == 0 else f"{num_bad} of {total} pictures, more than half, cannot be used"
    raise UserError(f"{split}: {which} (for example {examples}); repair the set or correct its paths.")
