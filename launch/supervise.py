"""The parent's side of a running job: wait for the ranks, find the first failure, end everybody."""

from __future__ import annotations

import logging
import multiprocessing.connection
import os
import time
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from pathlib import Path

from launch.errors import SpawnGuardError
from launch.failure import Failure, as_exception, first, read_report
from launch.guard import GUARD_SENTENCE
from launch.interrupts import Interrupts, send
from launch.leaving import EXIT_CODES, NOW, name_of, signal_behind
from launch.lifeline import kill_group
from launch.output import RankOutput, tail
from launch.worker import Job

log = logging.getLogger(__name__)

POLL_SECONDS = 0.1
# How long to look for the cause when all that is known is that a rank lost its connection to another.
CAUSE_SECONDS = 3.0
# How long a rank whose function returned may take to leave (trackers flush, threads join) before it is ended.
LEAVING_SECONDS = 60.0


class Supervisor:
    """The running ranks of one job. `processes[r]` is rank r; fewer than the job's ranks while it is being started."""

    def __init__(self, job: Job, output: RankOutput, interrupts: Interrupts, guard_note: Path, grace_seconds: float, leave_seconds: float) -> None:
        self.job = job
        self.output = output
        self.interrupts = interrupts
        self.guard_note = guard_note
        self.grace_seconds = grace_seconds
        self.leave_seconds = leave_seconds
        self.processes: list[BaseProcess] = []
        self.lifelines: list[Connection] = []  # the parent's ends; a rank is killed when its own is closed (lifeline.py)
        self._ended = False
        self._leaving = 0  # the signal because of which ranks leave
        self._leave_until = 0.0

    def wait(self) -> None:
        """Return when every rank's function has returned and its process is gone; raise the first failure, or the user's wish to end."""
        leaving_until: float | None = None
        while True:
            self.check_interrupts()
            self._check_leaving()
            failures = self._failures()
            if failures:
                raise self._explain(failures)
            staying = [process for process in self.processes if exit_code(process) is None]
            done = all(self.job.done(rank).exists() for rank in range(len(self.processes)))
            if not staying and done:
                self._warn_of_crashes_after_the_end()
                return
            if done:
                leaving_until = leaving_until or time.monotonic() + LEAVING_SECONDS
                if time.monotonic() > leaving_until:
                    log.warning("The work is done, but %d processes did not leave within %d s: ending them", len(staying), int(LEAVING_SECONDS))
                    return
            # A loader worker inherits its rank's sentinel and keeps it open, so the end of a rank can't be read from it alone: poll as
            # well.
            multiprocessing.connection.wait([process.sentinel for process in staying], timeout=POLL_SECONDS)

    def check_interrupts(self) -> None:
        """Act on the signals that came in: end everything, or pass them on to the ranks and give these time to leave."""
        for number in self.interrupts.new():
            if not all(self.job.started(rank).exists() for rank in range(self.job.num_processes)):
                log.warning("%s: ending %d processes", name_of(number), self.job.num_processes)  # they have nothing to save
                raise self.interrupts.ending(number)
            if not self._leaving:
                self._expect_leaving(number)
            self.interrupts.pass_on(number, self._running())

    def _running(self) -> list[int]:
        return [process.pid for process in self.processes if process.pid and exit_code(process) is None]

    def _expect_leaving(self, number: int) -> None:
        self._leaving, self._leave_until = number, time.monotonic() + self.leave_seconds

    def _check_leaving(self) -> None:
        """Raise what ends the program when the ranks have left because of a signal, whichever process got it, or took too long to."""
        for rank, process in enumerate(self.processes):
            number = signal_behind(exit_code(process))  # before the files: what an ended process wrote is complete
            # It came before the rank could hear it, or tell, and there is nothing to save.
            if number and not self.job.done(rank).exists() and not self.job.left(rank).exists():
                log.warning("Rank %d left because of %s", rank, name_of(number))
                raise self.interrupts.ending(self._leaving or number)
        left = [rank for rank in range(len(self.processes)) if self.job.left(rank).exists()]
        if left and not self._leaving:
            rank = left[0]
            self._expect_leaving(EXIT_CODES[int(self.job.left(rank).read_text())])
            log.warning("Rank %d left because of %s", rank, name_of(self._leaving))
            send(self._leaving, self._running())  # to one that has not come to where ranks meet: it would wait for the one that is gone
        if not self._leaving:
            return
        if left and all(exit_code(process) is not None for process in self.processes) and not self._failures():
            raise self.interrupts.ending(self._leaving)
        if time.monotonic() > self._leave_until:
            staying = sum(exit_code(process) is None for process in self.processes)
            log.warning("%d processes did not leave within %g s: ending them", staying, self.leave_seconds)
            raise self.interrupts.ending(self._leaving)

    def end(self) -> None:
        """Leave no process behind: a word, the grace, then SIGKILL for the ranks and whatever they started.

        A second Ctrl-C ends the grace.
        """
        if self._ended:
            return
        for rank, process in enumerate(self.processes):
            # A rank that reported an exception is on its way out, and mustn't be disturbed in it.
            if exit_code(process) is None and not self.job.error(rank).exists():
                _tell_to_leave(process)
        deadline = time.monotonic() + self.grace_seconds
        endings = self.interrupts.count_endings()
        while time.monotonic() < deadline and self.interrupts.count_endings() <= endings:
            staying = [process for process in self.processes if exit_code(process) is None]
            if not staying:
                break
            multiprocessing.connection.wait([process.sentinel for process in staying], timeout=POLL_SECONDS)
        for process in self.processes:
            # Before the process is reaped: until then its number can't belong to anybody else.
            if process.pid is not None:
                kill_group(process.pid)
            process.kill()
        for process in self.processes:
            process.join()
        for lifeline in self.lifelines:
            lifeline.close()
        self._ended = True

    def _failures(self) -> list[Failure]:
        """Return the ranks that won't finish, as far as they are known now."""
        if self.guard_note.exists():
            raise SpawnGuardError(GUARD_SENTENCE)
        failures = []
        for rank, process in enumerate(self.processes):
            code = exit_code(process)  # before the files: what an ended process wrote is complete
            if self.job.done(rank).exists():
                continue
            report = read_report(self.job.error(rank))
            if self.job.left(rank).exists() or signal_behind(code) or (report is None and code is None):  # asked to leave, or going on
                continue
            if code is not None and self.guard_note.exists():
                raise SpawnGuardError(GUARD_SENTENCE)
            when = report.when if report is not None else time.monotonic()
            failures.append(Failure(rank, when, report, code, self.job.started(rank).exists()))
        return failures

    def _explain(self, failures: list[Failure]) -> BaseException:
        deadline = time.monotonic() + CAUSE_SECONDS
        while all(failure.is_consequence for failure in failures) and time.monotonic() < deadline:
            staying = [process.sentinel for process in self.processes if exit_code(process) is None]
            if not staying:
                failures = self._failures()
                break
            multiprocessing.connection.wait(staying, timeout=POLL_SECONDS)
            self.check_interrupts()
            self._check_leaving()
            failures = self._failures()
        if self._leaving and all(failure.is_consequence for failure in failures):
            self.end()
            return self.interrupts.ending(self._leaving)
        failure = first(failures)
        self.end()  # first, so that all it said is there to be read
        self.output.close()
        return as_exception(failure, tail(self.output.log(failure.rank)))

    def _warn_of_crashes_after_the_end(self) -> None:
        for rank, process in enumerate(self.processes):
            code = exit_code(process)
            if code:
                log.warning("The work is done, but rank %d then ended with exit code %d", rank, code)


def _tell_to_leave(process: BaseProcess) -> None:
    """Ask a rank to leave without saving anything: for a job that has failed, or that Ctrl-C ends."""
    if os.name == "posix" and process.pid is not None:
        os.kill(process.pid, NOW)  # not reaped yet, so the number is its own
    else:
        process.terminate()


def exit_code(process: BaseProcess) -> int | None:
    """Return a process's exit code (negative for a signal), None while it runs, without reaping it.

    Only an unreaped process keeps its number, and with it the number of its group, from being given to somebody else.
    """
    if not hasattr(os, "waitid") or process.pid is None:
        return process.exitcode
    try:
        status = os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:  # another part of this program reaped it, through multiprocessing.active_children() perhaps
        return process.exitcode
    if status is None:
        return None
    return status.si_status if status.si_code == os.CLD_EXITED else -status.si_status
