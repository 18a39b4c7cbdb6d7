"""A task small enough to do by hand: one number a picture, a line through them, a metric that is told what to say."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from libreyolo.engine.ema import EMA
from libreyolo.engine.optimizer import build_optimizer, parameter_groups
from libreyolo.engine.progress import Progress
from libreyolo.engine.schedule import Schedule
from libreyolo.engine.step import TrainStep
from libreyolo.engine.trainer import EpochSummary, Plan, Trainer
from libreyolo.interfaces.term import Term, per_count

CPU = torch.device("cpu")


def toy_net() -> nn.Module:
    """A linear layer, a BatchNorm and a head, with fixed weights."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3), nn.Linear(3, 1))


@dataclass
class ToyLoader:
    """`batches` are (x, y) pairs; every epoch yields the same."""

    batches: Sequence[tuple[Tensor, Tensor]]
    epochs_read: list[int] = field(default_factory=list)
    waiting_seconds: float = 0.0

    def start(self, epoch: int, start_step: int = 0, until: int | None = None) -> None: ...

    def epoch(self, epoch: int, start_step: int = 0, until: int | None = None) -> Iterator[tuple[Tensor, Tensor]]:
        self.epochs_read.append(epoch)
        yield from self.batches[start_step:]

    def steps(self, epoch: int) -> int:
        return len(self.batches)

    def real_pictures(self, epoch: int, step: int) -> int:
        return len(self.batches[step][0])

    def pictures_of(self, batch: tuple[Tensor, Tensor]) -> Callable[[], list[str]]:
        number = next(i for i, known in enumerate(self.batches) if known is batch)
        return lambda: [f"{number}.png"]

    def reset_waiting(self) -> None:
        self.waiting_seconds = 0.0

    def close(self) -> None: ...


def toy_batches(num: int, size: int = 4, seed: int = 1) -> list[tuple[Tensor, Tensor]]:
    generator = torch.Generator().manual_seed(seed)
    return [(torch.randn(size, 2, generator=generator), torch.randn(size, 1, generator=generator)) for _ in range(num)]


class ToyMetric:
    """Counts pictures; its value is what the test wants."""

    def __init__(self, value: float) -> None:
        self.value, self.seen = value, 0

    def update(self, batch: Any, predictions: list[Any]) -> None:
        self.seen += len(predictions)

    def state(self) -> int:
        return self.seen

    def merge(self, states: list[int]) -> None:
        self.seen = sum(states)

    def compute(self) -> dict[str, float]:
        return {"metrics/toy": self.value, "metrics/seen": float(self.seen)}

    def curves(self) -> dict[str, Any]:
        return {}


class ToyTask:
    """Squared error, per picture; `values` are the metrics of the validations, in turn (the last one repeats)."""

    best_metric = "metrics/toy"

    def __init__(self, values: Sequence[float] = (0.5,)) -> None:
        self.values, self.validations = list(values), 0

    def facts(self, batch: Any) -> dict[str, int]:
        return {}

    def target_stats(self, batch: Any) -> dict[str, Tensor]:
        return {"pictures": torch.tensor([float(len(batch[0]))])}

    def terms(self, net: nn.Module, batch: Any, facts: dict[str, int]) -> dict[str, Term]:
        x, y = batch
        total = (net(x) - y).square().sum()
        return {"fit": per_count(total, torch.tensor(float(len(x))), normaliser="pictures")}

    def forward(self, net: nn.Module, batch: Any) -> Tensor:
        return net(batch[0])

    def decode(self, output: Tensor, batch: Any) -> list[float]:
        return output.flatten().tolist()

    def metric(self) -> ToyMetric:
        value = self.values[min(self.validations, len(self.values) - 1)]
        self.validations += 1
        return ToyMetric(value)


@dataclass
class ToyRun:
    """A trainer, and what it saved and told."""

    trainer: Trainer
    task: ToyTask
    saved: list[EpochSummary]
    told: list[tuple[str, Any]]

    @property
    def rows(self) -> list[dict[str, Any]]:
        return [event.row for name, event in self.told if name == "on_epoch_end"]


def toy_run(
    *,
    values: Sequence[float] = (0.5,),
    num_batches: int = 3,
    schedule: Schedule | None = None,
    progress: Progress | None = None,
    validate: bool = True,
    task: ToyTask | None = None,
    ema: bool = True,
    before_last_validation: Any = None,
    stop_asked: Any = lambda: "",
    **plan: Any,
) -> ToyRun:
    """Return a trainer of the toy net on `num_batches` batches an epoch; `plan` overrides 4 epochs validated every epoch, patience off."""
    net, task = toy_net(), task or ToyTask(values)
    optimizer = build_optimizer(parameter_groups(net, 0.0), name="sgd", lr=0.01, momentum=0.9, device=CPU)
    saved: list[EpochSummary] = []
    told: list[tuple[str, Any]] = []
    trainer = Trainer(
        net=net,
        bare=net,
        ema=EMA(net, decay=0.9, tau=1.0) if ema else None,
        task=task,
        step=TrainStep(net, task, optimizer, device=CPU, amp_dtype=None),
        schedule=schedule or Schedule("constant", 0.01, 1000),
        train_loader=ToyLoader(toy_batches(num_batches)),
        val_loader=ToyLoader(toy_batches(2, seed=2)) if validate else None,
        plan=Plan(**{"epochs": 4, "accumulate": 1, "seed": 0, "eval_interval": 1, "patience": 0, "log_interval": 1, **plan}),
        progress=progress or Progress(),
        save=saved.append,
        tell=lambda name, event: told.append((name, event)),
        stop_asked=stop_asked,
        before_last_validation=before_last_validation,
    )
    return ToyRun(trainer, task, saved, told)
