"""Python's searches for garbage, kept to what a training itself leaves."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def set_apart() -> Iterator[None]:
    """Leave every object that is there now out of these searches inside the block; garbage among them stays until it ends.

    torch and the rest of what is imported are half a million objects, and each full search looks at all of them: a quarter of a second in which no
    step is launched, whichever thread it falls to. Blocks may be nested: the outermost one, or the caller's own gc.freeze(), decides when it is over.
    """
    outermost = gc.get_freeze_count() == 0
    gc.freeze()
    try:
        yield
    finally:
        if outermost:
            gc.unfreeze()
