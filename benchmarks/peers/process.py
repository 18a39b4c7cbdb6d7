"""A measured program in a process of its own: what it says about itself comes back as events, line by line."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

MARK = "BENCH "  # a line that starts so carries an event as JSON; everything else is the program's own talk
TAIL = 30
NOT_HERE = 3  # exit code of a program that lacks what it measures
SECONDS_TO_LEAVE = 10


@dataclass(frozen=True)
class Ended:
    """How a process ended. code: its exit code, None where it was cut off. seconds: from its start. began: seconds since 1970."""

    code: int | None
    events: list[dict[str, Any]]
    tail: list[str]
    began: float
    seconds: float

    def of(self, kind: str) -> list[dict[str, Any]]:
        """Return the events of one kind, in their order."""
        return [e for e in self.events if e["event"] == kind]


def tell(event: str, **facts: Any) -> None:
    """Write an event for the measuring process; among ranks rank 0 speaks."""
    if os.environ.get("RANK", "0") == "0":
        sys.stdout.write("\n" + MARK + json.dumps({"event": event, "time": time.time(), **facts}) + "\n")
        sys.stdout.flush()


def run(command: Sequence[str | Path], *, cwd: Path, limit: float, env: Mapping[str, str] | None = None, cores: Sequence[int] | None = None) -> Ended:
    """Run a command to its end, or to its limit in seconds, and return what it said; nothing of it is left running.

    cores: the only ones that it may use. env: added to this process's variables.
    """
    began, clock = time.time(), time.monotonic()
    # A group of its own, so that it can be ended whole; not a session, so that whoever ends this process's session ends it, too.
    with _only_on(cores):
        process = subprocess.Popen(
            [str(word) for word in command], cwd=cwd, env={**os.environ, **(env or {})}, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT, text=True, errors="replace", preexec_fn=os.setpgrp,
        )  # fmt: skip
    events: list[dict[str, Any]] = []
    tail: deque[str] = deque(maxlen=TAIL)
    reader = threading.Thread(target=_read, args=(process, events, tail), daemon=True)
    reader.start()
    try:
        process.wait(max(limit, 0.0))
        code: int | None = process.returncode
    except subprocess.TimeoutExpired:
        code = None
    finally:
        _end(process)
    reader.join(SECONDS_TO_LEAVE)
    return Ended(code, list(events), list(tail), began, time.monotonic() - clock)


@contextmanager
def _only_on(cores: Sequence[int] | None) -> Iterator[None]:
    """Let this thread, and so what it starts, use some cores only."""
    if cores is None or not hasattr(os, "sched_setaffinity"):
        yield
        return
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, cores)
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


def _read(process: subprocess.Popen[str], events: list[dict[str, Any]], tail: deque[str]) -> None:
    assert process.stdout is not None
    for line in process.stdout:
        if MARK in line:  # a progress bar may stand before it on the line
            with suppress(ValueError):
                events.append(json.loads(line[line.index(MARK) + len(MARK) :]))
        elif line.strip():
            tail.append(line.rstrip()[-200:])


def _end(process: subprocess.Popen[str]) -> None:
    """End what is left of the process and of those it started: they share its process group."""
    for number, seconds in ((signal.SIGTERM, SECONDS_TO_LEAVE), (signal.SIGKILL, SECONDS_TO_LEAVE)):
        with suppress(ProcessLookupError):
            os.killpg(process.pid, number)
        with suppress(subprocess.TimeoutExpired):
            process.wait(seconds)
