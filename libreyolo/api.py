"""The Python door: `LibreYOLO(...)` trains, validates, predicts and saves. The one place where library and launcher meet."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import launch
from libreyolo import autobatch, build, resume, run, run_files, schema
from libreyolo import weights as weights_files
from libreyolo.assembly import assembly_for
from libreyolo.assembly.parts import Judged, Seat, refuse_other_classes
from libreyolo.engine import checkpoint, collectives
from libreyolo.engine.checkpoint import WeightsMeta
from libreyolo.engine.generators import caller_untouched
from libreyolo.engine.validate import validate
from libreyolo.errors import UserError, nearest, of_the_machine
from libreyolo.interfaces.input import InputSpec
from libreyolo.place import Place, keep_known, train_alone, train_as_rank
from libreyolo.predict import run as run_prediction
from libreyolo.recipe import Recipe, checks
from libreyolo.recipe.checks import image_hw, image_size, on_stride
from libreyolo.record.callbacks import check_callbacks, split_loggers
from libreyolo.record.trackers import require_packages
from libreyolo.results import Result, save_all


class LibreYOLO:
    """A model of any family.

    model: a model name ("yolo9s": random weights), a published name ("LibreYOLO9s.pt": from disk, else fetched) or the path of a weights file.
    Raises UserError for a name or file that cannot be used. Building a model touches no GPU.

    Attributes: family, size, net (on `device`), names (class id to name), nc, imgsz, task, device.
    """

    def __init__(self, model: str | Path = "yolo9s") -> None:
        known = schema.model_names()
        self.device = torch.device("cpu")
        self._file: weights_files.Weights | None = None
        self._given, self._origin = str(model), ""  # as the caller named it; the file behind it, "" for random weights
        if str(model) in known:
            self.family, self.size = known[str(model)]
            self.names = {i: f"class_{i}" for i in range(self.family.default_nc)}
            self.imgsz = schema.default_imgsz(self.family, self.size)
            self._options: dict[str, Any] = {}
            self._extras: dict[str, Any] = {}
            self.net: nn.Module = self.family.network.build(self.size, self.nc)
        else:
            self._take(weights_files.load(_find(model, known)))

    def _take(self, file: weights_files.Weights) -> None:
        """Become the model of a weights file."""
        self._file, self._origin = file, str(file.path)
        self.family, self.size, self.names, self.imgsz = file.family, file.size, dict(file.names), file.imgsz
        # Training-only branches are not built for inference; their tensors stay in `_file` for a fine-tune.
        self._options = {k: v for k, v in file.options.items() if k not in file.family.recipe().network_options()}
        self._extras = dict(file.extras)
        self.net = file.family.network.build(file.size, len(file.names), **self._options)
        weights_files.load_whole(self.net, file.state, file.path)
        self.net.eval()

    @property
    def nc(self) -> int:
        """Number of classes, 0 where the task has none."""
        return len(self.names)

    @property
    def task(self) -> str:
        """The family's task: detect, classify, semantic, restore or point."""
        return self.family.task

    # ------------------------------------------------------------------------------------------------------------------ training

    @of_the_machine()
    @caller_untouched()
    def train(
        self,
        data: str | Path | None = None,
        *,
        cfg: str | Path | None = None,
        callbacks: Sequence[Any] | None = (),
        _place: Place | None = None,
        **arguments: Any,
    ) -> dict[str, Any]:
        """Train this model and leave the best weights in it.

        data: path of a data.yaml or a built-in name. cfg: a yaml of arguments; those given here win. The other arguments are the keys of the
        family's recipe (`python train.py --help`); an unknown one is an error. More than one device starts one process for each; the calling
        script needs its `if __name__ == "__main__":` guard then.

        callbacks: objects with any of the methods of `interfaces.events.Listener`, or functions, which are called after every epoch with its
        `EpochEnd`. `loggers` takes such objects too, beside the names of the built-in ones. They are called on rank 0 only; `event.stop("why")`
        ends the run well, an exception ends it on every rank. Where processes are started they are pickled and live in rank 0's process: what
        they store in themselves stays there, so what must come back goes into a file (`on_train_start` and `on_train_end` know `event.run_dir`).

        Returns a dict: save_dir, best_checkpoint, last_checkpoint, best_metric, val_metrics, epoch_losses and more. Raises UserError (a
        ValueError) for what the user can mend, before any worker starts where it can be known.
        """
        launch.check_main_guard()
        place = _place or Place(Path.cwd())
        callbacks = () if callbacks is None else callbacks
        check_callbacks("callbacks", callbacks)
        typed = _read_cfg(cfg, place.cwd) | arguments | ({} if data is None else {"data": str(data)})
        if "loggers" in typed:
            check_callbacks("loggers", typed["loggers"], names=True)
        environment = launch.detect(os.environ)
        with ExitStack() as stack:
            if environment is not None:
                job = self._job(typed, callbacks, place.cwd)
                outcome = self._train_rank(job, typed, place, environment, stack)
                home = self.device
            else:
                outcome, home = self._train_from_here(typed, callbacks, place, stack)
            self._take_best(outcome, home)
        return outcome.result

    def _train_from_here(
        self, typed: Mapping[str, Any], callbacks: Sequence[Any], place: Place, stack: ExitStack
    ) -> tuple[run.Outcome, torch.device]:
        """Train in this process, or in those that it starts, and return what came of it and where this model belongs afterwards."""
        job = self._job(typed, callbacks, place.cwd, keep=lambda directory: stack.enter_context(launch.alone_in(directory)))
        known = keep_known(job, place, stack)
        mps, cuda_count = torch.backends.mps.is_available(), torch.cuda.device_count()
        placement = launch.parse(job.recipe.device, cuda_count=cuda_count, nproc=job.recipe.nproc, mps_available=mps)
        if placement.num_processes > 1:
            # This process has touched no GPU for the training, and needs none for its result.
            return self._train_spawned(job, typed, placement, replace(place, kept=known)), self.device
        home = torch.device(placement.device_for(0))
        return train_alone(replace(job, note=placement.note), place, home), home

    def _job(
        self,
        typed: Mapping[str, Any],
        callbacks: Sequence[Any],
        cwd: Path,
        *,
        restarted: bool = False,
        keep: Callable[[Path], object] = lambda directory: None,
    ) -> run.Job:
        """Resolve and check everything that can be known before the data is read.

        restarted: torchrun started the script again, so a run that has finished meanwhile is no mistake. keep: called with the directory of a run
        that goes on, before its checkpoint is read, which another job may be writing.
        """
        names, own_loggers = split_loggers(typed.get("loggers", []))
        typed = {**typed, "loggers": names} if own_loggers else typed
        project = run.below(cwd, str(typed.get("project", Recipe.project)))
        found = resume.find_checkpoint(self._resume_request(typed), project, cwd)
        if found:
            keep(resume.run_dir_of(found))
        resumed = resume.open_checkpoint(found) if found else None
        arguments = {k: v for k, v in typed.items() if k != "weights"}
        self._refuse_other_weights(typed.get("weights"))
        if resumed:
            resume.refuse_other_model(resumed, self.family.name, self.size)
            arguments = resume.merged_arguments(resumed, arguments)
            arguments.pop("family", None), arguments.pop("size", None)
        recipe = schema.resolve(self.family, self.size, arguments).for_training()
        recipe = replace(recipe, project=str(project), weights=recipe.weights if resumed else self._origin or None)
        require_packages(recipe.loggers)
        if resumed and not restarted:
            resume.refuse_finished(resumed, recipe.epochs)
        if resumed:  # the checkpoint's network, classes and input convention: its tensors must fit, its pictures look as they did
            self._take(weights_files.load(resumed.path))
        if recipe.data is None and recipe.data_dir is None:
            raise UserError(
                "data is missing: say what to train on, data=path/to/data.yaml (Python: train(data=...)), or try the embedded set: "
                f"data={recipe.BUILT_IN}."
            )
        spec = self._spec(recipe)
        on_stride(recipe.imgsz, spec.stride)
        on_stride(recipe.judged_imgsz, spec.stride, "eval_imgsz")
        start = self._start(recipe, cwd, resumed)
        extras = {**self._extras_of(spec), **recipe.file_extras()}
        job = run.Job(self.family, recipe, spec, start, extras, cwd, resumed, tuple(callbacks), tuple(own_loggers))
        run.refuse_missing_data(job)
        return job

    def _resume_request(self, typed: Mapping[str, Any]) -> bool | str:
        """Return what to resume: in Python `resume=True` means the checkpoint that this model was made from, where it is one."""
        wish = typed.get("resume", False)
        if wish is True and self._file is not None and "optimizer" in self._file.content:
            return str(self._file.path)
        return bool(wish) if wish is None or isinstance(wish, bool) else str(wish)

    def _refuse_other_weights(self, weights: Any) -> None:
        """In Python the model says where to start; `weights` is only what the Hydra door wrote down of it."""
        if weights is not None and str(weights) not in (self._given, self._origin):
            raise UserError(f"weights={weights} is for python train.py; in Python name the file first: LibreYOLO({str(weights)!r}).train(...).")

    def _start(self, recipe: Recipe, cwd: Path, resumed: resume.Resumed | None) -> build.Start:
        if recipe.pretrained and resumed is None:
            return build.Start(*weights_files.pretrained(self.family, self.size, recipe.pretrained, cwd))
        if self._file is None:
            return build.Start(None, self._options, "random weights")
        # The net may have moved on since the file was read (trained, edited): it wins over the file.
        state: dict[str, Tensor] = {**self._file.state, **{k: v.cpu() for k, v in self.net.state_dict().items()}}
        return build.Start(state, self._options, str(self._file.path))

    def _spec(self, recipe: Recipe | None = None) -> InputSpec:
        """Return the input convention: the family's, with what the weights file or the recipe says of letterbox or crop."""
        own = self.family.input_of(self.size)
        position = getattr(recipe, "letterbox_pad", None) or self._extras.get("letterbox_pad") or own.pad_position
        spec = replace(own, pad_position=position, crop_pct=self._extras.get("crop_pct") or own.crop_pct)
        return replace(spec, **recipe.input_changes()) if recipe else spec

    def _extras_of(self, spec: InputSpec) -> dict[str, Any]:
        """Return what a weights file says beside its nine keys: its own extras, and the input convention where files differ in it."""
        own = self.family.input_of(self.size)
        letterbox = {"letterbox_pad": spec.pad_position} if spec.resize == "letterbox" else {}
        crop = {"crop_pct": spec.crop_pct} if spec.crop_pct != own.crop_pct else {}
        return {**{k: v for k, v in self._extras.items() if k != "crop_pct"}, **letterbox, **crop}

    def _train_rank(self, job: run.Job, typed: Mapping[str, Any], place: Place, environment: launch.RankEnvironment, stack: ExitStack) -> run.Outcome:
        """Train in this process, one rank of those that somebody started: torchrun, srun, or `_train_spawned`."""

        def going_on(path: Path, restarted: bool) -> run.Job:
            return self._job({**typed, "resume": str(path)}, job.callbacks, place.cwd, restarted=restarted)

        return train_as_rank(job, place, environment, going_on, stack)

    def _train_spawned(self, job: run.Job, typed: Mapping[str, Any], placement: launch.Placement, place: Place) -> run.Outcome:
        """Start one process per device; each rebuilds the model from a temporary file and walks the single-device path."""
        launch.require_spawn_support(
            self.family.name, self.family.spawns, f'LibreYOLO("{self.family.name}{self.size}").train', placement.num_processes
        )
        asked, job = job, autobatch.settled(job, torch.device(placement.device_for(0)), placement.num_processes)
        launch.check_divisible(job.recipe.batch, placement.num_processes)
        launch.choose_backend(placement.device_for(0), job.recipe.backend)  # one that can't be used is an error now, not in a worker
        # The workers' model is a plain weights file and the newest run may be another by then: they are told the checkpoint itself.
        arguments = {**typed, "resume": str(job.resumed.path) if job.resumed else False, "weights": self._origin or None}
        if job is not asked:  # measured here, once: every worker gets a plain number
            arguments["batch"] = job.recipe.batch
        order = _Order(f"{self.family.name}{self.size}", arguments, list(job.callbacks), place, job.note)
        launch.check_can_spawn(_train_worker, (order,))
        with launch.owned_folder("libreyolo_train_") as folder:
            order = replace(order, model=self._worker_model(folder))
            outcome: run.Outcome = launch.spawn_ddp_train(_train_worker, (order,), num_processes=placement.num_processes)
            return outcome

    def _worker_model(self, folder: Path) -> str:
        """Return what a worker builds its model from: the name for random weights, else a temporary file with this model's weights."""
        if self._file is None:
            return f"{self.family.name}{self.size}"
        state = {**self._file.state, **{k: v.cpu() for k, v in self.net.state_dict().items()}}
        content = checkpoint.weights_dict(state, self._meta())
        checkpoint.write(content, folder / "weights.pt")
        return str(folder / "weights.pt")

    def _take_best(self, outcome: run.Outcome, device: torch.device) -> None:
        """Load the best checkpoint of a finished run into this object, on `device`."""
        path = Path(outcome.result["best_checkpoint"])
        if path.exists():
            self._take(weights_files.load(path))
        self.device = device
        self.net.to(device)

    # ---------------------------------------------------------------------------------------------------------- using a model

    @collectives.alone()  # a callback validates on rank 0 only
    def val(
        self, data: str | Path | None = None, *, split: str = "val", conf: float | None = None, iou: float | None = None, **arguments: Any
    ) -> dict[str, float]:
        """Validate this model and return its metrics by column name ("metrics/mAP50-95").

        data: as in `train`; None: the data the weights were trained on, where the file says so. split: train, val or test; the others are not read.
        conf, iou: thresholds of boxes (0.001 and 0.6). `arguments`: batch, imgsz, device, workers, max_det and the like, as in `train`; those left
        out are as the training judged itself, so that a run's best.pt gives its row of results.csv. Raises UserError when the classes of data and
        model differ in number or order.
        """
        cwd = Path.cwd()
        trained = weights_files.evaluation_arguments(self._file.content) if self._file else {}
        given = {} if data is None else {"data": str(data), "data_dir": None}
        self._refuse_imgsz(arguments.get("imgsz"))
        values = {"data": None, "imgsz": self.imgsz, **trained, **given, **arguments}
        if values["data"] is None and values.get("data_dir") is None:
            raise UserError("data is missing: say what to validate on, val(data='path/to/data.yaml'), in the shell --data path/to/data.yaml.")
        recipe = schema.resolve(self.family, self.size, values)
        if recipe.batch == autobatch.MEASURE:
            raise UserError("batch=-1 measures a training; give val a number of pictures, val(batch=16).")
        on_stride(recipe.judged_imgsz, self.family.input_of(self.size).stride)
        device = self._pick_device(recipe.device)
        assembly = assembly_for(self.family)(self.family, recipe, self._spec(recipe), cwd, Judged(split, self.names))
        try:
            refuse_other_classes(values["data"], assembly.names, self.names)
            loader = assembly.val_loader(Seat(0, 1, 1, device), recipe.batch, split)
            if loader is None:
                raise UserError(f"{values['data']} has no {split} split to validate on.")
            task = assembly.task(split, **_given(conf=conf, iou=iou))
            found = validate(self.net.to(device), task, loader, device=device, amp_dtype=build.amp_dtype(recipe, device))
            loader.close()
            return found.metrics
        finally:
            assembly.close()

    def predict(
        self,
        source: Any,
        *,
        conf: float | None = None,
        iou: float | None = None,
        imgsz: int | Sequence[int] | None = None,
        device: Any = None,
        classes: Sequence[int] | None = None,
        max_det: int | None = None,
        batch: int = 1,
        save: str | Path | None = None,
    ) -> list[Result]:
        """Return one Result for each picture of `source`: a file, a folder, a glob, a PIL picture, an RGB uint8 array, or a list of those.

        A file of a folder or a glob that is no usable picture is skipped with a warning; one that is named by itself is an error.
        conf, iou: lowest score kept (0.25 where left out), and the overlap above which the weaker of two boxes of a class goes (0.45). classes:
        keep only these ids. max_det: most predictions of a picture (300). imgsz: the network input, as in training where left out. One that means
        nothing for this model's task is refused. save: a folder for the drawn (or restored) pictures.
        """
        self._refuse_imgsz(imgsz)
        wanted = image_size(imgsz if imgsz is not None else self.imgsz)
        checks.count("batch", batch)
        settings = _given(conf=conf, iou=iou, classes=classes, max_det=max_det)
        predictor = assembly_for(self.family).predictor(self.family, self._spec(), self.names, **settings)
        on_stride(wanted, self.family.input_of(self.size).stride)
        self._pick_device(device if device is not None else str(self.device))
        found = run_prediction(self.net, predictor, source, cwd=Path.cwd(), hw=image_hw(wanted), batch=batch, device=self.device)
        results = list(found)
        if save is not None:
            save_all(results, Path(save))
        return results

    def _refuse_imgsz(self, imgsz: Any) -> None:
        """Raise UserError for an input size where pictures are used at their own."""
        if imgsz is not None and self.family.input.resize == "native":
            raise UserError(f"imgsz={imgsz} means nothing here: {self.family.name} is used on every picture at its own size; leave it out.")

    def save(self, path: str | Path) -> Path:
        """Write the weights of the inference network as a LibreYOLO weights file; an existing file is replaced whole. Return its path."""
        target = Path(path)
        checkpoint.write(checkpoint.weights_dict(self.net.state_dict(), self._meta()), target)
        return target

    def _meta(self) -> WeightsMeta:
        return WeightsMeta(self.family.name, self.size, self.family.task, self.names, self.imgsz, self._extras_of(self._spec()))

    def _pick_device(self, device: Any) -> torch.device:
        """Move to the one device of `device` and return it."""
        placement = launch.parse(device, cuda_count=torch.cuda.device_count(), mps_available=torch.backends.mps.is_available())
        self.device = torch.device(placement.device_for(0))
        self.net.to(self.device)
        return self.device


@dataclass(frozen=True)
class _Order:
    """What a spawned worker is told; the fields' names are those that an error about an unpicklable value shows."""

    model: str
    arguments: dict[str, Any]
    callbacks: list[Any]
    place: Place
    note: str


def _train_worker(order: _Order) -> run.Outcome:
    """Run in every spawned worker: the ordinary path, in which the rank variables are set."""
    worker = LibreYOLO(order.model)
    worker._origin = order.arguments["weights"] or ""  # not the temporary file
    job = replace(worker._job(order.arguments, order.callbacks, order.place.cwd), note=order.note)
    environment = launch.detect(os.environ)
    assert environment is not None, "a worker has its rank in the environment"
    with ExitStack() as stack:
        return worker._train_rank(job, order.arguments, order.place, environment, stack)


def _find(model: str | Path, known: Mapping[str, Any]) -> Path:
    text = str(model)
    published = weights_files.parse_published(f"{text}.pt")
    if published is None and "/" not in text and "\\" not in text and "." not in text and not Path(text).exists():
        raise UserError(f"Unknown model '{text}'.{nearest(text, known)} Known: {', '.join(known)}; or give a weights file.")
    return weights_files.find(text, Path.cwd())


def _read_cfg(cfg: str | Path | None, cwd: Path) -> dict[str, Any]:
    if cfg is None:
        return {}
    return {k: v for k, v in run_files.read_config(run.below(cwd, str(cfg))).items() if k not in ("family", "size", "weights")}


def _given(**settings: Any) -> dict[str, Any]:
    """Return the settings that the caller gave; the others keep the task's defaults."""
    return {name: value for name, value in settings.items() if value is not None}
