"""The wish to leave: a signal that one process got, and how all ranks come to leave at the same place.

In the training loop the wish rides in the sums that ranks exchange anyway (engine/step.py). A validation, in which ranks meet only at its end,
looks for it in the store that the process group was made with. A store that cannot be reached means that whoever started the ranks is gone, and is a
wish to leave as well.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager

import torch

from libreyolo.engine import collectives

KEY = "libreyolo-leave"
LOOK_SECONDS = 0.5  # between two looks into the store, which costs a message to the process that holds it


class Interrupted(SystemExit):
    """Ends a training that a signal asked to leave; the exit code is 128 + the signal's number, as a shell shows it."""

    def __init__(self, number: int) -> None:
        super().__init__(128 + number)
        self.number = number

    def __str__(self) -> str:
        return signal_name(self.number)


class Interruption:
    """Which signal asked this rank to leave (0: none). `ask` may be called from a signal handler.

    Inside `held()` a wish is only noted, for there is something to save at the next place where all ranks meet; outside of it, the first one raises
    Interrupted at once. A rank that leaves is not disturbed in it: later wishes, and those for what all ranks have agreed on, do nothing.
    """

    def __init__(self) -> None:
        self.number = 0
        self._held = False
        self._told = False
        self._seen = False
        self._looked = 0.0

    def ask(self, number: int) -> None:
        """Note the wish. The first one counts."""
        first, self.number = not self.number, self.number or number
        if first and not self._held:
            raise Interrupted(self.number)

    def asked(self) -> bool:
        """Return whether this rank was asked to leave."""
        return self.number != 0

    @contextmanager
    def held(self) -> Iterator[None]:
        """Only note wishes inside the block."""
        self._held = True
        try:
            yield
        finally:
            self._held = False

    def asked_anywhere(self) -> bool:
        """Return whether some rank was asked, as far as this one can see; it tells the others of its own wish. Not a collective."""
        try:
            if self.asked() and not self._told:
                self._told = True
                collectives.tell_all(KEY)
            if self.asked() or self._seen:
                return True
            now = time.monotonic()
            if now >= self._looked + LOOK_SECONDS:
                self._looked, self._seen = now, collectives.was_told(KEY)
        except collectives.STORE_IS_GONE:
            self.number, self._seen = self.number or signal.SIGTERM, True
        return self._seen

    def agreed(self, device: torch.device) -> int:
        """Return the signal that some rank was asked with, the same on every rank; 0 where none was. A collective."""
        number = collectives.max_integers({"signal": self.number}, device)["signal"]
        self.number = self.number or number
        return number


def signal_name(number: int) -> str:
    """Return "SIGTERM" for 15."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
