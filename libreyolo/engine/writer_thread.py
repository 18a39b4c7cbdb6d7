"""Writing beside the training: one job at a time, in a thread."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence


class WriterThread:
    """Does one job at a time in a thread of its own; what it raises is raised to whoever waits for it, once."""

    def __init__(self) -> None:
        self._thread: threading.Thread | None = None
        self._error: BaseException | None = None

    def start(self, pieces: Sequence[Callable[[], object]]) -> None:
        """Begin to call the pieces in their order, and return. Waits for those before, and raises what they raised; nothing is begun then."""
        self.wait()

        def run() -> None:
            try:
                for piece in pieces:
                    piece()
            except BaseException as error:
                self._error = error

        # No daemon: an interpreter that ends waits for what is half written.
        self._thread = threading.Thread(target=run, name="writer")
        self._thread.start()

    def succeeded(self) -> bool:
        """Return whether there was a job and it is over, well; `wait` then returns at once."""
        return self._thread is not None and not self._thread.is_alive() and self._error is None

    def wait(self) -> None:
        """Return when nothing runs; raises what the last job raised."""
        if self._thread is not None:
            self._thread.join()
            self._thread = None
        error, self._error = self._error, None
        if error is not None:
            raise error
