"""What ended a job: the first failing rank, its cause in words, and the exception that the caller gets."""

from __future__ import annotations

import pickle
import re
import signal
from dataclasses import dataclass
from pathlib import Path

from launch.errors import RankFailedError, is_one_sentence
from launch.guard import main_path
from launch.leaving import EXIT_CODES
from launch.worker import LOADING, Report

# What ranks say when another one is gone; such a rank is not the first to fail, whatever the clock says.
CONSEQUENCE_TYPES = {"DistBackendError", "DistNetworkError", "DistStoreError"}
CONSEQUENCE_TEXT = re.compile(
    r"closed by peer|reset by peer|broken pipe|gloo/transport|ncclremoteerror|ncclsystemerror|connection was likely closed", re.IGNORECASE
)

HINTS = {
    "SIGKILL": "; if nobody sent it, the machine ran out of memory (see dmesg): use fewer loader workers or a smaller batch",
    "SIGBUS": "; often the shared memory is full: use fewer loader workers or a bigger /dev/shm",
}


@dataclass(frozen=True)
class Failure:
    """A rank that won't finish. Either it reported an exception, or it only has an exit code (negative for a signal)."""

    rank: int
    when: float
    report: Report | None
    exit_code: int | None
    started: bool

    @property
    def is_consequence(self) -> bool:
        """Whether the rank only says that another one is gone."""
        return self.report is not None and _says_another_is_gone(self.report.type_name, self.report.message)


def is_consequence(error: BaseException) -> bool:
    """Return whether `error` only says that this rank lost its connection to another one."""
    return _says_another_is_gone(type(error).__name__, str(error))


def _says_another_is_gone(type_name: str, message: str) -> bool:
    return type_name in CONSEQUENCE_TYPES or (type_name == "RuntimeError" and CONSEQUENCE_TEXT.search(message) is not None)


def read_report(path: Path) -> Report | None:
    """Return what a rank reported, None if it didn't."""
    if not path.exists():
        return None
    report = pickle.loads(path.read_bytes())
    assert isinstance(report, Report)
    return report


def first(failures: list[Failure]) -> Failure:
    """Return the failure that the others follow from: the earliest one that isn't itself a consequence."""
    return min(failures, key=lambda failure: (failure.is_consequence, failure.when, failure.rank))


def as_exception(failure: Failure, said: str) -> BaseException:
    """Return what to raise in the parent: the user's own mistake as itself, else a RankFailedError with the original as its cause.

    `said` is the rank's last lines.
    """
    original = _original(failure.report)
    if original is not None and is_one_sentence(original):
        return original
    parts = [failure.report.trace] if failure.report is not None else []
    if said:
        parts.append(f"Last lines of rank {failure.rank}:\n" + "\n".join(f"  {line}" for line in said.splitlines()))
    error = RankFailedError(failure.rank, cause(failure), "\n".join(parts))
    error.__cause__ = original
    return error


def cause(failure: Failure) -> str:
    """Return what happened, to be read after "rank 1 "."""
    if failure.report is not None:
        report = failure.report
        if report.type_name == "SystemExit":
            return f"called sys.exit({report.message}) before its work was done"
        verb = "could not load what was sent to it" if report.stage == LOADING else "raised"
        return f"{verb}{':' if report.stage == LOADING else ''} {report.type_name}: {report.message}".rstrip(": ")
    code = failure.exit_code
    code = -EXIT_CODES[code] if code in EXIT_CODES else code
    if code is not None and code < 0:
        name = _signal_name(-code)
        return f"was killed by signal {-code} ({name}){HINTS.get(name, '')}"
    if not failure.started:
        script = main_path()
        return f"ended with exit code {code} while importing {script.name if script is not None else 'what it needs'}"
    return f"ended with exit code {code} before its work was done"


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return "unknown"


def _original(report: Report | None) -> BaseException | None:
    if report is None or report.pickled is None:
        return None
    try:
        error = pickle.loads(report.pickled)
    except Exception:  # importable in the worker but not here; the report's text says it all
        return None
    return error if isinstance(error, BaseException) else None
