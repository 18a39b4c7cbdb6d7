"""From names and a recipe to a trainer that is ready to fit: network, loss, loaders, optimiser, schedule, average."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from libreyolo.assembly.parts import Assembly, Seat
from libreyolo.engine import data_parallel, rank_state
from libreyolo.engine.batchnorm import warn_small_batch
from libreyolo.engine.compilation import compiled
from libreyolo.engine.cuda_graph import GraphedNetwork, streams_may_differ
from libreyolo.engine.current_device import current
from libreyolo.engine.ema import EMA
from libreyolo.engine.freeze import freeze
from libreyolo.engine.fusion import with_norms
from libreyolo.engine.interruption import Interruption
from libreyolo.engine.loss_log import LossLog
from libreyolo.engine.optimizer import build_optimizer, load_state, parameter_groups
from libreyolo.engine.precise_bn import recompute_statistics
from libreyolo.engine.profiler import MarkedNetwork
from libreyolo.engine.progress import Progress
from libreyolo.engine.reports import EpochSummary
from libreyolo.engine.schedule import Schedule
from libreyolo.engine.step import TrainStep
from libreyolo.engine.trainer import Plan, Trainer
from libreyolo.engine.weight_casts import cast_together
from libreyolo.errors import UserError
from libreyolo.interfaces.family import Family
from libreyolo.interfaces.task import Loader
from libreyolo.recipe import Recipe
from libreyolo.weights import refuse_infinite, transfer

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Start:
    """Where the weights come from: a state (None: random ones), what the network needs beside its size, and a name for the log."""

    state: Mapping[str, Tensor] | None
    options: Mapping[str, Any]
    origin: str


def training_network(family: Family, recipe: Recipe, nc: int, start: Start) -> nn.Module:
    """Return the network to train, on the CPU, with every tensor of `start` that fits; one log line says how many."""
    torch.manual_seed(recipe.seed)  # new layers are the same on every rank and in every run of this seed
    net: nn.Module = family.network.build(recipe.size, nc, **{**start.options, **recipe.network_options()})
    if start.state is None:
        log.info("%s%s starts from random weights.", family.name, recipe.size)
    else:
        taken, wanted = transfer(net, start.state)
        log.info("%d of %d tensors taken from %s.", taken, wanted, start.origin)
        if taken == 0:
            raise UserError(f"No tensor of {start.origin} fits {family.name}{recipe.size}.")
        refuse_infinite(net.state_dict(), start.origin)
    return net


def amp_dtype(recipe: Recipe, device: torch.device) -> torch.dtype | None:
    """Return the type of mixed precision, None for float32: amp=false, or a device other than CUDA."""
    if not recipe.amp or device.type != "cuda":
        return None
    if recipe.amp_dtype == "auto":
        with current(device):
            # Emulated, as torch does on devices before Ampere, it is slower than float32.
            return torch.bfloat16 if torch.cuda.is_bf16_supported(including_emulation=False) else torch.float16
    return {"bfloat16": torch.bfloat16, "float16": torch.float16}[recipe.amp_dtype]


def accumulation(recipe: Recipe) -> int:
    """Return the micro-batches of an optimiser step: round(nbs / batch), at least 1."""
    return max(round(recipe.nbs / recipe.batch), 1) if recipe.nbs else 1


def plan(recipe: Recipe) -> Plan:
    """Return how long to train and how often to look."""
    return Plan(
        epochs=recipe.epochs,
        accumulate=accumulation(recipe),
        seed=recipe.seed,
        eval_interval=recipe.eval_interval if recipe.val else 0,
        patience=recipe.patience,
        log_interval=recipe.log_interval,
        val_loss=recipe.val_loss,
        max_steps=recipe.max_steps,
        stop_after_epoch=recipe.stop_after_epoch,
        nonfinite=recipe.nonfinite,
    )


def schedule(recipe: Recipe, steps_per_epoch: int) -> Schedule:
    """Return the learning-rate curve in optimiser steps."""
    return Schedule(
        kind=recipe.scheduler,
        lr0=recipe.lr0,
        total_steps=recipe.epochs * steps_per_epoch,
        warmup_steps=round(min(recipe.warmup_epochs, recipe.epochs) * steps_per_epoch),
        lr_start=recipe.warmup_lr_start,
        min_ratio=recipe.min_lr_ratio,
        tail_steps=min(recipe.no_aug_epochs, recipe.epochs) * steps_per_epoch,
        poly_power=recipe.poly_power,
        drop_step=recipe.lr_drop * steps_per_epoch,
        momentum=recipe.momentum,
        warmup_momentum=recipe.warmup_momentum,
    )


@dataclass
class Training:
    """A trainer and what belongs to it."""

    trainer: Trainer
    bare: nn.Module
    ema: EMA | None
    optimizer: torch.optim.Optimizer
    stack: ExitStack  # what ends with the training

    @property
    def modules(self) -> list[nn.Module]:
        """The network and its average, where there is one."""
        return [self.bare, *([self.ema.average] if self.ema else [])]

    def load_state(self, content: Mapping[str, Any], path: Path) -> None:
        """Put the training checkpoint that `path` holds back: weights, average, optimiser, scaler. Raises UserError for what is missing or does not
        fit."""
        live = content.get("train_model", content["model"])
        try:
            self.bare.load_state_dict(live)
            if self.ema:
                self.ema.average.load_state_dict(content["ema"])
                self.ema.updates = int(content["ema_updates"])
            load_state(self.optimizer, content["optimizer"])
            if content.get("scaler"):
                self.trainer.step.scaler.load_state_dict(content["scaler"])
            if content.get("ranks"):  # the run ended in the middle of an epoch
                self.trainer.earlier_losses = rank_state.put_back(content["ranks"], self.modules)
        except (LookupError, ValueError, RuntimeError, TypeError, AttributeError) as error:  # whatever the parts of a file may be of another kind
            reason = f"it lacks {error}" if isinstance(error, KeyError) else " ".join(str(error).split())[:300]
            raise UserError(f"{path} does not fit this run and was not resumed: {reason}.") from error

    def close(self) -> None:
        """End the loaders' workers, and leave the network as it was made."""
        self.stack.close()


def training(
    family: Family,
    recipe: Recipe,
    assembly: Assembly,
    net: nn.Module,
    seat: Seat,
    *,
    progress: Progress,
    save: Callable[[EpochSummary], None],
    tell: Callable[[str, Any], None],
    stop_asked: Callable[[], str] = lambda: "",
    save_midway: Callable[[LossLog], None] = lambda losses: None,
    tell_saved: Callable[..., None] = lambda *, wait=False: None,
    interruption: Interruption | None = None,
    train_loader: Loader | None = None,
) -> Training:
    """Return everything that training needs, on this rank's device. train_loader: one that has been started; None: it is made here."""
    device = seat.device
    bare = net.to(device)
    if device.type == "cuda":
        bare = bare.to(memory_format=torch.channels_last)
    freeze(bare, recipe.freeze)
    over_ranks = seat.world_size > 1 and recipe.sync_bn
    bare = with_norms(bare, fused=recipe.fused, over_ranks=over_ranks, compiled=recipe.compile is not False)
    warn_small_batch(bare, recipe.batch // seat.world_size, seat.world_size, recipe.sync_bn)
    ema = EMA(bare, decay=recipe.ema_decay, tau=recipe.ema_tau) if recipe.ema else None
    optimizer = build_optimizer(
        parameter_groups(bare, recipe.weight_decay, recipe.lr_scales()),
        name=recipe.optimizer,
        lr=recipe.lr0,
        momentum=recipe.momentum,
        nesterov=recipe.nesterov,
        betas=(recipe.betas[0], recipe.betas[1]),
        device=device,
    )
    task = assembly.task()
    stack = ExitStack()
    precision = amp_dtype(recipe, device)
    stack.enter_context(compiled(bare, recipe.compile))
    # A compiler joins a cast with what uses it.
    chunks = stack.enter_context(cast_together(bare, precision)) if recipe.compile is False else ()
    wrapped = _graphed(data_parallel.data_parallel(bare, device, chunks), recipe, seat, stack)
    if recipe.profile and seat.world_size == 1:
        wrapped = MarkedNetwork(wrapped)
    interruption = interruption or Interruption()
    step = TrainStep(
        wrapped,
        task,
        optimizer,
        device=device,
        amp_dtype=precision,
        clip_max_norm=recipe.clip_max_norm,
        asked_to_leave=interruption.asked,
    )
    train_loader = train_loader or assembly.train_loader(seat, recipe.batch)
    val_loader = assembly.val_loader(seat, max(recipe.batch // seat.world_size, 1)) if recipe.val else None
    steps_per_epoch = -(-train_loader.steps(0) // accumulation(recipe))

    def before_last_validation(judged: nn.Module, epoch: int) -> None:
        recompute_statistics(judged, task, train_loader, recipe.precise_bn, epoch=epoch, leaving=interruption.asked_anywhere)

    trainer = Trainer(
        net=wrapped,
        bare=bare,
        ema=ema,
        task=task,
        step=step,
        schedule=schedule(recipe, steps_per_epoch),
        train_loader=train_loader,
        val_loader=val_loader,
        plan=plan(recipe),
        progress=progress,
        save=save,
        tell=tell,
        stop_asked=stop_asked,
        save_midway=save_midway,
        tell_saved=tell_saved,
        interruption=interruption,
        before_last_validation=before_last_validation if recipe.precise_bn else None,
    )
    for loader in filter(None, (train_loader, val_loader)):
        stack.callback(loader.close)
    return Training(trainer, bare, ema, optimizer, stack)


def _graphed(net: nn.Module, recipe: Recipe, seat: Seat, stack: ExitStack) -> nn.Module:
    """Return what the step calls: the network, behind a CUDA graph where one is wished and can be; what that needs ends with `stack`."""
    if not recipe.cuda_graph:
        return net
    if seat.world_size > 1 or seat.device.type != "cuda":
        where = f"{seat.world_size} ranks" if seat.world_size > 1 else seat.device.type
        if seat.rank == 0:
            log.info("cuda_graph=true is for one GPU; on %s the network trains eagerly.", where)
        return net
    stack.enter_context(streams_may_differ())
    return GraphedNetwork(net)
