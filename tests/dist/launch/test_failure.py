"""Which failure came first, and what is said of it."""

from __future__ import annotations

import pickle
import signal

import pytest

from launch.errors import DeviceError, RankFailedError
from launch.failure import Failure, as_exception, cause, first
from launch.interrupts import Interrupts
from launch.output import tail
from launch.worker import LOADING, TRAINING, Report

GLOO = "[gloo/transport/tcp/pair.cc:545] Read error [127.0.0.1]:16302: Connection reset by peer"


def reported(rank: int, when: float, type_name: str, message: str, *, stage: str = TRAINING, error: BaseException | None = None) -> Failure:
    pickled = pickle.dumps(error) if error is not None else None
    return Failure(rank, when, Report(type_name, message, "Traceback ...", stage, when, pickled), None, True)


def ended(rank: int, when: float, exit_code: int, *, started: bool = True) -> Failure:
    return Failure(rank, when, None, exit_code, started)


@pytest.mark.parametrize("lost", [("RuntimeError", GLOO), ("DistBackendError", "NCCL error"), ("DistNetworkError", "Failed to recv, got 0 bytes")])
def test_a_rank_that_lost_its_peer_is_not_the_first_to_fail(lost):
    consequence = reported(0, 1.0, *lost)
    assert first([consequence, ended(1, 2.0, -9)]).rank == 1
    assert first([consequence, reported(2, 3.0, "KeyError", "x")]).rank == 2
    assert first([consequence]).rank == 0


def test_among_causes_the_earliest_is_the_first():
    assert first([reported(0, 2.0, "KeyError", "x"), reported(1, 1.0, "RuntimeError", "CUDA out of memory")]).rank == 1


@pytest.mark.parametrize(
    ("failure", "text"),
    [
        (ended(1, 0, -11), "was killed by signal 11 (SIGSEGV)"),
        (ended(1, 0, 143), "was killed by signal 15 (SIGTERM)"),
        (ended(1, 0, 0), "ended with exit code 0 before its work was done"),
        (reported(1, 0, "SystemExit", "3"), "called sys.exit(3) before its work was done"),
        (reported(1, 0, "AssertionError", ""), "raised AssertionError"),
        (
            reported(1, 0, "ModuleNotFoundError", "No module named 'x'", stage=LOADING),
            "could not load what was sent to it: ModuleNotFoundError",
        ),
    ],
)
def test_the_cause_in_words(failure, text):
    assert cause(failure).startswith(text)


def test_an_out_of_memory_kill_comes_with_what_to_do():
    assert "memory" in cause(ended(1, 0, -9)) and "smaller batch" in cause(ended(1, 0, -9))
    assert "/dev/shm" in cause(ended(1, 0, -7))


def test_a_mistake_of_the_user_is_itself_and_a_bug_is_chained():
    mistake = as_exception(reported(1, 0, "DeviceError", "no", error=DeviceError("no")), "")
    assert type(mistake) is DeviceError and str(mistake) == "no"
    bug = as_exception(reported(1, 0, "KeyError", "'x'", error=KeyError("x")), "line 1\nline 2")
    assert isinstance(bug, RankFailedError) and isinstance(bug.__cause__, KeyError)
    assert str(bug) == "rank 1 raised KeyError: 'x'\nTraceback ...\nLast lines of rank 1:\n  line 1\n  line 2"
    copy = pickle.loads(pickle.dumps(bug))
    assert (copy.rank, copy.cause, copy.tail) == (bug.rank, bug.cause, bug.tail)


def test_the_tail_is_the_last_lines_and_a_progress_bar_is_many_lines(tmp_path):
    log = tmp_path / "rank1.log"
    assert tail(log) == ""
    log.write_bytes(b"old\n" * 50_000 + b"\xff 1/3\r 2/3\r 3/3\n\nthe end")
    assert tail(log, 3) == " 2/3\n 3/3\nthe end"


def test_a_handler_that_the_program_installed_stays_in_charge():
    seen = []
    before = signal.signal(signal.SIGTERM, lambda signum, frame: seen.append(signum))
    try:
        with Interrupts(2) as interrupts:
            signal.raise_signal(signal.SIGTERM)
            assert interrupts.new() == []
        assert seen == [signal.SIGTERM]
    finally:
        signal.signal(signal.SIGTERM, before)


def test_a_signal_that_came_during_the_clean_up_is_not_lost_nor_hides_the_failure(caplog):
    before = signal.getsignal(signal.SIGINT)
    with pytest.raises(KeyboardInterrupt) as caught, Interrupts(2):
        signal.raise_signal(signal.SIGINT)
        raise RankFailedError(1, "raised KeyError", "")
    assert isinstance(caught.value.__cause__, RankFailedError)
    assert "rank 1 raised KeyError" in caplog.text
    assert signal.getsignal(signal.SIGINT) is before
    with pytest.raises(SystemExit) as ended_by, Interrupts(2) as interrupts:
        signal.raise_signal(signal.SIGTERM)
        signal.raise_signal(signal.SIGTERM)
        assert interrupts.new() == [signal.SIGTERM]
        assert interrupts.new() == []  # each is passed on once
    assert ended_by.value.code == 143
