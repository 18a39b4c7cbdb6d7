"""What the `build` of every family refuses, in one sentence each."""

from __future__ import annotations

from collections.abc import Iterable

from libreyolo.errors import UserError


def check_build(family: str, size: str, sizes: Iterable[str], nc: int | None = None) -> None:
    """Raise UserError for a size that the family does not have, or for less than one class (nc; None: the family has no classes)."""
    known = list(sizes)
    if size not in known:
        raise UserError(f"{family} has no size {size!r}; use one of {', '.join(known)}.")
    if nc is not None and nc < 1:
        raise UserError(f"{family} needs at least 1 class, not nc={nc}; name the classes in the data file.")
