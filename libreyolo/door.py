"""The Hydra door's side of the library: what `train.py` registers before composing, and how it answers a user's mistake."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Mapping, MutableMapping, Sequence
from datetime import datetime
from functools import lru_cache
from pathlib import Path
from typing import Any

import launch
from launch import restart, rundir
from libreyolo import resume, run_files, schema
from libreyolo.errors import UserError, nearest
from libreyolo.recipe import Recipe, recipe_fields

CONFIG_DIR = str(Path(__file__).resolve().parent.parent / "conf")

# The order of keys in the help, by the first key of each part of the base recipe.
PARTS = {
    "family": "What is trained, and on what",
    "epochs": "Length and batch",
    "device": "Where it runs",
    "optimizer": "Optimiser and schedule",
    "ema": "Averages of the weights",
    "val": "Validation, checkpoints, records",
}


def register() -> None:
    """Register recipes and resolvers with Hydra; must come before @hydra.main composes. Safe to call twice."""
    from omegaconf import OmegaConf

    schema.register()
    OmegaConf.register_new_resolver("libreyolo_help", lambda *_: help_text(), replace=True)
    directories: dict[str, str] = {}  # a process has one run directory, however often Hydra asks

    def run_dir(resume: Any, project: str) -> str:
        if "run" not in directories:
            directories["run"] = str(_run_directory(resume, Path(project)))
        return directories["run"]

    def sweep_dir(project: str) -> str:
        if "sweep" not in directories:
            directories["sweep"] = str(rundir.new_time_directory(Path(project), datetime.now()))
        return directories["sweep"]

    OmegaConf.register_new_resolver("run_dir", run_dir, replace=True)
    OmegaConf.register_new_resolver("sweep_dir", sweep_dir, replace=True)


def _run_directory(wish: Any, project: Path) -> Path:
    """Return the directory for Hydra's files: the resumed run's own, that of the run which torchrun restarts, or a new one."""
    found = resume.find_checkpoint(wish, project, Path.cwd())
    if found is not None:
        return resume.open_checkpoint(found).run_dir
    return restart.restart_directory(os.environ, project) or rundir.new_time_directory(project, datetime.now())


def arguments_for_rank(arguments: Sequence[str], environ: MutableMapping[str, str]) -> list[str]:
    """Return the command line that this process hands to Hydra.

    Under torchrun or srun every rank enters Hydra, but only rank 0 may leave files: the others are told to write nothing. The local rank that old
    launchers pass as an argument goes into `environ`. Raises UserError for a sweep under torchrun, whose ranks would each run it.
    """
    kept, local_rank = launch.strip_local_rank(_with_file(arguments))
    if local_rank is not None:
        environ.setdefault("LOCAL_RANK", str(local_rank))
    environment = launch.detect(environ)
    if environment is None:
        return list(kept)
    if any(a in ("-m", "--multirun") for a in kept):
        raise UserError("-m under torchrun would run the sweep once in every process: start the sweep without torchrun, device=[0,1] spawns for it.")
    if environment.rank == 0:
        return list(kept)
    silent = ["hydra.output_subdir=null", "hydra/job_logging=disabled", "hydra/hydra_logging=disabled", "hydra.run.dir=."]
    return [*silent, *(a for a in kept if not a.startswith("hydra.run.dir="))]


def _with_file(arguments: Sequence[str]) -> list[str]:
    """Register the file that `cfg=` names as an option of Hydra's group `cfg`, so that presets and typed keys win over it; a file that says its
    model chooses that model unless `model=` was typed."""
    from hydra.core.config_store import ConfigStore

    found = []
    for argument in arguments:
        name, _, value = argument.partition("=")
        if name != "cfg" or value in ("", "null"):
            found.append(argument)
            continue
        path = Path(value.strip("'\"")).expanduser().absolute()
        values = run_files.read_config(path)
        family, size = values.pop("family", None), values.pop("size", None)
        ConfigStore.instance().store(group=f"cfg{path.parent}", name=f"{path.stem}.yaml", node=values, package="_global_")
        found.append(f"cfg='{path.parent / path.stem}'")
        if family and size and not any(a.startswith("model=") for a in arguments):
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
        "  python train.py model=yolo9s data=my.yaml 'device=[0,1]' batch=32      two GPUs, the same model",
        "  python train.py model=yolo9s data=my.yaml weights=LibreYOLO9s.pt       fine-tune published weights",
        "  python train.py resume=outputs/DATE/time-TIME           go on with a run that was interrupted",
        "  python train.py cfg=RUN/train_config.yaml epochs=50     run a run again, with another number",
        "  python train.py -m lr0=0.01,0.02 data=my.yaml           a sweep: one run for each value",
        "",
        f"Models (model=): {', '.join(schema.model_names())}",
        "Presets: " + "  ".join(f"{g}={{{','.join(names)}}}" for g, names in _presets().items()),
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


@lru_cache(maxsize=1)
def _presets() -> dict[str, list[str]]:
    groups = ("dataset", "devices", "batching", "tracking", "experiment")
    return {group: sorted(p.stem for p in (Path(CONFIG_DIR) / group).glob("*.yaml")) for group in groups}


def typed_keys(overrides: Sequence[str], config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the keys that the user wrote on the command line (not those of presets), with their composed values."""
    names = [re.split(r"[=.\[]", o.lstrip("+~"), maxsplit=1)[0] for o in overrides if "=" in o]
    return {name: config[name] for name in names if name in config and name in recipe_names()}


@lru_cache(maxsize=1)
def recipe_names() -> frozenset[str]:
    """Return every key of every family."""
    return frozenset(name for f in schema.families().values() for name in recipe_fields(f.recipe))


def train_from_config(config: dict[str, Any], overrides: Sequence[str], *, run_dir: Path, cwd: Path) -> float:
    """Train as the composed config says and return the best metric (0.0 when nothing was validated), for sweepers.

    overrides: what the user typed; a resumed run keeps its saved arguments except for these.
    """
    try:
        return _train_from_config(config, overrides, run_dir=run_dir, cwd=cwd)
    except UserError:
        _remove_untouched(run_dir)
        raise


def _remove_untouched(run_dir: Path) -> None:
    """Remove a directory that Hydra made for a run that never began."""
    if run_dir.is_dir() and {p.name for p in run_dir.iterdir()} <= {".hydra"}:
        shutil.rmtree(run_dir, ignore_errors=True)
        for parent in list(run_dir.parents)[:1]:
            if not any(parent.iterdir()):
                parent.rmdir()


def _train_from_config(config: dict[str, Any], overrides: Sequence[str], *, run_dir: Path, cwd: Path) -> float:
    from libreyolo.api import LibreYOLO

    typed = typed_keys(overrides, config)
    family, size = str(config["family"]), str(config["size"])
    chosen_model = any(o.lstrip("+").startswith("model=") for o in overrides)
    values = {k: v for k, v in config.items() if k not in ("family", "size", "weights")}
    checkpoint = resume.find_checkpoint(config["resume"], _project(config, cwd), cwd)
    if checkpoint is not None:
        saved = resume.open_checkpoint(checkpoint)
        if chosen_model:
            resume.refuse_other_model(saved, family, size)
        values = {k: v for k, v in typed.items() if k not in ("family", "size", "weights")}
        values |= {k: config[k] for k in resume.OF_THE_COMMAND} | {"resume": str(checkpoint)}
        model = LibreYOLO(f"{saved.config['family']}{saved.config['size']}")
        result = model.train(_run_dir=run_dir, _cwd=cwd, **values)
        return float(result["best_metric"] or 0.0)
    weights = config.get("weights")
    model = LibreYOLO(str(weights) if weights else f"{family}{size}")
    if weights and chosen_model and (model.family.name, model.size) != (family, size):
        raise UserError(f"weights={weights} is {model.family.name}{model.size}, but model={family}{size}: leave model= out, or choose the same.")
    if weights and not chosen_model and (model.family.name, model.size) != (family, size):
        raise UserError(
            f"weights={weights} is {model.family.name}{model.size}: say model={model.family.name}{model.size} so that its recipe is used."
        )
    result = model.train(_run_dir=run_dir, _cwd=cwd, **values, weights=weights)
    return float(result["best_metric"] or 0.0)


def _project(config: Mapping[str, Any], cwd: Path) -> Path:
    project = Path(str(config["project"])).expanduser()
    return project if project.is_absolute() else cwd / project


def sentence(error: BaseException) -> str | None:
    """Return the one sentence for a user's mistake, however deep Hydra wrapped it; None for anything else."""
    from hydra.errors import ConfigCompositionException, HydraException, MissingConfigException
    from omegaconf.errors import ConfigAttributeError, ConfigKeyError, OmegaConfBaseException, ValidationError

    chain = _chain(error)
    for link in chain:
        if isinstance(link, UserError) or getattr(link, "one_sentence", False):
            return str(link)
    for link in chain:
        if isinstance(link, (ConfigAttributeError, ConfigKeyError)):
            key = str(link.key if link.key is not None else link.full_key)
            return f"Unknown key '{key}'.{nearest(key, recipe_names())} All keys: python train.py --help."
        if isinstance(link, ValidationError):
            return schema.type_sentence(link)
        if isinstance(link, MissingConfigException):
            return _missing(link)
    if isinstance(error, (HydraException, ConfigCompositionException, OmegaConfBaseException)):
        text = " ".join(str(error).split())
        if "Ambiguous value" in text:
            return "device=0,1 is a sweep of two runs to Hydra: write 'device=[0,1]' (quoted) for one run on two GPUs, or add -m for the sweep."
        return text
    return None


def _missing(error: Any) -> str:
    wanted = str(error.missing_cfg_file or "")
    group, _, name = wanted.rpartition("/")
    options = list(error.options or [])
    if group:
        return f"{group}={name} is not known.{nearest(name, options)} Choose one of: {', '.join(options)}."
    return " ".join(str(error).split())


def _chain(error: BaseException | None) -> list[BaseException]:
    links: list[BaseException] = []
    while error is not None and error not in links:
        links.append(error)
        error = error.__cause__ or error.__context__
    return links
