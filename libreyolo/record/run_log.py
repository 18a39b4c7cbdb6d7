"""train.log: what the package says during a run, kept in its directory."""

from __future__ import annotations

import logging
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from libreyolo.errors import printable

PACKAGES = ("libreyolo", "launch")
PYTHON_WARNINGS = "py.warnings"  # where logging.captureWarnings sends them


@contextmanager
def run_log(run_dir: Path, *, append: bool, console: bool = True, level: int = logging.INFO) -> Iterator[Path]:
    """Send the messages of "libreyolo" and "launch", and Python's warnings, to run_dir/train.log and the terminal; yield the file's path.

    `append` keeps what is there (a resumed run). The terminal is left to the user's own handler where the root logger has one. Afterwards
    exactly these handlers are gone, and levels and the capture of warnings are as before.
    """
    path = Path(run_dir) / "train.log"
    path.parent.mkdir(parents=True, exist_ok=True)
    file = logging.FileHandler(path, mode="a" if append else "w", encoding="utf-8", errors="backslashreplace")
    file.setFormatter(SafeFormatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
    handlers: list[logging.Handler] = [file]
    if console and not _root_writes_to_terminal():
        handlers.append(_terminal())
    packages = [logging.getLogger(name) for name in PACKAGES]
    loggers = [*packages, logging.getLogger(PYTHON_WARNINGS)]
    levels = [logger.level for logger in loggers]
    started_capture = _capture_warnings()
    try:
        for logger in loggers:
            for handler in handlers:
                logger.addHandler(handler)
        for logger in packages:
            if logger.getEffectiveLevel() > level:
                logger.setLevel(level)
        yield path
    finally:
        for logger, before in zip(loggers, levels, strict=True):
            for handler in handlers:
                logger.removeHandler(handler)
            logger.setLevel(before)
        if started_capture:
            logging.captureWarnings(False)
        for handler in handlers:
            handler.close()


class _TerminalHandler(logging.StreamHandler):
    """Writes to what sys.stderr is at that moment, so that a live progress bar, which stands in for it, is not torn."""

    def emit(self, record: logging.LogRecord) -> None:
        self.stream = sys.stderr
        super().emit(record)


class SafeFormatter(logging.Formatter):
    """File and class names are other people's text: what a terminal would obey in them is written as its escape."""

    def format(self, record: logging.LogRecord) -> str:
        return printable(super().format(record), keep="\n\t")


class _TerminalFormatter(SafeFormatter):
    def format(self, record: logging.LogRecord) -> str:
        text = super().format(record)
        return text if record.levelno <= logging.INFO else f"{record.levelname}: {text}"


def _terminal() -> logging.Handler:
    handler = _TerminalHandler()
    handler.setFormatter(_TerminalFormatter("%(message)s"))
    return handler


def _root_writes_to_terminal() -> bool:
    streams = (sys.stderr, sys.stdout, sys.__stderr__, sys.__stdout__)
    return any(isinstance(handler, logging.StreamHandler) and handler.stream in streams for handler in logging.getLogger().handlers)


def _capture_warnings() -> bool:
    """Return whether the capture of warnings began here (not when it was on already)."""
    before = warnings.showwarning
    logging.captureWarnings(True)
    return warnings.showwarning is not before
