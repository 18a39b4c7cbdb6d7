"""The one kind of error that a user can mend.

A `UserError` carries one sentence: what is wrong, where, and what to do. The doors print that sentence without a traceback and leave with a
non-zero exit code; in Python it is a `ValueError`. A real bug is never wrapped in it and keeps its traceback.
"""

from __future__ import annotations

import errno
import os
import re
import shutil
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from difflib import get_close_matches
from pathlib import Path


class UserError(ValueError):
    """A mistake in what the user gave, told in one sentence.

    on_every_rank: whether all ranks of a job find the same mistake, so that rank 0 alone says it; False for what one rank meets, like a broken
    picture of its share.
    """

    one_sentence = True
    on_every_rank = True

    def __init__(self, sentence: str = "") -> None:
        super().__init__(printable(sentence))


# C0 and C1 controls (a terminal obeys them), the separators that end a line, the marks that turn the direction of text, the byte
# order mark, lone surrogates.
_CONTROLS = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069\ufeff\ud800-\udfff]")


def printable(text: str, keep: str = "") -> str:
    """Return `text` as one line that is safe on a terminal and in a log: control characters are written as their escapes (`\\n`, `\\x1b`), those in
    `keep` left as they are."""
    return _CONTROLS.sub(lambda found: found[0] if found[0] in keep else found[0].encode("unicode_escape").decode(), text)


def counted(number: int, noun: str) -> str:
    """Return "1 rank", "2 ranks" or "0 ranks" for the noun "rank"."""
    return f"{number} {noun}{'' if number == 1 else 's'}"


class AgreedError(UserError):
    """A UserError that every rank raises at the same place, because all of them know the same; rank 0 alone says it."""


# What a machine may run out of or forbid, and what to do.
ELSEWHERE = "choose another place with project= (of temporary files: TMPDIR, of caches: LIBREYOLO_CACHE)"
RUN_OUT = {
    errno.EMFILE: "raise ulimit -n in the shell that starts the training, or lower workers",
    errno.ENFILE: "the whole system has reached its limit: end other programs, or lower workers",
    errno.ENOSPC: f"make room, or {ELSEWHERE}",
    errno.EDQUOT: f"make room below your quota, or {ELSEWHERE}",
    errno.EROFS: ELSEWHERE,
    errno.EACCES: f"change its permissions, or {ELSEWHERE}",
    errno.EPERM: f"change its permissions, or {ELSEWHERE}",
}
FORBIDDEN = (errno.EROFS, errno.EACCES, errno.EPERM)
SHARED_MEMORY = "/dev/shm"  # in which loader processes keep their semaphores
FULL_BELOW = 1 << 20  # bytes of room below which a folder is named where the system does not say which one is full


def want_of_the_machine(error: BaseException, *places: Path) -> str | None:
    """Return the sentence for an OSError that says what the machine ran out of or forbids; None for any other error.

    A failed write does not say where it was: then those of `places` and of the usual folders are named that have no room, or cannot be written.
    """
    if not isinstance(error, OSError) or error.errno not in RUN_OUT:
        return None
    what = str(error.filename or ", ".join(_suspects(error.errno, places)))
    if not what and error.errno in FORBIDDEN:  # of no file: a bug, or a system call that has nothing to do with where things are written
        return None
    advice = "give a container more with --shm-size=8g, or say workers=0" if what == SHARED_MEMORY else RUN_OUT[error.errno]
    return f"{what}{': ' if what else ''}{error.strerror}; {advice}."


def _suspects(number: int, places: Iterable[Path]) -> list[str]:
    """Return which of the folders that a training writes to may be the reason for an error of that number."""
    found: list[str] = []
    for folder in dict.fromkeys((*map(str, places), str(Path.cwd()), tempfile.gettempdir(), SHARED_MEMORY)):
        with suppress(OSError):
            full = number == errno.ENOSPC and shutil.disk_usage(folder).free < FULL_BELOW
            closed = number in FORBIDDEN and os.access(folder, os.F_OK) and not os.access(folder, os.W_OK)
            found += [folder] if full or closed else []
    return found


@contextmanager
def of_the_machine(*places: Path) -> Iterator[None]:
    """Turn an OSError that says what the machine ran out of or forbids into a UserError of this rank, with what to do about it.

    `places` are looked at where the system does not say which one it was.
    """
    try:
        yield
    except OSError as error:
        sentence = want_of_the_machine(error, *places)
        if sentence is None:
            raise
        told = UserError(sentence)
        told.on_every_rank = False
        raise told from error


def nearest(name: str, known: Iterable[str]) -> str:
    """Return " Did you mean 'epochs'?" for the known name closest to `name`, or "" where none is close."""
    by_lower = {k.lower(): k for k in known}
    matches = get_close_matches(str(name).lower(), list(by_lower), n=1, cutoff=0.6)
    return f" Did you mean '{by_lower[matches[0]]}'?" if matches else ""
