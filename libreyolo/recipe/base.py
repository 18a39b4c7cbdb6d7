"""The arguments of `train()`: names, types, defaults and checks, once for both doors.

A root key of the Hydra config is an argument of `train()`. Task recipes and family recipes subclass `Recipe`, add the keys that only they have
and override the numbers that differ. Every field carries its meaning in `metadata["help"]`, which `--help` and the documentation print.
"""

from __future__ import annotations

from dataclasses import Field, dataclass, field, fields
from typing import Any, ClassVar

from libreyolo.errors import UserError, nearest
from libreyolo.recipe import checks


def key(default: Any, help: str) -> Any:
    """Return a dataclass field with its meaning; lists are copied for every instance."""
    if isinstance(default, list):
        return field(default_factory=lambda: list(default), metadata={"help": help})
    return field(default=default, metadata={"help": help})


MINUTES_OF_A_YEAR = 525_600
SMALLEST_TAU = 1e-6  # updates; at once, for all that matters
LOGGERS = ("csv", "tensorboard", "wandb", "mlflow")


@dataclass
class Recipe:
    """Arguments that every task and family shares. BUILT_IN: the name of the task's embedded set."""

    BUILT_IN: ClassVar[str] = "shapes"

    # What is trained, and on what
    family: str = key("???", "model family, set by model=")
    size: str = key("???", "size code of the family, set by model=")
    weights: str | None = key(None, "start from this file or published name (LibreYOLO9s.pt); null: random weights")
    pretrained: Any = key(False, "true: the published weights of this family and size; a path: that file; false: keep the weights as they are")
    data: str | None = key(None, "path of a data.yaml, or a built-in name (shapes)")
    data_dir: str | None = key(None, "folder that replaces `path:` of the data.yaml; alone: the folder that holds the data.yaml")
    imgsz: Any = key(640, "network input in pixels: a side, or [height, width]; a multiple of the network's stride")
    workers: int = key(4, "loader processes for each rank")
    cache: Any = key("auto", "keep decoded pictures: false, ram, disk, or auto: in memory, where they take a fifth of what is free or less")
    min_samples: int = key(0, "repeat a tiny set until an epoch has this many pictures")

    # Length and batch
    epochs: int = key(300, "epochs of the whole schedule")
    batch: int = key(16, "global batch: pictures per optimiser step over all GPUs; -1: measured, as many as fit")
    memory_fraction: float = key(0.7, "batch=-1: the part of a GPU's free memory that a training step may use; what others hold is not free")
    nbs: int | None = key(None, "nominal batch: accumulate gradients until this many pictures; null: no accumulation")
    max_steps: int | None = key(None, "end after this many optimiser steps (debugging)")
    stop_after_epoch: int | None = key(None, "leave after this epoch; the schedule stays that of `epochs`; resume goes on")

    # Where it runs
    device: Any = key("auto", "auto, cpu, mps, 0, cuda:0, or a list of GPUs [0,1]")
    nproc: int | None = key(None, "with device=cpu: start this many ranks on the CPU (debugging)")
    sync_bn: bool = key(False, "statistics of BatchNorm over the global batch; acts only with more than one rank")
    backend: str | None = key(None, "process group backend: nccl or gloo; null: nccl where CUDA and NCCL are there, else gloo")
    ddp_timeout: float = key(180.0, "minutes until a collective that waits for a lost rank gives up")
    amp: bool = key(True, "mixed precision on CUDA devices")
    amp_dtype: str = key("auto", "auto (bfloat16 where the device has it, else float16), bfloat16 or float16")
    fused: bool | None = key(None, "BatchNorm with its activation in Triton kernels; null: on a GPU where they run, unless compile does it")
    cuda_graph: bool = key(False, "replay the network's forward and backward as a CUDA graph; one GPU only, more train eagerly")
    compile: Any = key(False, "torch.compile the network: true, or a mode (default, reduce-overhead, max-autotune)")
    profile: bool = key(False, "write where the time of a step goes, and a Chrome trace; one process only")
    profile_warmup: int = key(5, "optimiser steps before the profile's window")
    profile_steps: int = key(20, "optimiser steps in the profile's window")
    profile_trace: bool = key(True, "also write the profile's Chrome trace")
    deterministic: bool = key(False, "ask torch for repeatable GPU kernels (slower)")
    cudnn_benchmark: bool = key(
        False, "let cuDNN try its algorithms: seconds at every new input size, then quicker steps; runs may differ by rounding"
    )
    seed: int = key(0, "seed of every random draw")

    # Optimiser and schedule
    optimizer: str = key("sgd", "sgd, adam or adamw")
    lr0: float = key(0.01, "peak learning rate, used as given whatever the batch")
    momentum: float = key(0.937, "SGD momentum (Adam's beta1 is in betas)")
    weight_decay: float = key(0.0005, "weight decay of weights; norms and biases have none")
    nesterov: bool = key(True, "Nesterov momentum (SGD)")
    betas: list[float] = key([0.9, 0.999], "Adam's decay rates")
    scheduler: str = key("yoloxwarmcos", "yoloxwarmcos, linear, cos, flat_cosine, poly, constant or step")
    warmup_epochs: float = key(5.0, "epochs of warm-up")
    warmup_lr_start: float = key(0.0, "learning rate at the first step of the warm-up")
    warmup_momentum: float | None = key(None, "SGD momentum at the first step, raised to `momentum` over the warm-up; null: constant")
    no_aug_epochs: int = key(15, "last epochs without strong augmentation; also the tail of the schedules that have one")
    min_lr_ratio: float = key(0.05, "last learning rate over lr0")
    poly_power: float = key(0.9, "exponent of scheduler=poly")
    lr_drop: int = key(100, "epoch of the drop by ten of scheduler=step")
    clip_max_norm: float = key(0.0, "clip the gradient to this L2 norm; 0: off")
    nonfinite: str = key("skip", "what follows a step whose loss or gradient is not finite: skip (it moves nothing, is counted and named) or stop")
    freeze: Any = key(None, "parameters that stay as they are: first N parts of the network, or names (list or one)")

    # Averages of the weights
    ema: bool = key(True, "keep an exponential moving average of the weights; it is what is validated and saved")
    ema_decay: float = key(0.9998, "decay of the average, approached as decay * (1 - exp(-updates / ema_tau))")
    ema_tau: float = key(2000.0, "updates over which the decay is approached")
    average_best: int = key(0, "average the weights of the N best checkpoints into average.pt; 0: off")
    precise_bn: int = key(0, "recompute BatchNorm statistics over this many pictures before the last validation; 0: off")

    # Validation, checkpoints, records
    val: bool = key(True, "validate on the validation split")
    eval_interval: int = key(10, "validate every this many epochs, and after the last")
    val_loss: bool = key(False, "also compute the loss on the validation split")
    patience: int = key(50, "stop when the task's metric has not improved for this many epochs; 0: off")
    save_period: int = key(10, "keep epoch_N.pt every this many epochs; 0: only last.pt and best.pt")
    resume: Any = key(False, "false; true or auto: go on from the newest last.pt; a path: go on from that run or checkpoint")
    project: str = key("outputs", "folder of run directories")
    name: str = key("exp", "name of the run directory in Python; on the command line: hydra.run.dir=outputs/NAME")
    exist_ok: bool = key(False, "write into a directory that already holds a run")
    log_interval: int = key(10, "optimiser steps between two reports of the loss")
    loggers: list[str] = key(["csv"], "any of csv (always written), tensorboard, wandb, mlflow; in Python also objects of your own")
    tags: list[str] = key([], "labels of the run in its trackers")
    group: str | None = key(None, "what runs that belong together share in their trackers; null: a sweep's jobs share its directory's name")
    log_checkpoint: bool = key(False, "at the end, also store best.pt in wandb and mlflow")
    save_plots: bool = key(True, "draw the pictures of a run")
    report: bool = key(True, "write report.html, one page that shows the run, when it ends; a sweep gets a page that compares its jobs")
    plot_samples: int = key(8, "validation pictures drawn beside their labels")

    def __post_init__(self) -> None:
        """Check what types cannot say. Raises UserError."""
        self.imgsz = checks.image_size(self.imgsz)
        if self.batch < 1 and self.batch != -1:
            raise UserError(f"batch={self.batch} is not a batch: use a positive number of pictures, or -1 to have it measured.")
        checks.in_range("memory_fraction", self.memory_fraction, 0.05, 0.95)
        for name in ("epochs", "eval_interval", "log_interval"):
            checks.at_least(name, getattr(self, name), 1)
        for name in ("workers", "min_samples", "patience", "save_period", "no_aug_epochs", "warmup_epochs", "average_best", "precise_bn"):
            checks.at_least(name, getattr(self, name), 0)
        for name in ("lr0", "weight_decay", "warmup_lr_start", "clip_max_norm", "poly_power"):
            checks.at_least(name, getattr(self, name), 0.0)
        for name in ("max_steps", "stop_after_epoch", "nbs", "nproc", "plot_samples", "lr_drop"):
            if getattr(self, name) is not None:
                checks.at_least(name, getattr(self, name), 1)
        for name in ("momentum", "warmup_momentum", "min_lr_ratio", "ema_decay"):
            if getattr(self, name) is not None:
                checks.in_range(name, getattr(self, name), 0.0, 1.0)
        checks.in_range("ddp_timeout", self.ddp_timeout, 0.01, MINUTES_OF_A_YEAR)
        checks.at_least("ema_tau", self.ema_tau, SMALLEST_TAU)
        checks.in_range("seed", self.seed, 0, 2**63 - 1)  # what torch's generators take
        checks.one_of("optimizer", self.optimizer, ("sgd", "adam", "adamw"))
        checks.one_of("scheduler", self.scheduler, ("yoloxwarmcos", "linear", "cos", "flat_cosine", "poly", "constant", "step"))
        self.compile = checks.one_of(
            "compile", self.compile, (False, True, "default", "reduce-overhead", "max-autotune", "max-autotune-no-cudagraphs")
        )
        checks.at_least("profile_warmup", self.profile_warmup, 0)
        checks.at_least("profile_steps", self.profile_steps, 1)
        checks.one_of("amp_dtype", self.amp_dtype, ("auto", "bfloat16", "float16"))
        checks.one_of("nonfinite", self.nonfinite, ("skip", "stop"))
        checks.one_of("backend", self.backend, (None, "nccl", "gloo"))
        self.cache = checks.one_of("cache", self.cache, (False, "auto", "ram", "disk"))
        for logger in self.loggers:
            checks.one_of("loggers", logger, LOGGERS)
        checks.selection("freeze", self.freeze)
        self.resume = False if self.resume is None else self.resume
        if not isinstance(self.resume, (bool, str)):
            raise UserError(f"resume={self.resume} must be true, false, auto, or the path of a run or checkpoint.")
        self._check_contradictions()

    def _check_contradictions(self) -> None:
        if self.stop_after_epoch is not None and self.stop_after_epoch > self.epochs:
            raise UserError(f"stop_after_epoch={self.stop_after_epoch} lies behind the last epoch: epochs={self.epochs}.")
        if self.weights and self.pretrained:
            raise UserError(f"weights={self.weights} and pretrained={self.pretrained} both say where to start: give one of them.")
        if self.fused and self.compile is not False:
            raise UserError(f"fused=true and compile={self.compile} both fuse BatchNorm with its activation: give one of them.")
        if self.deterministic and self.cudnn_benchmark:
            raise UserError("deterministic=true asks for repeatable kernels and cudnn_benchmark=true for the fastest of this run: give one of them.")
        if self.cuda_graph and self.compile is not False:
            raise UserError(f"cuda_graph=true and compile={self.compile} both replace how the network runs: give one of them.")
        if len(self.betas) != 2 or not all(0 <= b < 1 for b in self.betas):
            raise UserError(f"betas={list(self.betas)} must be two numbers in [0, 1), like [0.9, 0.999].")
        if self.name in ("", ".", "..") or any(c in self.name for c in "/\\=[], "):
            raise UserError(f"name={self.name!r} cannot be a directory name here: use letters, digits, '.', '_' and '-'.")

    @property
    def judged_imgsz(self) -> int | list[int]:
        """The network input of validation and prediction, which the weights files of a run name: `imgsz` here."""
        found: int | list[int] = self.imgsz
        return found

    def for_training(self) -> Recipe:
        """Return the recipe with what a training settles where the user left it open (nothing here)."""
        return self

    def network_options(self) -> dict[str, Any]:
        """Return keyword arguments for the family's `network.build` that the recipe decides (none here)."""
        return {}

    def lr_scales(self) -> dict[str, float]:
        """Return factors of the learning rate by parameter-name prefix (none here)."""
        return {}

    def input_changes(self) -> dict[str, Any]:
        """Return fields of the family's `InputSpec` that the recipe decides (none here)."""
        return {}

    def file_extras(self) -> dict[str, Any]:
        """Return what weights files of this training say beside their nine keys (nothing here); None takes out what the start weights said."""
        return {}

    def loss_options(self) -> dict[str, Any]:
        """Return keyword arguments for the family's `loss.build` that the recipe decides (none here)."""
        return {}


def recipe_fields(recipe: type[Recipe]) -> dict[str, Field[Any]]:
    """Return the recipe's keys by name, in order."""
    return {f.name: f for f in fields(recipe)}


def check_keys(recipe: type[Recipe], given: dict[str, Any]) -> None:
    """Raise for the first key that the recipe does not have, naming the nearest one."""
    known = recipe_fields(recipe)
    for name in given:
        if name not in known:
            raise UserError(f"Unknown key '{name}'.{nearest(name, known)} All keys: python train.py --help.")
