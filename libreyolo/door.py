"""The Hydra door's side of the library: what `train.py` registers before composing, and how it answers a user's mistake."""

from __future__ import annotations

import os
import re
import sys
import threading
import traceback
from collections.abc import Callable, Mapping, MutableMapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

from hydra.core.config_store import ConfigStore
from hydra.core.hydra_config import HydraConfig
from hydra.errors import ConfigCompositionException, HydraException, MissingConfigException
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import ConfigAttributeError, ConfigKeyError, OmegaConfBaseException, ValidationError

import launch
from launch import restart
from libreyolo import command_line, hydra_runs, resume, run_files, schema
from libreyolo.engine import garbage
from libreyolo.errors import UserError, nearest, want_of_the_machine
from libreyolo.place import Place
from libreyolo.recipe import Recipe, recipe_fields
from libreyolo.record import shell
from libreyolo.weights import find as find_weights

SECONDS_FOR_RANK_0 = 15.0  # for saying a mistake that every rank has found

# The order of keys in the help, by the first key of each part of the base recipe.
PARTS = {
    "family": "What is trained, and on what",
    "epochs": "Length and batch",
    "device": "Where it runs",
    "optimizer": "Optimiser and schedule",
    "ema": "Averages of the weights",
    "val": "Validation, checkpoints, records",
}


def enter(main: Callable[[], Any]) -> None:
    """Compose and train, and leave as a command should: a mistake as its sentence with exit code 1, Ctrl-C with 130, a bug with its traceback.

    main: the function under @hydra.main, which reads the command line. Under torchrun a mistake that every rank makes is said by rank 0.
    """
    os.environ["HYDRA_FULL_ERROR"] = "1"  # the chain of causes holds what our one sentence is made of
    quiet, words = False, sys.argv[1:]
    try:
        quiet = _is_other_rank(os.environ)
        register()
        sys.argv[1:] = arguments_for_rank(sys.argv[1:], os.environ)
        main()
    except KeyboardInterrupt:
        sys.exit(130)  # whoever was interrupted has said so
    except (Exception, _Told) as ending:
        error = ending.error if isinstance(ending, _Told) else ending
        told = hydra_runs.summary() or sentence(error, words)
        if told is None:
            raise
        if quiet and _is_said_by_rank_0(error):
            # Whoever started the ranks ends them all when the first one leaves: rank 0 must have spoken by then. Its end ends this wait.
            threading.Event().wait(SECONDS_FOR_RANK_0)
            sys.exit(1)
        sys.exit(told)
    finally:
        hydra_runs.let_go()
        page = hydra_runs.write_report()
        if page is not None:
            sys.stderr.write(f"The sweep's jobs side by side: {page}\n")


class _Told(BaseException):
    """Carries an error whose message is enough past Hydra, which would write a line of its own for an Exception."""

    def __init__(self, error: Exception) -> None:
        super().__init__(str(error))
        self.error = error


def _is_other_rank(environ: Mapping[str, str]) -> bool:
    try:
        environment = launch.detect(environ)
    except launch.LaunchError:
        return False  # said when the command line is read
    return environment is not None and environment.rank != 0


def _is_said_by_rank_0(error: BaseException) -> bool:
    told = [link for link in _chain(error) if getattr(link, "one_sentence", False)]
    return all(getattr(link, "on_every_rank", True) for link in told) and not any(launch.is_consequence(link) for link in _chain(error))


def register() -> None:
    """Register recipes and resolvers with Hydra; must come before @hydra.main composes. Safe to call twice."""
    schema.register()
    hydra_runs.register()
    OmegaConf.register_new_resolver("libreyolo_help", lambda *_: help_text(), replace=True)


def arguments_for_rank(arguments: Sequence[str], environ: MutableMapping[str, str]) -> list[str]:
    """Return the command line that this process hands to Hydra.

    Under torchrun or srun every rank enters Hydra, but only rank 0 may leave files: the others are told to write nothing. The local rank that old
    launchers pass as an argument goes into `environ`. Raises UserError for a sweep under torchrun, whose ranks would each run it.
    """
    kept, local_rank = launch.strip_local_rank(arguments)
    if local_rank is not None:
        environ.setdefault("LOCAL_RANK", str(local_rank))
    files = [argument for argument in kept if argument.startswith("cfg=")]
    line = command_line.read([argument for argument in kept if argument not in files])
    words = [*_with_file(files, line.words), *line.words]
    environment = launch.detect(environ)
    if environment is None:
        return [*line.options, *words]
    if line.is_sweep:
        raise UserError("-m under torchrun would run the sweep once in every process: start it without torchrun, 'device=[0,1]' spawns for it.")
    if environment.rank == 0:
        return [*line.options, *words]
    silent = {"hydra.output_subdir": "null", "hydra/job_logging": "disabled", "hydra/hydra_logging": "disabled", "hydra.run.dir": "."}
    own = [word for word in words if word.partition("=")[0].lstrip("+") not in silent]
    return [*line.options, *(f"{key}={value}" for key, value in silent.items()), *own]


def _with_file(files: Sequence[str], words: Sequence[str]) -> list[str]:
    """Register the file that `cfg=` names as an option of Hydra's group `cfg`, so that presets and typed keys win over it; a file that says its
    model chooses that model unless `model=` was typed. Raises UserError for a file that cannot be read."""
    found = []
    for argument in files:
        value = argument.partition("=")[2].strip("'\"")
        if value == "null":
            continue
        if value == "":
            raise UserError("cfg= is empty: give it a file, or leave it out.")
        path = Path(value).expanduser().absolute()
        values = run_files.read_config(path)
        family, size = values.pop("family", None), values.pop("size", None)
        ConfigStore.instance().store(group=f"cfg{path.parent}", name=f"{path.stem}.yaml", node=values, package="_global_")
        found.append(f"cfg={shell.quoted(str(path.parent / path.stem))}")
        if family and size and not any(word.startswith("model=") for word in words):
            found.append(f"model={family}{size}")
    return found


@lru_cache(maxsize=1)
def help_text() -> str:
    """Return what `python train.py --help` prints."""
    families = schema.families()
    lines = [
        "LibreYOLO Train: train vision models, on one GPU or many, the same model.",
        "",
        "  python train.py experiment=demo                         a detector on the embedded set, in minutes on a CPU",
        "  python train.py model=yolo9s data=my.yaml               your YOLO-format data",
        "  python train.py model=resnet18 data=pets                a classifier on pets/train/CLASS/ and pets/val/CLASS/",
        "  python train.py model=yolo9s data=my.yaml 'device=[0,1]' batch=32      two GPUs, the same model",
        "  python train.py model=yolo9s data=my.yaml weights=LibreYOLO9s.pt       fine-tune published weights",
        "  python train.py resume=outputs/2026-01-31/12-00-00-1a2b go on with a run that was interrupted",
        "  python train.py cfg=RUN/train_config.yaml epochs=50     run a run again, with another number",
        "  python train.py -m lr0=0.01,0.02 data=my.yaml           a sweep: one run for each value",
        "",
        f"Models (model=): {', '.join(schema.model_names())}",
        "Presets: " + "  ".join(f"{g}={{{','.join(names)}}}" for g, names in command_line.groups().items() if g != "model"),
        "",
        "Keys (each is an argument of train() in Python). Defaults are the base's; --cfg job prints what your command will use.",
    ]
    lines += _key_lines(Recipe, skip=())
    for family in families.values():
        base = set(recipe_fields(Recipe))
        lines += ["", f"Only {family.name}:", *_key_lines(family.recipe, skip=base)]
    return "\n".join(lines)


def _key_lines(recipe: type[Recipe], skip: Sequence[str] | set[str]) -> list[str]:
    lines = []
    for name, field in recipe_fields(recipe).items():
        if name in skip:
            continue
        if recipe is Recipe and name in PARTS:
            lines += ["", f"{PARTS[name]}:"]
        default = field.default_factory() if callable(field.default_factory) else field.default
        lines.append(f"  {name:<18} {_shown(default):<14} {field.metadata['help']}")
    return lines


def _shown(value: Any) -> str:
    if value is None:
        return "null"
    return "(model)" if value == "???" else str(value).lower() if isinstance(value, bool) else str(value).replace(" ", "")


def typed_keys(overrides: Sequence[str], config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the keys that the user wrote on the command line (not those of presets), with their composed values."""
    names = [re.split(r"[=.\[]", o.lstrip("+~"), maxsplit=1)[0] for o in overrides if "=" in o]
    return {name: config[name] for name in names if name in config and name in schema.key_names()}


def train_job(cfg: DictConfig) -> float:
    """Train as composed in the directory that Hydra made; return the best metric (0.0 when nothing was validated), for sweepers.

    A job of a sweep leaves the traceback of what ended it in its train.log; a single run that never began leaves no directory.
    """
    hydra = HydraConfig.get()
    run_dir, cwd = Path(hydra.runtime.output_dir), Path(hydra.runtime.cwd)
    is_sweep = hydra.mode == RunMode.MULTIRUN
    try:
        config = _resolved(cfg)
        place = hydra_runs.place_of(run_dir, cwd, cwd / hydra.sweep.dir if is_sweep else None)
        with garbage.set_apart():
            best = train_from_config(config, list(hydra.overrides.task), place)
    except Exception as error:
        if is_sweep:
            run_files.append_failure(run_dir, error)
            _let_go(error)
            raise
        if not isinstance(error, (UserError, launch.LaunchError)):
            raise
        if isinstance(error, launch.RankFailedError):
            run_files.append_failure(run_dir, error)
        elif not _is_other_rank(os.environ) and not isinstance(error, launch.RunDirectoryError):  # which may be about another job's directory
            run_files.remove_unstarted(run_dir)
        raise _Told(error) from error
    if not _is_other_rank(os.environ):
        restart.forget(os.environ, cwd / str(config["project"]))
    return best


def _resolved(cfg: DictConfig) -> dict[str, Any]:
    """Return the composed configuration without references. Raises UserError for one that leads nowhere."""
    try:
        found: Any = OmegaConf.to_container(cfg, resolve=True)
    except OmegaConfBaseException as error:
        raise UserError(_of_hydra(error)) from error
    return {str(key): value for key, value in found.items()}


def _let_go(error: BaseException) -> None:
    """Empty the frames of a traceback: Hydra keeps a job's exception until the sweep ends, and with it the network of the job."""
    for link in _chain(error):
        traceback.clear_frames(link.__traceback__)


def train_from_config(config: Mapping[str, Any], overrides: Sequence[str], place: Place) -> float:
    """Train as the composed config says and return the best metric.

    overrides: what the user typed; a resumed run keeps its saved arguments except for these.
    """
    from libreyolo.api import LibreYOLO

    typed = typed_keys(overrides, config)
    if "name" in typed:
        chosen = shell.override("hydra.run.dir", Path(str(config["project"])) / str(typed["name"]))
        raise UserError(f"name={typed['name']} names a run directory in Python only; on the command line say {chosen}.")
    family, size = str(config["family"]), str(config["size"])
    chosen_model = any(o.lstrip("+").startswith("model=") for o in overrides)
    values = {k: v for k, v in config.items() if k not in ("family", "size", "weights")}
    resumed = _resumed(config, place.cwd)
    if resumed is not None:
        if chosen_model:
            resume.refuse_other_model(resumed, family, size)
        if "weights" in typed and config.get("weights"):
            raise UserError(f"weights={config['weights']} and resume={config['resume']} both say where to start: give one of them.")
        family, size = str(resumed.config["family"]), str(resumed.config["size"])
        values = {k: v for k, v in typed.items() if k not in ("family", "size", "weights")}
        values |= {k: config[k] for k in resume.OF_THE_COMMAND} | {"resume": str(resumed.path)}
    weights = config.get("weights") if resumed is None else None
    origin = find_weights(str(weights), place.cwd) if weights else None
    model = LibreYOLO(origin or f"{family}{size}")
    if weights and chosen_model and (model.family.name, model.size) != (family, size):
        raise UserError(f"weights={weights} is {model.family.name}{model.size}, but model={family}{size}: leave model= out, or choose the same.")
    if weights and not chosen_model and (model.family.name, model.size) != (family, size):
        raise UserError(
            f"weights={weights} is {model.family.name}{model.size}: say model={model.family.name}{model.size} so that its recipe is used."
        )
    result = model.train(_place=place, **values)
    return float(result["best_metric"] or 0.0)


def _resumed(config: Mapping[str, Any], cwd: Path) -> resume.Resumed | None:
    """Return the checkpoint that `resume` means, None for a fresh run."""
    project = Path(str(config["project"])).expanduser()
    path = resume.find_checkpoint(config["resume"], project if project.is_absolute() else cwd / project, cwd)
    return resume.open_checkpoint(path) if path else None


def sentence(error: BaseException, words: Sequence[str] = ()) -> str | None:
    """Return the one sentence for a user's mistake, however deep Hydra wrapped it; None for anything else. words: the command line's."""
    chain = _chain(error)
    for link in chain:
        if getattr(link, "one_sentence", False) or isinstance(link, launch.RankFailedError):
            return str(link)
        if launch.is_consequence(link) and launch.detect(os.environ) is not None:
            return "This rank lost its connection to another one, which has said why it ended."
    for link in chain:
        machine = want_of_the_machine(link, *hydra_runs.settled())
        if machine is not None:
            return machine
        if isinstance(link, (ConfigAttributeError, ConfigKeyError)):
            key = str(link.key if link.key is not None else link.full_key)
            if key in schema.key_names():
                recipe = getattr(link, "object_type", None)
                return schema.key_of_others(key, next((f for f in schema.families().values() if f.recipe is recipe), None))
            return f"Unknown key '{key}'.{nearest(key, schema.key_names())} All keys: python train.py --help."
        if isinstance(link, ValidationError) and (told := schema.type_sentence(link, given=command_line.values_of(words))):
            return told
        if isinstance(link, MissingConfigException):
            return _missing(link)
    if isinstance(error, (HydraException, ConfigCompositionException, OmegaConfBaseException)):
        return _of_hydra(error)
    return None


def _of_hydra(error: BaseException) -> str:
    """Return what Hydra or OmegaConf says, as one sentence."""
    text = " ".join(str(error).split())
    if ambiguous := re.match(r"Ambiguous value for argument '(.*?)' 1\.", text):
        return command_line.not_a_sweep(ambiguous[1])
    key, _, value = text.removeprefix("Error merging override ").partition("=")
    if text.startswith("Error merging override ") and schema.kind_of(key):
        return schema.wrong_type(key, value)
    if isinstance(error, OmegaConfBaseException) and error.full_key:
        return f"{error.full_key}: {str(error).splitlines()[0]}."
    return text


def _missing(error: Any) -> str:
    wanted = str(error.missing_cfg_file or "")
    group, _, name = wanted.rpartition("/")
    if group in command_line.groups():
        return command_line.not_an_option(group, name)
    if group:
        options = list(error.options or [])
        return f"{group}={name} is not known.{nearest(name, options)} Choose one of: {', '.join(options)}."
    return " ".join(str(error).split())


def _chain(error: BaseException | None) -> list[BaseException]:
    links: list[BaseException] = []
    while error is not None and error not in links:
        links.append(error)
        error = error.__cause__ or error.__context__
    return links
