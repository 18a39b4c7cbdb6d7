"""A thread that does a tracker's work in order, so that a slow disk, a dead network or a server that is down holds up nobody."""

from __future__ import annotations

import threading
from collections.abc import Callable
from queue import SimpleQueue

Action = Callable[[], None]


class Background:
    """Actions are done one after another in one daemon thread, which begins with the first. An action must not raise."""

    def __init__(self, name: str) -> None:
        self._actions: SimpleQueue[Action | None] = SimpleQueue()
        self._thread = threading.Thread(target=self._work, name=f"libreyolo-{name}", daemon=True)

    def put(self, action: Action) -> None:
        """Have `action` done after those before it; returns at once."""
        if not self._thread.ident:
            self._thread.start()
        self._actions.put(action)

    def finish(self, seconds: float) -> bool:
        """Take no more and wait for what is left, `seconds` at the most; return whether all of it is done."""
        if not self._thread.ident:
            return True
        self._actions.put(None)
        self._thread.join(seconds)
        return not self._thread.is_alive()

    def _work(self) -> None:
        while (action := self._actions.get()) is not None:
            action()
