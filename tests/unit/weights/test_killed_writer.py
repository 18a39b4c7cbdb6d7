"""A checkpoint under real bad luck: the disk full in the middle, the writer killed at any moment, a reader beside it."""

from __future__ import annotations

import os
import resource
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from libreyolo.engine import checkpoint
from libreyolo.engine.checkpoint import WeightsMeta
from libreyolo.engine.ema import EMA
from libreyolo.engine.progress import Progress
from libreyolo.errors import UserError
from libreyolo.saving import Saver
from tests.unit.engine.toy import toy_net

pytestmark = pytest.mark.skipif(os.name != "posix", reason="forks, signals and limits of POSIX")


def content(epoch: int) -> dict[str, Any]:
    return {"epoch": epoch, "model": {"w": torch.full((200, 300), float(epoch))}}


def whole(path: Path) -> int:
    """Return the epoch of a file that must be whole."""
    found = checkpoint.read(path)
    assert torch.equal(found["model"]["w"], torch.full((200, 300), float(found["epoch"])))
    return int(found["epoch"])


def in_child(work: Callable[[], None]) -> int:
    """Do `work` in a forked process and return how that ended: an exit code, or the negative number of a signal."""
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            work()
            code = 0
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


@pytest.mark.parametrize(("stage", "epoch"), [("half", 1), ("unflushed", 1), ("unnamed", 1), ("named", 2)])
def test_a_writer_killed_at_any_moment_leaves_the_old_file_or_the_new_one(stage: str, epoch: int, tmp_path: Path) -> None:
    path = tmp_path / "last.pt"
    checkpoint.write(content(1), path)
    save, rename = torch.save, Path.replace

    def half(value: Any, stream: Any) -> None:
        save(value, stream)
        stream.truncate(stream.tell() // 2)
        stream.flush()
        die()

    def named(self: Path, target: Any) -> Path:
        rename(self, target)
        die()
        return self

    def work() -> None:
        if stage == "half":
            torch.save = half  # type: ignore[assignment]
        elif stage == "unflushed":
            os.fsync = lambda handle: die()  # type: ignore[assignment]
        else:
            Path.replace = named if stage == "named" else lambda self, target: die()  # type: ignore[assignment, method-assign]
        checkpoint.write(content(2), path)

    assert in_child(work) == -signal.SIGKILL
    assert whole(path) == epoch
    checkpoint.remove_leftovers(tmp_path)
    assert [p.name for p in tmp_path.iterdir()] == ["last.pt"]


def test_a_disk_that_is_full_in_the_middle_is_one_sentence_and_the_old_file(tmp_path: Path) -> None:
    """The kernel itself refuses the write, past 100 kB of the file."""
    path = tmp_path / "last.pt"
    checkpoint.write(content(1), path)

    def work() -> None:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))
        with pytest.raises(UserError, match=r"last\.pt could not be written \(File too large\); what was there before is untouched: make room"):
            checkpoint.write(content(2), path)

    assert in_child(work) == 0
    assert whole(path) == 1
    assert [p.name for p in tmp_path.iterdir()] == ["last.pt"]


def test_a_reader_beside_a_writer_always_gets_a_whole_file(tmp_path: Path) -> None:
    path = tmp_path / "last.pt"
    checkpoint.write(content(0), path)
    pid = os.fork()
    if pid == 0:
        for epoch in range(1, 60):
            checkpoint.write(content(epoch), path)
        os._exit(0)
    seen = [0]
    while os.waitpid(pid, os.WNOHANG)[0] == 0:
        seen.append(whole(path))
    assert seen == sorted(seen)
    assert whole(path) == 59


def saver_of(folder: Path, progress: Progress) -> Saver:
    net = toy_net()
    ema = EMA(net, decay=0.9, tau=1.0)
    meta = WeightsMeta("toy", "t", "detect", {0: "a"}, 64, {})
    saver = Saver(folder, meta=meta, config={}, progress=progress, best_metric="metrics/toy", save_period=0, average_best=0)
    saver.attach(net, ema, torch.optim.SGD(net.parameters(), lr=0.1), torch.amp.GradScaler("cpu", enabled=False))
    return saver


@pytest.mark.parametrize(("what", "name"), [("ema", "average of the weights"), ("net", "weights")])
def test_a_poisoned_checkpoint_never_takes_the_place_of_a_finite_one(what: str, name: str, tmp_path: Path) -> None:
    saver = saver_of(tmp_path, Progress(epoch=1))
    saver.midway([])
    before = (tmp_path / "last.pt").read_bytes()
    assert saver.ema is not None
    poisoned = saver.ema.average if what == "ema" else saver.bare
    poisoned.state_dict(keep_vars=True)["2.weight"].data[0, 1] = float("nan")
    with pytest.raises(UserError, match=rf"The {name} hold infinite numbers \(tensor 2\.weight\), so .* keeps the checkpoints that it has"):
        saver.midway([])
    assert (tmp_path / "last.pt").read_bytes() == before
    assert [p.name for p in tmp_path.iterdir()] == ["last.pt"]
