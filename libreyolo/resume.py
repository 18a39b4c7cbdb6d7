"""Going on from a checkpoint: which one, with which arguments, and what of it goes back where."""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from libreyolo.engine import checkpoint
from libreyolo.engine.progress import Progress
from libreyolo.engine.refusal import not_finite_tensor
from libreyolo.errors import UserError

log = logging.getLogger(__name__)

# Keys that say how this process runs, not what is trained: a resumed run takes them from the command, not from the checkpoint.
OF_THE_COMMAND = frozenset({"resume", "device", "nproc", "backend", "stop_after_epoch", "max_steps", "exist_ok", "project", "name"})


@dataclass(frozen=True)
class Resumed:
    """A checkpoint to go on from, its run directory and the arguments it was trained with."""

    path: Path
    run_dir: Path
    content: dict[str, Any]
    config: dict[str, Any]
    changes: list[str] = field(default_factory=list)  # what the user typed over the saved arguments, one line each


def find_checkpoint(resume: bool | str, project: Path, cwd: Path) -> Path | None:
    """Return the checkpoint that `resume` means, or None for a fresh run.

    false: None. true: the newest weights/last.pt below `project`, an error when there is none. auto: the same, None when there is none. A path: that
    checkpoint, or weights/last.pt of that run directory.
    """
    if resume is False or resume is None:
        return None
    if resume is True or resume == "auto":
        found = sorted(project.glob("**/weights/last.pt"), key=lambda p: p.stat().st_mtime)
        if found:
            return found[-1]
        if resume == "auto":
            log.info("resume=auto: no weights/last.pt below %s, starting afresh.", project)
            return None
        raise UserError(f"resume=true found no weights/last.pt below {project}; name the run: resume=path/to/run.")
    path = Path(str(resume)).expanduser()
    path = path if path.is_absolute() else cwd / path
    if path.is_dir():
        path = path / "weights" / "last.pt" if (path / "weights").is_dir() else path / "last.pt"
    if not path.exists():
        raise UserError(f"resume={resume}: {path} does not exist.")
    return path


def run_dir_of(checkpoint_path: Path) -> Path:
    """Return the run directory of a checkpoint: the folder that holds its `weights/`, else the folder it lies in."""
    return checkpoint_path.parent.parent if checkpoint_path.parent.name == "weights" else checkpoint_path.parent


def open_checkpoint(path: Path) -> Resumed:
    """Read a training checkpoint. Raises UserError when it is a plain weights file or damaged."""
    content = checkpoint.read(path)
    if "optimizer" not in content or "progress" not in content:
        raise UserError(f"{path} holds weights but no training state to resume; train from it with weights={path}.")
    _refuse_damaged(content, path)
    return Resumed(path, run_dir_of(path), content, dict(content["config"]))


def _refuse_damaged(content: Mapping[str, Any], path: Path) -> None:
    """Raise UserError where the training state is not what a run writes, or its weights are not finite. Whether it fits is seen when it is used."""
    kinds = {"config": Mapping, "progress": Mapping, "optimizer": Mapping, **({"train_model": Mapping, "ema": Mapping} if "ema" in content else {})}
    odd = next((key for key, kind in kinds.items() if not isinstance(content.get(key), kind)), None)
    if odd is None and not all(isinstance(content["config"].get(key), str) for key in ("family", "size")):
        odd = "config"
    if odd is None:
        try:
            Progress.from_dict(dict(content["progress"]))
        except ValueError:
            odd = "progress"
    if odd:
        raise UserError(f"{path} cannot be resumed, because its {odd} is not what a run writes; train from its weights with weights={path}.")
    weights = checkpoint.state_of({"model": content.get("train_model", content.get("model"))}, path)
    broken = not_finite_tensor(weights)
    if broken:
        raise UserError(f"{path} cannot be resumed, because its weights are not finite (tensor {broken}): resume an earlier checkpoint of the run.")


def merged_arguments(resumed: Resumed, typed: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments of a resumed run: the saved ones, with what the user typed over them; every difference goes into its `changes`."""
    saved = {k: v for k, v in resumed.config.items() if k not in OF_THE_COMMAND}
    if typed.get("batch") == -1 and "batch" in saved:  # what was measured then goes on: another batch would be another schedule
        typed = {name: value for name, value in typed.items() if name != "batch"}
    if typed.get("pretrained") and typed["pretrained"] != saved.get("pretrained"):
        raise UserError(f"pretrained={typed['pretrained']} and resume={resumed.path} both say where to start: give one of them.")
    for name, value in typed.items():
        if name in saved and saved[name] != value and name not in OF_THE_COMMAND:
            resumed.changes.append(f"resume: {name}={value} replaces the saved {name}={saved[name]}.")
    return {**saved, **typed}


def _is_closed(run_dir: Path) -> bool:
    """Return whether the run in a directory came to its end; True where nothing tells."""
    try:
        status = json.loads((run_dir / "status.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return True
    return not isinstance(status, dict) or status.get("state") == "completed"


def refuse_other_model(resumed: Resumed, family: str, size: str) -> None:
    """Raise when the checkpoint is of another model than the one that is to go on."""
    saved = f"{resumed.config['family']}{resumed.config['size']}"
    if saved != f"{family}{size}":
        raise UserError(f"{resumed.path} is a run of {saved}, not of {family}{size}: resume it with that model.")


def refuse_other_classes(resumed: Resumed, names: Mapping[int, str]) -> None:
    """Raise when the data has other classes than the run was trained on: another number of them, or one that both know under another id.

    A class that is merely spelt anew goes on. names: of the data, empty where the task has no classes.
    """
    saved = {int(number): str(name) for number, name in dict(resumed.content.get("names") or {}).items()}
    if not names or not saved:
        return
    if len(names) != len(saved):
        raise UserError(
            f"{resumed.path} was trained on {len(saved)} classes and the data has {len(names)} now: resume it with its own data, or train anew from "
            f"its weights with weights={resumed.path}."
        )
    ids = {name: number for number, name in names.items()}
    moved = [(name, number, ids[name]) for number, name in saved.items() if ids.get(name, number) != number and names[number] != name]
    if moved:
        name, before, now = moved[0]
        raise UserError(f"{resumed.path} was trained with class {name!r} as id {before}, which is {now} in the data now: keep the old order.")


def refuse_finished(resumed: Resumed, epochs: int) -> None:
    """Raise when nothing is left to train. More epochs than the run was planned for re-plan it: the learning rate goes on along the longer curve.

    A run that was ended between its last checkpoint and its end may go on: what comes after the last epoch is left of it.
    """
    done = int(resumed.content["progress"]["epoch"])
    if done > epochs or (done == epochs and _is_closed(resumed.run_dir)):
        its = f"all {done} of its {epochs} epochs" if done == epochs else f"{done} epochs, more than epochs={epochs}"
        raise UserError(f"{resumed.path} has finished {its}; give a larger epochs= to train on.")
