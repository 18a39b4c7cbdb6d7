"""How trainings of two ranks end: by a failure of one rank, by a signal, by a kill of the parent, early, or by a callback."""

from __future__ import annotations

import json
import signal

import psutil
import pytest
import torch

import launch
from launch import run_lock
from tests.dist.doors.conftest import LIKE_TRAIN_PY, SMALL, TORCHRUN, TRAIN, Workplace, epochs_in, words
from tests.dist.launch.conftest import alive, until

pytestmark = pytest.mark.slow

# In the second step of the second epoch: ranks have met since the first was saved.
RAISES_IN_EPOCH_2 = """
set_rates = trainer.Trainer._set_rates
def failing(self):
    if self.progress.global_step == 3 and rank() == "1":
        print("rank 1 read its last picture", flush=True)
        {fault}
    set_rates(self)
trainer.Trainer._set_rates = failing
"""
WAITS = """
import threading
def wait(*arguments, **settings):
    Path(f"waiting-{rank()}").touch()
    threading.Event().wait()
"""
WAITS_IN_EPOCH_2 = (
    WAITS
    + """
whole_epoch = trainer.Trainer._train_epoch
trainer.Trainer._train_epoch = lambda self, epoch: whole_epoch(self, epoch) if epoch == 0 else wait()
"""
)
WAITS_IN_VALIDATION = (
    WAITS
    + """
trainer.validate = wait
"""
)


def started(workplace: Workplace, patch: str, **changes: object):
    script = workplace.script(LIKE_TRAIN_PY.format(patch=patch))
    return workplace.start(script, *words(**{"data": "data/data.yaml", "nproc": 2, "epochs": 3, **changes}))


@pytest.mark.parametrize(
    ("fault", "cause"),
    [
        ("raise KeyError('5.png')", "rank 1 raised KeyError: '5.png'"),
        ("os.kill(os.getpid(), signal.SIGKILL)", "rank 1 was killed by signal 9 (SIGKILL)"),
    ],
)
def test_a_rank_that_fails_ends_the_job_with_its_cause_and_last_lines(workplace, fault, cause):
    ended = started(workplace, RAISES_IN_EPOCH_2.format(fault=fault)).end()
    assert ended.code == 1
    last = ended.err[ended.err.index(cause) :]
    assert "rank 1 read its last picture" in last
    assert "closed by peer" not in ended.err  # what rank 0 sees of it is not the cause
    (run_dir,) = workplace.runs
    assert epochs_in(run_dir) == [1]
    assert cause in (run_dir / "train.log").read_text()
    assert workplace.temporary == []


@pytest.mark.parametrize(
    ("where", "number", "code", "line"),
    [
        (WAITS_IN_EPOCH_2, signal.SIGINT, 130, "Interrupted: ending 2 processes"),
        (WAITS_IN_VALIDATION, signal.SIGINT, 130, "Interrupted: ending 2 processes"),
    ],
    ids=["Ctrl-C in training", "Ctrl-C in validation"],
)
def test_ctrl_c_to_the_parent_ends_everything_with_one_line(workplace, where, number, code, line):
    job = started(workplace, where, workers=1)
    job.until(lambda: len(list(workplace.folder.glob("waiting-*"))) == 2, "both ranks wait")
    job.process.send_signal(number)
    ended = job.end(seconds=60)
    assert ended.code == code
    said = ended.err.strip().splitlines()
    assert said[-1] == line and "Traceback" not in ended.err
    assert [text for text in said if "rrupted" in text or "rminated" in text or "stopped" in text] == [line]
    assert workplace.temporary == []
    if where is WAITS_IN_EPOCH_2:
        content = torch.load(workplace.runs[0] / "weights" / "last.pt", weights_only=True)
        assert content["progress"]["epoch"] == 1
        assert json.loads((workplace.runs[0] / "status.json").read_text())["state"] == "interrupted"


# In the first step of the second epoch rank 0 asks whom it is told to.
ASKS = """
set_rates = trainer.Trainer._set_rates
def asking(self):
    if self.progress.global_step == 2 and rank() == "0" and not Path("asked").exists():
        Path("asked").touch()
        os.kill(os.getppid(), signal.SIGTERM)
    set_rates(self)
trainer.Trainer._set_rates = asking
"""


@pytest.mark.parametrize("by", ["train.py", "torchrun"])
def test_sigterm_saves_in_the_middle_of_an_epoch_and_the_same_command_goes_on(workplace, by):
    """Six steps an epoch, and the first of these ends the life. torchrun sends it to the whole group of a rank, loader processes among them."""
    script = workplace.script(LIKE_TRAIN_PY.format(patch=ASKS))
    settings = {"data": "data/data.yaml", "epochs": 2, "min_samples": 24, "warmup_epochs": 0, "resume": "auto", "workers": 1}
    command = [*TORCHRUN, script, *words(**settings)] if by == "torchrun" else [script, *words(**settings, nproc=2)]
    ended = workplace.run(*command)
    assert ended.code == (143 if by == "train.py" else 1)  # torchrun's own code
    if by == "train.py":
        assert "SIGTERM: asking 2 processes to save and leave" in ended.err and "Traceback" not in ended.err
    (run_dir,) = workplace.runs
    progress = torch.load(run_dir / "weights" / "last.pt", weights_only=True)["progress"]
    assert (progress["epoch"], progress["step_in_epoch"] > 0) == (0, True)
    status = json.loads((run_dir / "status.json").read_text())
    assert (status["state"], status["error"]) == ("interrupted", "Interrupted: SIGTERM")
    assert workplace.temporary == []

    assert workplace.run(*command).code == 0
    assert workplace.runs == [run_dir]
    assert epochs_in(run_dir) == [1, 2]
    assert f"batch {progress['step_in_epoch']} of epoch 1" in (run_dir / "train.log").read_text()
    assert json.loads((run_dir / "status.json").read_text())["state"] == "completed"


# Rank 1 meets a NaN in the first step, and the disk is full when the second epoch is saved.
BAD_LUCK = """
import errno
from libreyolo.engine import checkpoint, step
from libreyolo.interfaces.term import Term
sums, save = step.TrainStep._multipliers, checkpoint.torch.save
def broken(self, terms, *rest):
    if rank() == "1" and not hasattr(self, "once"):
        self.once = True
        self.own = [(name, total * float("nan") if name == "box" else total, stats) for name, total, stats in self.own]
        terms["box"].total.data.mul_(float("nan"))
    return sums(self, terms, *rest)
def full(content, stream):
    if content.get("epoch") == 1:
        stream.write(b"PK")
        raise OSError(errno.ENOSPC, "No space left on device")
    save(content, stream)
step.TrainStep._multipliers, checkpoint.torch.save = broken, full
"""


def test_a_nan_on_one_rank_is_skipped_by_both_and_a_full_disk_ends_both_with_the_last_good_checkpoint(workplace):
    ended = started(workplace, BAD_LUCK).end()
    assert ended.code == 1
    (run_dir,) = workplace.runs
    assert epochs_in(run_dir) == [1, 2]
    said = [line for line in ended.err.splitlines() if "A step was skipped" in line]
    assert len(said) == 1
    assert "in epoch 1, batch 1 of 2 (after 0 optimiser steps): the loss is not finite: box is nan on rank 1 (" in said[0]
    assert str(workplace.folder / "data/images/train") in said[0] and "on rank 0" not in said[0]
    assert f"{run_dir / 'weights' / 'last.pt'} could not be written (No space left on device); what was there before is untouched" in ended.err
    content = torch.load(run_dir / "weights" / "last.pt", weights_only=True)
    assert (content["progress"]["epoch"], content["progress"]["global_step"], content["progress"]["skipped_steps"]) == (1, 1, 1)
    assert all(torch.isfinite(t).all() for part in ("train_model", "ema") for t in content[part].values())
    assert sorted(path.name for path in (run_dir / "weights").iterdir()) == ["best.pt", "last.pt"]
    assert workplace.temporary == []


def test_ctrl_c_in_one_process_is_one_line_and_130(workplace):
    job = started(workplace, WAITS_IN_EPOCH_2, nproc="null")
    job.until((workplace.folder / "waiting-parent").exists, "the second epoch")
    job.process.send_signal(signal.SIGINT)
    ended = job.end(seconds=60)
    assert ended.code == 130
    assert "Traceback" not in ended.err
    assert ended.err.strip().splitlines()[-1].startswith("Training stopped by KeyboardInterrupt; what it left is in")


def test_ranks_leave_by_themselves_when_the_parent_is_killed(workplace, monkeypatch):
    job = started(workplace, WAITS_IN_EPOCH_2, workers=1)
    job.until(lambda: len(list(workplace.folder.glob("waiting-*"))) == 2, "both ranks wait")
    ranks = [child.pid for child in psutil.Process(job.process.pid).children(recursive=True)]
    assert len(ranks) >= 4  # two ranks with a loader worker each
    (run_dir,) = workplace.runs
    with monkeypatch.context() as patched:
        patched.setattr(run_lock, "PATIENCE_SECONDS", 0.0)
        with pytest.raises(launch.RunDirectoryError, match=f"{run_dir} is in use by process {job.process.pid} on "), launch.alone_in(run_dir):
            pass
    lock = str(run_dir / run_lock.LOCK_FILE)
    assert sum(lock in [file.path for file in psutil.Process(pid).open_files()] for pid in ranks) == 1  # rank 0, and no loader worker
    job.process.kill()
    with launch.alone_in(run_dir):  # whoever still saves in it is waited for
        pass
    until(lambda: not alive(ranks), "the end of the ranks", 30)


def test_an_early_stop_ends_all_ranks_at_the_same_epoch(workplace):
    ended = workplace.run(TRAIN, *words(data="data/data.yaml", nproc=2, epochs=10, patience=1, lr0=0.0, warmup_epochs=0))
    assert ended.code == 0, ended.err
    assert epochs_in(workplace.runs[0]) == [1, 2]  # the metric of weights that stand still never improves
    assert "stopped after epoch 2" in (workplace.runs[0] / "train.log").read_text()


CALLBACK = """
class Careless:
    def on_epoch_end(self, event):
        raise RuntimeError("no room on the wall")
"""
SCRIPT = """
import json, sys
from careless import Careless
from libreyolo import LibreYOLO
if __name__ == "__main__":
    LibreYOLO("yolo9t").train(data="data/data.yaml", nproc=2, callbacks=[Careless()], **json.loads(sys.argv[1]))
"""


def test_a_callback_that_raises_ends_every_rank_and_is_named(workplace):
    workplace.script(CALLBACK, "careless.py")
    ended = workplace.run(workplace.script(SCRIPT), json.dumps(SMALL))
    assert ended.code == 1
    assert "rank 0 raised RuntimeError: no room on the wall" in ended.err
    assert "Careless.on_epoch_end raised RuntimeError: no room on the wall" in ended.err
    assert workplace.temporary == []
