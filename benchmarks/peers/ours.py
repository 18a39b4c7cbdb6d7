"""One training of ours, by the Hydra door: python -m benchmarks.peers.ours WORDS_OF_TRAIN_PY, with moments told that the run's records don't hold.

Told are: the first optimiser step is done; an epoch is over (the moment that the peers' callbacks tell); a validation, with what of it only rank 0
does. All else is read from the run directory. Ranks import this module, so what it puts in place acts in them, too.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import wraps
from typing import Any

from benchmarks.peers.process import tell
from libreyolo.engine import trainer
from libreyolo.engine.step import TrainStep
from libreyolo.interfaces.metric import Metric
from libreyolo.interfaces.task import Task
from libreyolo.record.tables import ResultsTable


def tell_first_step() -> None:
    """Tell when the first step of a rank is done, waiting for the device this once."""
    original = TrainStep.move

    def move(self: TrainStep) -> Any:
        TrainStep.move = original  # type: ignore[method-assign]
        verdict = self.move()
        verdict.wait()
        tell("first step")
        return verdict

    TrainStep.move = move  # type: ignore[method-assign]


def tell_epochs() -> None:
    """Tell when an epoch is over, at the moment at which its row is written."""
    original = ResultsTable.on_epoch_end

    @wraps(original)
    def on_epoch_end(self: ResultsTable, event: Any) -> None:
        original(self, event)
        tell("epoch")

    ResultsTable.on_epoch_end = on_epoch_end  # type: ignore[method-assign]


class Timed:
    """A task whose metric says how long rank 0 merged and computed: the part of a validation that more ranks don't shorten."""

    def __init__(self, task: Task) -> None:
        self.task, self.serial = task, 0.0

    def __getattr__(self, name: str) -> Any:
        return getattr(self.task, name)

    def metric(self) -> Metric:
        metric = self.task.metric()
        for name in {"merge", "take_parts", "compute"} & set(dir(metric)):
            setattr(metric, name, self._timed(getattr(metric, name)))
        return metric

    def _timed(self, work: Callable[..., Any]) -> Callable[..., Any]:
        def timed(*arguments: Any) -> Any:
            began = time.perf_counter()
            try:
                return work(*arguments)
            finally:
                self.serial += time.perf_counter() - began

        return timed


def tell_validations() -> None:
    """Tell how long each validation took on rank 0, and what of it is serial."""
    original = trainer.validate

    @wraps(original)
    def validate(net: Any, task: Task, loader: Any, **keys: Any) -> Any:
        timed, began = Timed(task), time.perf_counter()
        found = original(net, timed, loader, **keys)
        tell("validation", seconds=time.perf_counter() - began, serial=timed.serial)
        return found

    trainer.validate = validate


tell_first_step()
tell_epochs()
tell_validations()

if __name__ == "__main__":
    import train
    from libreyolo import door

    door.enter(train.main)
