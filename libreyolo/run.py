"""One rank's whole training: settle the run directory, read the data, build, fit, leave the records. Every door ends here."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import nn

from libreyolo import build, run_files
from libreyolo.assembly import assembly_for
from libreyolo.assembly.parts import Assembly, HasExample, Seat
from libreyolo.data.loader_room import lost_workers_told
from libreyolo.engine import checkpoint, collectives, garbage, rank_state
from libreyolo.engine.checkpoint import WeightsMeta
from libreyolo.engine.interruption import Interruption
from libreyolo.engine.loss_log import LossLog
from libreyolo.engine.profiler import StepProfiler
from libreyolo.engine.progress import Progress
from libreyolo.engine.reports import EpochSummary
from libreyolo.engine.trainer import Trainer
from libreyolo.errors import AgreedError, UserError, counted, of_the_machine
from libreyolo.interfaces.events import TrainEnd, TrainFailed, TrainStart
from libreyolo.interfaces.family import Family
from libreyolo.interfaces.input import InputSpec
from libreyolo.interfaces.task import Loader
from libreyolo.recipe import Recipe
from libreyolo.record.listeners import Listeners
from libreyolo.record.report.listener import ReportListener
from libreyolo.record.run_log import run_log
from libreyolo.record.trackers import TrackedRun
from libreyolo.resume import Resumed, refuse_other_classes
from libreyolo.saving import Saver

log = logging.getLogger(__name__)

T = TypeVar("T")


@dataclass(frozen=True)
class Job:
    """What to train, resolved: the same on every rank."""

    family: Family
    recipe: Recipe
    spec: InputSpec
    start: build.Start
    extras: dict[str, Any]  # of the weights file, to be written on
    cwd: Path
    resumed: Resumed | None = None
    callbacks: Sequence[Any] = ()
    loggers: Sequence[Any] = ()  # the user's own; those that have a name are in the recipe
    group: str = ""  # of the sweep that this run belongs to
    note: str = ""  # about the choice of devices and batch, for the log; lines


@dataclass(frozen=True)
class Outcome:
    """What a rank knows at the end. `result` is what train() returns."""

    run_dir: Path
    names: dict[int, str]
    result: dict[str, Any]


def train(job: Job, seat: Seat, settle_directory: Callable[[], Path], interruption: Interruption | None = None) -> Outcome:
    """Train on this rank; the process group, if any, is already there.

    settle_directory: called on rank 0 only; its directory is broadcast, so that all ranks agree. interruption: told of the signals that ask this
    rank to leave. Raises UserError for what the user can mend; its `on_every_rank` is False where only this rank has met it. Raises Interrupted
    (a SystemExit) on every rank where one was asked to leave, with everything saved.
    """
    _agree(job)
    run_dir = Path(collectives.broadcast_object(str(on_rank_0(settle_directory, seat))))
    try:
        with of_the_machine(run_dir), garbage.set_apart():
            return _train_in(run_dir, job, seat, interruption or Interruption())
    except Exception as error:
        if seat.rank == 0:
            run_files.append_failure(run_dir, error)
        raise


def _train_in(run_dir: Path, job: Job, seat: Seat, interruption: Interruption) -> Outcome:
    main = seat.rank == 0
    with ExitStack() as stack:
        if main:
            stack.enter_context(run_log(run_dir, append=job.resumed is not None))
        listeners = Listeners()
        try:
            _say_where(job, seat, run_dir)
            assembly = _read_data(job, seat)
            stack.callback(assembly.close)
            with lost_workers_told():
                return _train(job, seat, run_dir, assembly, listeners, stack, interruption)
        except BaseException as error:
            listeners.tell_failure(TrainFailed(run_dir, error))
            raise


def refuse_missing_data(job: Job) -> None:
    """Raise UserError for data that is plainly not there, before a directory is made or a process started."""
    recipe = job.recipe
    named = str(recipe.data if recipe.data is not None else recipe.data_dir)
    if recipe.data is not None and recipe.data_dir is not None and not below(job.cwd, recipe.data_dir).is_dir():
        raise UserError(f"data_dir={recipe.data_dir}: there is no such folder; it replaces the `path:` of the data.yaml.")
    if named != recipe.BUILT_IN and not any(os.path.lexists(f"{below(job.cwd, named)}{suffix}") for suffix in ("", ".yaml", ".yml")):
        assembly_for(job.family)(job.family, recipe, job.spec, job.cwd).close()  # its own sentence says where it looked


def below(cwd: Path, path: str) -> Path:
    """Return `path`, with ~ expanded, counted from `cwd` if it is relative."""
    found = Path(path).expanduser()
    return found if found.is_absolute() else cwd / found


def _agree(job: Job) -> None:
    """Raise on every rank when one composed other arguments than rank 0: under torchrun each rank composes for itself."""
    own = {**asdict(job.recipe), "resume": str(job.resumed.path) if job.resumed else False}
    reference = collectives.broadcast_object(own)
    differing = [f"{name}={own.get(name)} where rank 0 has {reference.get(name)}" for name in own if own.get(name) != reference.get(name)]
    every = collectives.gather_objects(differing)
    found = next((f"rank {rank} has {text[0]}" for rank, text in enumerate(every or []) if text), "")
    told = collectives.broadcast_object(found)
    if told:
        raise UserError(f"The ranks were given different arguments ({told}): give every rank the same command, without ${{now:...}} and the like.")


def on_rank_0(work: Callable[[], T], seat: Seat) -> T | None:
    """Do `work` on rank 0 and return what it made there, None elsewhere.

    A mistake of the user's that rank 0 finds is raised on all ranks, so none waits for a rank that is gone.
    """
    made: T | None = None
    mistake: Exception | None = None
    if seat.rank == 0:
        try:
            with of_the_machine():
                made = work()
        except Exception as error:
            if not getattr(error, "one_sentence", False):
                raise
            mistake = error
            mistake.on_every_rank = True  # type: ignore[attr-defined]  # as it is from here on
    mistake = collectives.broadcast_object(mistake)
    if mistake is not None:
        raise mistake
    return made


def _read_data(job: Job, seat: Seat) -> Assembly:
    """Read the data on rank 0 first, so that the other ranks find its caches instead of doing the work again."""
    kind = assembly_for(job.family)
    assembly = on_rank_0(lambda: kind(job.family, job.recipe, job.spec, job.cwd), seat)
    if assembly is not None:
        return assembly
    with _this_rank_alone():
        return kind(job.family, job.recipe, job.spec, job.cwd)


@contextmanager
def _this_rank_alone() -> Iterator[None]:
    """Mark a user's mistake as one that the other ranks may not have met, so that this rank says it."""
    try:
        yield
    except AgreedError:
        raise
    except UserError as error:
        error.on_every_rank = False
        raise


def _train(job: Job, seat: Seat, run_dir: Path, assembly: Assembly, listeners: Listeners, stack: ExitStack, interruption: Interruption) -> Outcome:
    recipe, main = job.recipe, seat.rank == 0
    config = asdict(recipe)
    progress = Progress.from_dict(job.resumed.content["progress"]) if job.resumed else Progress()
    start_epoch = progress.epoch
    if job.resumed:
        refuse_other_classes(job.resumed, assembly.names)
    train_loader = _started_loader(assembly, seat, recipe, progress, stack)
    meta = WeightsMeta(job.family.name, recipe.size, job.family.task, assembly.names, recipe.judged_imgsz, job.extras)
    net = build.training_network(job.family, recipe, len(assembly.names), job.start)
    task = assembly.task()
    saver = Saver(
        run_dir / "weights",
        meta=meta,
        config=config,
        progress=progress,
        best_metric=task.best_metric,
        save_period=recipe.save_period,
        average_best=recipe.average_best,
    )
    save: Callable[[EpochSummary], None] = saver if main else lambda summary: None
    training = build.training(
        job.family,
        recipe,
        assembly,
        net,
        seat,
        progress=progress,
        save=save,
        tell=listeners.tell,
        stop_asked=listeners.stop_asked,
        save_midway=lambda losses: _save_midway(saver, losses, training.modules, seat),
        tell_saved=saver.tell_saved,
        interruption=interruption,
        train_loader=train_loader,
    )
    stack.callback(training.close)
    trainer = training.trainer
    saver.attach(training.bare, training.ema, training.optimizer, trainer.step.scaler)
    saver.tell, saver.at_once = listeners.tell, listeners.wait_for_checkpoints
    if job.resumed:
        _load_state(training, job.resumed)
        inside = f", batch {progress.step_in_epoch} of epoch {start_epoch + 1}" if progress.step_in_epoch else ""
        log.info("Going on from %s after epoch %d%s.", job.resumed.path, start_epoch, inside)
        for change in job.resumed.changes:
            log.info("%s", change)
    if main:
        # First of all: a tracker whose package is missing ends the run before it leaves a file.
        pictures = assembly.pictures(run_dir) if recipe.save_plots else []
        report = [ReportListener(run_dir, type(recipe))] if recipe.report else []
        listeners.add(recipe.loggers, _tracked(job, run_dir, config), [*pictures, *report], [*job.loggers, *job.callbacks])
        for folder in (run_dir, run_dir / "weights", run_dir / "plots"):
            checkpoint.remove_leftovers(folder)  # of an earlier life that was killed while it wrote
        saver.find_candidates(start_epoch)
        run_files.write_config(run_dir, config)
        source = Path(__file__).resolve().parent.parent
        run_files.write_environment(run_dir, world_size=seat.world_size, device=seat.device, source=source)
    steps = trainer.train_loader.steps(start_epoch)
    start = TrainStart(
        run_dir,
        config,
        recipe.epochs,
        start_epoch,
        steps,
        seat.world_size,
        assembly.names,
        resumed=job.resumed is not None,
        example=assembly.example() if isinstance(assembly, HasExample) else None,
    )
    listeners.tell("on_train_start", start)
    _profile(trainer, recipe, run_dir, seat, stack)
    stack.enter_context(garbage.set_apart())
    with _this_rank_alone(), lost_workers_told():
        try:
            history = trainer.fit()
        except BaseException:
            saver.close()
            raise
        saver.finish()
    average = saver.write_average(keep=not trainer.completed) if main else None
    result = _result(run_dir, history, progress, average) | {"stopped_by": trainer.stopped_by or None}
    listeners.tell("on_train_end", TrainEnd(run_dir, result, trainer.completed))
    return Outcome(run_dir, assembly.names, result)


def _started_loader(assembly: Assembly, seat: Seat, recipe: Recipe, progress: Progress, stack: ExitStack) -> Loader:
    """Return the loader of the training, whose workers read the first batches while the network is built and the device made ready."""
    loader, until = assembly.train_loader(seat, recipe.batch), build.plan(recipe).until
    stack.callback(loader.close)
    if progress.epoch < until:
        with _this_rank_alone():
            loader.start(progress.epoch, progress.step_in_epoch, until)
    return loader


def _load_state(training: build.Training, resumed: Resumed) -> None:
    """Put the checkpoint's state back. Raises UserError that names what was typed over the saved arguments, which is why it does not fit."""
    try:
        training.load_state(resumed.content, resumed.path)
    except UserError as error:
        if not resumed.changes:
            raise
        changes = "; ".join(change.removeprefix("resume: ").rstrip(".") for change in resumed.changes)
        raise UserError(f"{resumed.path} cannot go on as asked ({changes}): leave that out, or start anew with weights={resumed.path}.") from error


def _save_midway(saver: Saver, losses: LossLog, modules: list[nn.Module], seat: Seat) -> None:
    """Write last.pt in the middle of an epoch; every rank returns when it is there, or raises why it is not."""
    states = rank_state.gathered(losses, modules)

    def write() -> None:
        assert states is not None
        path, progress = saver.midway(states), saver.progress
        log.info("Saved %s in epoch %d, after its batch %d.", path, progress.epoch + 1, progress.step_in_epoch)

    on_rank_0(write, seat)


def _tracked(job: Job, run_dir: Path, config: dict[str, Any]) -> TrackedRun:
    """Return what trackers are told of the run; it is named by its place below the folder of run directories."""
    recipe, project = job.recipe, Path(job.recipe.project)
    name = run_dir.relative_to(project).as_posix() if run_dir.is_relative_to(project) else run_dir.name
    return TrackedRun(
        run_dir=run_dir,
        name=name,
        config=config,
        project_dir=project,
        group=recipe.group or job.group,
        tags=recipe.tags,
        log_checkpoint=recipe.log_checkpoint,
    )


def _profile(trainer: Trainer, recipe: Recipe, run_dir: Path, seat: Seat, stack: ExitStack) -> None:
    """Record a window of steps where it is wished and there is one process."""
    if not recipe.profile:
        return
    if seat.world_size > 1:
        if seat.rank == 0:
            log.warning("profile=true is ignored with %d ranks: profile on one GPU.", seat.world_size)
        return
    trainer.profiler = StepProfiler(run_dir, seat.device, warmup=recipe.profile_warmup, steps=recipe.profile_steps, trace=recipe.profile_trace)
    stack.callback(trainer.profiler.close)


def _say_where(job: Job, seat: Seat, run_dir: Path) -> None:
    if seat.rank == 0:
        recipe = job.recipe
        for line in filter(None, job.note.splitlines()):
            log.info("%s", line)
        log.info("%s%s, run directory %s", job.family.name, recipe.size, run_dir)
        log.info(
            "%s on %s%s, global batch %d (%d on each rank), torch %s",
            counted(seat.world_size, "rank"),
            seat.device.type,
            f" (backend {collectives.backend()}, time-out {recipe.ddp_timeout:g} min)" if seat.world_size > 1 else "",
            recipe.batch,
            recipe.batch // seat.world_size,
            torch.__version__,
        )


def _result(run_dir: Path, history: list[EpochSummary], progress: Progress, average: Path | None) -> dict[str, Any]:
    """Return what train() returns."""
    weights = run_dir / "weights"
    validated = [h for h in history if h.validation]
    last = validated[-1].validation if validated else None
    best = progress.best_metrics
    return {
        "final_loss": history[-1].loss if history else None,
        "epoch_losses": [h.loss or 0.0 for h in history],
        "epoch_lrs": [h.lrs[0] for h in history],
        "epoch_loss_items": [h.losses for h in history],
        "val_metrics": last.metrics if last else {},
        "epoch_metrics": [h.validation.metrics if h.validation else {} for h in history],
        "best_metric": progress.best_value,
        "best_mAP50": best.get("metrics/mAP50"),
        "best_mAP50_95": best.get("metrics/mAP50-95"),
        "best_epoch": progress.best_epoch,
        "skipped_steps": progress.skipped_steps,
        "save_dir": str(run_dir),
        "best_checkpoint": str(weights / "best.pt"),
        "last_checkpoint": str(weights / "last.pt"),
        "average_checkpoint": str(average) if average else None,
    }
