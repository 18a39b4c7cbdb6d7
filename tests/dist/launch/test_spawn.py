"""Two and three Gloo ranks: what comes back, what failed first, what is left behind."""

from __future__ import annotations

import json
import multiprocessing
import os
import signal
import socket
import threading
from pathlib import Path

import pytest
import torch

from launch import errors, guard, supervise
from launch.errors import LaunchError, RankFailedError, SpawnGuardError
from launch.spawn import spawn_ddp_train
from tests.dist.launch import ranks
from tests.dist.launch.conftest import alive, descendants


def surroundings() -> tuple:
    environ = {name: value for name, value in os.environ.items() if name != "PYTEST_CURRENT_TEST"}
    handlers = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1)]
    return environ, handlers, [os.fstat(descriptor).st_ino for descriptor in (1, 2)]


@pytest.fixture(autouse=True)
def nothing_is_left(tmp_path, monkeypatch):
    """After each test: no process, no temporary file, environment, outputs and signal handlers as before."""
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    (tmp_path / "tmp").mkdir()
    before = surroundings()
    yield
    assert descendants() == []
    assert list((tmp_path / "tmp").iterdir()) == []
    assert surroundings() == before
    assert not torch.cuda.is_initialized()


@pytest.fixture
def temporary(tmp_path) -> Path:
    return tmp_path / "tmp"


def test_three_ranks_train_and_rank_0_s_result_comes_back(temporary, capfd):
    with socket.socket() as usual_port:
        usual_port.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        usual_port.bind(("127.0.0.1", 29500))
        usual_port.listen()
        result = spawn_ddp_train(ranks.facts, (1.0,), num_processes=3, log_tail_dir=temporary, env={"EXTRA": "x"})
    env = result["env"]
    assert result["sum"] == 1 + 2 + 3
    assert (result["backend"], result["initialized"], result["extra"]) == ("gloo", False, "x")
    assert (env.rank, env.local_rank, env.world_size, env.local_world_size, env.source) == (0, 0, 3, 3, "spawn")
    expected = max(1, len(os.sched_getaffinity(0)) // 3)
    assert (result["omp"], result["threads"]) == (str(expected), expected)
    # Loader workers start as in this process; spawned ones would each import torch anew.
    assert result["start_method"] == multiprocessing.get_start_method()
    said = capfd.readouterr().out
    assert "rank 0 says hello" in said and "rank 1 says hello" not in said


def test_the_first_exception_is_told_with_its_rank_traceback_and_last_lines(temporary):
    with pytest.raises(RankFailedError) as caught:
        spawn_ddp_train(ranks.raise_on_rank_1, ("KeyError",), num_processes=2, log_tail_dir=temporary)
    error = caught.value
    assert (error.rank, error.cause) == (1, "raised KeyError: 'data/7.jpg is broken'")
    assert "in raise_on_rank_1" in error.tail and "worker.py" not in error.tail
    assert "Last lines of rank 1:" in error.tail and "rank 1 read its last picture" in error.tail
    assert isinstance(error.__cause__, KeyError)


def test_a_user_s_mistake_is_raised_as_itself(temporary):
    with pytest.raises(ranks.UserError, match=r"^data/7.jpg is broken$") as caught:
        spawn_ddp_train(ranks.raise_on_rank_1, ("UserError",), num_processes=2, log_tail_dir=temporary)
    assert caught.value.__cause__ is None


@pytest.mark.slow
@pytest.mark.parametrize(
    ("how", "cause"), [("sigkill", "was killed by signal 9 (SIGKILL)"), ("exit", "ended with exit code 3 before its work was done")]
)
def test_a_rank_that_is_gone_ends_the_job_and_its_loader_worker(temporary, tmp_path, how, cause):
    with pytest.raises(RankFailedError) as caught:
        spawn_ddp_train(ranks.leave_on_rank_1, (how, str(tmp_path)), num_processes=2, log_tail_dir=temporary)
    assert caught.value.rank == 1
    assert caught.value.cause.startswith(cause)
    assert ("memory" in caught.value.cause) == (how == "sigkill")
    assert "about to leave" in caught.value.tail
    pids = [int(pid) for rank in range(2) for pid in (tmp_path / f"pids-{rank}").read_text().split()]
    assert len(set(pids)) == 4 and alive(pids) == []


def test_a_rank_that_returned_but_does_not_leave_is_ended_and_its_work_counts(temporary, monkeypatch, caplog):
    monkeypatch.setattr(supervise, "LEAVING_SECONDS", 0.0)
    assert spawn_ddp_train(ranks.return_but_stay, (7,), num_processes=1, log_tail_dir=temporary, grace_seconds=0.2) == 7
    assert "The work is done, but 1 processes did not leave" in caplog.text


@pytest.mark.parametrize("how", ["leave", "fail", "return"])
def test_a_signal_that_comes_when_a_rank_is_on_its_way_out_changes_nothing_and_says_nothing(how, temporary, capfd):
    def train() -> str:
        return spawn_ddp_train(ranks.be_told_while_ending, (how,), num_processes=1, log_tail_dir=temporary)

    if how == "leave":
        with pytest.raises(SystemExit) as caught:
            train()
        assert caught.value.code == 128 + signal.SIGUSR2
    elif how == "fail":
        with pytest.raises(RankFailedError, match="rank 0 raised ValueError: its own mistake"):
            train()
    else:
        assert train() == "return"
    said = capfd.readouterr().err
    assert "atexit" not in said and "SystemExit" not in said, said


def test_two_jobs_run_beside_each_other(temporary):
    results = {}

    def run(number: int) -> None:
        results[number] = spawn_ddp_train(ranks.say_where, (number,), num_processes=1, log_tail_dir=temporary)

    threads = [threading.Thread(target=run, args=(number,)) for number in (1, 2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert {number: result[0] for number, result in results.items()} == {1: 1, 2: 2}
    assert results[1][1] != results[2][1]


def test_a_worker_of_joblib_or_submitit_may_train(temporary):
    context = multiprocessing.get_context("spawn")
    queue = context.SimpleQueue()
    process = context.Process(target=ranks.spawn_from_here, args=(queue,), name="LokyProcess-1")
    process.start()
    try:
        process.join(90)
        assert process.exitcode == 0
        assert queue.get() == 7
    finally:
        process.kill()
        process.join()
        queue.close()


def test_the_guard_speaks_its_sentence_while_the_main_module_is_imported(monkeypatch, temporary):
    monkeypatch.setattr(multiprocessing.current_process(), "_inheriting", True, raising=False)
    monkeypatch.setattr("sys.excepthook", None)
    monkeypatch.setattr(guard.tempfile, "tempdir", str(temporary))
    with pytest.raises(SpawnGuardError) as caught:
        spawn_ddp_train(ranks.say_where, (1,), num_processes=2)
    assert str(caught.value) == (
        "spawn_ddp_train() was called from inside a spawned subprocess. This usually means your script calls "
        "model.train(device=...) at the top level without a 'if __name__ == \"__main__\":' guard."
    )
    guard.guard_note(os.getppid()).unlink()


def test_a_daemonic_process_and_no_process_are_refused(monkeypatch):
    with pytest.raises(LaunchError, match="num_processes=0"):
        spawn_ddp_train(ranks.say_where, (1,), num_processes=0)
    monkeypatch.setitem(multiprocessing.current_process()._config, "daemon", True)
    with pytest.raises(LaunchError, match="daemonic"):
        spawn_ddp_train(ranks.say_where, (1,), num_processes=2)


def test_what_can_t_be_pickled_starts_nothing(monkeypatch):
    monkeypatch.setattr(torch.multiprocessing, "spawn", lambda *args, **kwargs: pytest.fail("a worker was started"))
    with pytest.raises(errors.PayloadError, match=r"callbacks\[0\] is a lambda"):
        spawn_ddp_train(ranks.say_where, ({"callbacks": [lambda: 1]},), num_processes=2)


def test_rank_0_keeps_both_outputs_apart(temporary, capfd):
    number, _, is_terminal = spawn_ddp_train(ranks.say_where, (json.dumps([1]),), num_processes=1, log_tail_dir=temporary)
    said, complained = capfd.readouterr()
    assert (number, is_terminal) == ("[1]", False)
    assert "said by the rank" in said and "said by the rank" not in complained
    assert "complained by the rank" in complained
