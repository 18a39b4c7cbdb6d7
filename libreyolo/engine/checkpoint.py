"""Files of weights and of training state: what is in them, written atomically, read without executing code.

The layout is LibreYOLO's (schema "1.0"): nine keys make a weights file, a training checkpoint adds its state beside them.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import tempfile
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from libreyolo.errors import UserError

SCHEMA_VERSION = "1.0"
# Version of LibreYOLO whose file layout this is; readers of that package look at it.
LAYOUT_VERSION = "1.6.0"
REQUIRED = ("model", "schema_version", "libreyolo_version", "model_family", "size", "task", "nc", "names", "imgsz")


@dataclass(frozen=True)
class WeightsMeta:
    """What a weights file says of itself."""

    family: str
    size: str
    task: str
    names: dict[int, str]
    imgsz: int | list[int]
    extras: dict[str, Any]


def weights_dict(state: Mapping[str, Tensor], meta: WeightsMeta) -> dict[str, Any]:
    """Return the content of a weights file; tensors on the CPU, in their own types."""
    sides = [meta.imgsz, meta.imgsz] if isinstance(meta.imgsz, int) else list(meta.imgsz)
    content: dict[str, Any] = {
        "model": cpu_state(state),
        "schema_version": SCHEMA_VERSION,
        "libreyolo_version": LAYOUT_VERSION,
        "model_family": meta.family,
        "size": meta.size,
        "task": meta.task,
        "nc": len(meta.names),
        "names": dict(meta.names),
        "imgsz": max(sides),
    }
    if sides[0] != sides[1]:
        content |= {"imgsz_h": sides[0], "imgsz_w": sides[1]}
    return content | {k: v for k, v in meta.extras.items() if v is not None}


def cpu_state(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the tensors detached, on the CPU, contiguous and not sharing storage with the live network."""
    return {name: t.detach().to("cpu", copy=True).contiguous() for name, t in state.items()}


def write(content: Any, path: Path) -> None:
    """Save `content` so that `path` holds either the old file or the whole new one, whatever happens meanwhile.

    Raises UserError when the disk is full or the folder cannot be written; the old file is untouched then and no temporary file stays.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, temporary = tempfile.mkstemp(prefix=f".{path.name}.", suffix=".tmp", dir=path.parent)
    try:
        with os.fdopen(handle, "wb") as stream:
            torch.save(content, stream)
            stream.flush()
            os.fsync(stream.fileno())
        Path(temporary).replace(path)
    except (OSError, RuntimeError) as error:
        _remove(temporary)
        raise UserError(f"{path} could not be written ({error}); the file that was there before is untouched. Free some space and resume.") from error
    except BaseException:
        _remove(temporary)
        raise
    _sync_directory(path.parent)


def read(path: Path) -> dict[str, Any]:
    """Return the content of a weights file or checkpoint on the CPU. Nothing in the file is executed.

    Raises UserError: missing, a folder, empty, not a torch file, truncated, or holding more than tensors and plain values.
    """
    if not path.exists():
        raise UserError(f"{path} does not exist.")
    if path.is_dir():
        raise UserError(f"{path} is a folder, not a weights file; name the .pt file in it.")
    if path.stat().st_size == 0:
        raise UserError(f"{path} is empty: it was never written to the end.")
    if path.suffix == ".safetensors":
        return {"model": _read_safetensors(path)}
    try:
        content = torch.load(path, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError as error:
        reason = str(error).splitlines()[0]
        raise UserError(
            f"{path} was not loaded: it holds objects other than tensors and plain values, and loading those could run code ({reason})."
        ) from error
    except (RuntimeError, EOFError, OSError, ValueError, KeyError, zipfile.BadZipFile) as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise UserError(f"{path} is not a complete weights file ({reason}).") from error
    if not isinstance(content, dict):
        raise UserError(f"{path} holds a {type(content).__name__}, not the dict of a weights file.")
    return content


def read_meta(content: Mapping[str, Any], path: Path) -> WeightsMeta | None:
    """Return what the file says of itself, or None for a bare state dict. Raises UserError where metadata contradicts itself."""
    if "model_family" not in content:
        return None
    missing = [k for k in REQUIRED if content.get(k) is None]
    if missing:
        raise UserError(f"{path} lacks {', '.join(missing)}: it is not a complete LibreYOLO weights file.")
    if str(content["schema_version"]) != SCHEMA_VERSION:
        raise UserError(f"{path} has schema version {content['schema_version']}; this program reads {SCHEMA_VERSION}.")
    imgsz: int | list[int] = int(content["imgsz"])
    if content.get("imgsz_h") and content.get("imgsz_w"):
        imgsz = [int(content["imgsz_h"]), int(content["imgsz_w"])]
    known = {*REQUIRED, "imgsz_h", "imgsz_w", *TRAINING_KEYS}
    return WeightsMeta(
        family=str(content["model_family"]),
        size=str(content["size"]),
        task=str(content["task"]),
        names=read_names(content["names"], int(content["nc"]), path),
        imgsz=imgsz,
        extras={k: v for k, v in content.items() if k not in known},
    )


def read_names(names: Any, nc: int, path: Path) -> dict[int, str]:
    """Return class names 0..nc-1 from a dict or a list; a missing one becomes class_i, one outside is an error."""
    found = dict(enumerate(names)) if isinstance(names, (list, tuple)) else {int(k): str(v) for k, v in dict(names).items()}
    outside = [k for k in found if not 0 <= k < nc]
    if outside:
        raise UserError(f"{path} names class {outside[0]}, but has only classes 0 to {nc - 1}.")
    return {i: str(found.get(i, f"class_{i}")) for i in range(nc)}


def state_of(content: Mapping[str, Any], path: Path) -> dict[str, Tensor]:
    """Return the state dict in a file, unwrapping the containers that foreign files use."""
    found: Any = content
    for wrapper in ("ema", "module", "ema_net", "net", "model", "state_dict"):
        if isinstance(found, Mapping) and isinstance(found.get(wrapper), Mapping) and not _is_state(found):
            if wrapper == "ema" and "model_family" in content:
                continue  # a checkpoint of ours: `model` is what inference reads
            found = found[wrapper]
    if not isinstance(found, Mapping) or not _is_state(found):
        raise UserError(f"{path} holds no state dict (names to tensors).")
    return {str(k).removeprefix("module."): v for k, v in found.items()}


# What a training checkpoint holds beside the nine keys.
TRAINING_KEYS = frozenset(
    {
        "is_ema_weights", "train_model", "ema", "ema_updates", "optimizer", "epoch", "config", "loss", "best_mAP50_95", "best_mAP50",
        "best_metric_key", "best_metric_name", "best_metric_value", "best_metric", "best_epoch", "fitness_source", "scaler", "rng_state",
        "distiller", "progress", "typed",
    }
)  # fmt: skip


def _is_state(found: Mapping[str, Any]) -> bool:
    return bool(found) and all(isinstance(v, Tensor) for v in found.values())


def _read_safetensors(path: Path) -> dict[str, Tensor]:
    try:
        from safetensors.torch import load_file
    except ImportError as error:
        raise UserError(f"{path} needs the package safetensors: pip install safetensors.") from error
    return dict(load_file(str(path)))


def _remove(temporary: str) -> None:
    with contextlib.suppress(OSError):
        Path(temporary).unlink()


def _sync_directory(folder: Path) -> None:
    """Make the rename itself durable; not every platform can."""
    with contextlib.suppress(OSError):
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
