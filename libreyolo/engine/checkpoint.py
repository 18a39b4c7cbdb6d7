"""Files of weights and of training state: what is in them, written atomically, read without executing code.

The layout is LibreYOLO's (schema "1.0"): nine keys make a weights file, a training checkpoint adds its state beside them.
"""

from __future__ import annotations

import contextlib
import logging
import os
import re
import shutil
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import torch
from torch import Tensor

from libreyolo.errors import UserError, printable

log = logging.getLogger(__name__)

SCHEMA_VERSION = "1.0"
# Version of LibreYOLO whose file layout this is; readers of that package look at it.
LAYOUT_VERSION = "1.6.0"
REQUIRED = ("model", "schema_version", "libreyolo_version", "model_family", "size", "task", "nc", "names", "imgsz")
MAX_CLASSES = 100_000
TEMPORARY_SUFFIX = ".tmp"
COPIED_AT_ONCE = 2**20
# A zip archive (torch.save since 1.6) or a pickle (before).
BEGINNINGS = (b"PK\x03\x04", b"\x80")


@dataclass(frozen=True)
class WeightsMeta:
    """What a weights file says of itself."""

    family: str
    size: str
    task: str
    names: dict[int, str]
    imgsz: int | list[int]
    extras: dict[str, Any]


def weights_dict(state: Mapping[str, Tensor], meta: WeightsMeta, *, copied: bool = False) -> dict[str, Any]:
    """Return the content of a weights file; tensors on the CPU, in their own types.

    copied: `state` is of the kind that `cpu_state` gives, and is taken as it is.
    The layout wants a class at least: where the task has none it says one, called "image".
    """
    names = dict(meta.names) or {0: "image"}
    sides = [meta.imgsz, meta.imgsz] if isinstance(meta.imgsz, int) else list(meta.imgsz)
    content: dict[str, Any] = {
        "model": dict(state) if copied else cpu_state(state),
        "schema_version": SCHEMA_VERSION,
        "libreyolo_version": LAYOUT_VERSION,
        "model_family": meta.family,
        "size": meta.size,
        "task": meta.task,
        "nc": len(names),
        "names": names,
        "imgsz": max(sides),
    }
    if sides[0] != sides[1]:
        content |= {"imgsz_h": sides[0], "imgsz_w": sides[1]}
    return content | {k: v for k, v in meta.extras.items() if v is not None}


def cpu_state(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the tensors detached, on the CPU, contiguous and not sharing storage with the live network."""
    return contiguous({name: t.detach().to("cpu", copy=True) for name, t in state.items()})


def contiguous(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the tensors in the layout of a file: one that is so already is the same tensor."""
    return {name: t.contiguous() for name, t in state.items()}


def write(content: Any, path: Path) -> None:
    """Save `content` so that `path` holds either the old file or the whole new one, whatever happens meanwhile.

    Raises UserError when the disk is full or the folder cannot be written; the old file is untouched then and no temporary file stays.
    """
    with _replacing(path) as stream:
        torch.save(content, stream)


def write_copy(source: Path, path: Path) -> None:
    """Make `path` a copy of the file `source`, as safely as `write` does, with the same errors."""
    with _replacing(path) as stream, source.open("rb") as original:
        shutil.copyfileobj(original, stream, COPIED_AT_ONCE)


@contextlib.contextmanager
def _replacing(path: Path) -> Iterator[IO[bytes]]:
    """Yield what to write the new `path` to; it takes the place of the old one when the block ends well."""
    if not path.name:
        raise UserError(f"{str(path)!r} names no file to write to; give one like mine.pt.")
    # Not mkstemp: its files are readable by their owner alone, whatever the umask says.
    temporary = path.with_name(f".{path.name}.{os.getpid()}{TEMPORARY_SUFFIX}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with temporary.open("wb") as stream:
            yield stream
            stream.flush()
            os.fsync(stream.fileno())
        temporary.replace(path)
    except (OSError, RuntimeError) as error:  # torch's writer makes a RuntimeError of a failed write
        reason = _why_not_written(error)
        raise UserError(f"{path} could not be written ({reason}); what was there before is untouched: make room, or choose another place.") from error
    finally:
        _remove(temporary)
    _sync_directory(path.parent)


def _why_not_written(error: BaseException) -> str:
    """Return the system's word for what went wrong: torch's writer, in closing the file, hides it behind an error of its own."""
    link: BaseException | None = error
    while link is not None:
        if isinstance(link, OSError) and link.strerror:
            return link.strerror
        link = link.__cause__ or link.__context__
    return (str(error).splitlines() or [type(error).__name__])[0]


def remove_leftovers(folder: Path) -> None:
    """Remove the temporary files of writers that were killed. For a folder that this process alone writes to."""
    for leftover in folder.glob(f".*{TEMPORARY_SUFFIX}"):
        _remove(leftover)


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
    content = {"model": _read_safetensors(path)} if path.suffix == ".safetensors" else _read_torch(path)
    if not isinstance(content, dict):
        raise UserError(f"{path} holds a {type(content).__name__}, not the dict of a weights file.")
    return content


def _read_torch(path: Path) -> Any:
    try:
        with path.open("rb") as stream:
            start = stream.read(64)
        if not start.startswith(BEGINNINGS):
            raise UserError(f"{path} is no weights file: it begins with {start[:32]!r}.")
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="Detected pickle protocol")
            return torch.load(path, map_location="cpu", weights_only=True)
    except UserError:
        raise
    except OSError as error:
        raise UserError(f"{path} could not be read ({error.strerror or error}).") from error
    except Exception as error:  # on garbage, torch's readers raise anything from IndexError to AssertionError
        refused = re.search(r"GLOBAL ([\w.]+)", str(error))
        if refused:
            raise UserError(
                f"{path} was not loaded: beside tensors and plain values it holds {refused[1]}, and loading that could run code; "
                "save the state_dict() alone where the file was made."
            ) from error
        raise UserError(f"{path} is no complete weights file: it is cut off, damaged, or was not written by torch.save.") from error


def read_meta(content: Mapping[str, Any], path: Path) -> WeightsMeta | None:
    """Return what the file says of itself, or None for a bare state dict. Raises UserError where metadata contradicts itself."""
    if "model_family" not in content:
        return None
    missing = [k for k in REQUIRED if content.get(k) is None]
    if missing:
        raise UserError(f"{path} lacks {', '.join(missing)}: it is not a complete LibreYOLO weights file.")
    if str(content["schema_version"]) != SCHEMA_VERSION:
        raise UserError(f"{path} has schema version {content['schema_version']}; this program reads {SCHEMA_VERSION}.")
    imgsz: int | list[int] = _positive(content, "imgsz", path)
    if content.get("imgsz_h") and content.get("imgsz_w"):
        imgsz = [_positive(content, "imgsz_h", path), _positive(content, "imgsz_w", path)]
    known = {*REQUIRED, "imgsz_h", "imgsz_w", *TRAINING_KEYS}
    return WeightsMeta(
        family=str(content["model_family"]),
        size=str(content["size"]),
        task=str(content["task"]),
        names=read_names(content["names"], _positive(content, "nc", path), path),
        imgsz=imgsz,
        extras={k: v for k, v in content.items() if k not in known},
    )


def _positive(content: Mapping[str, Any], key: str, path: Path) -> int:
    value = content[key]
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise UserError(f"{path} says {key}={value!r}, which must be a whole number above 0.")
    return value


def read_names(names: Any, nc: int, path: Path) -> dict[int, str]:
    """Return class names 0..nc-1 from a dict or a list; a missing one becomes class_i (with a warning), one outside is an error.

    The file may be anybody's: what a terminal would obey in a name becomes its escape.
    """
    if nc > MAX_CLASSES:
        raise UserError(f"{path} says nc={nc}, more than the {MAX_CLASSES} classes that are possible.")
    if isinstance(names, (list, tuple)):
        found = dict(enumerate(names))
    elif isinstance(names, Mapping) and all(re.fullmatch("-?[0-9]{1,9}", str(k)) for k in names):
        found = {int(k): v for k, v in names.items()}
    else:
        raise UserError(f"{path} holds class names that are neither a list nor a dict of ids to names.")
    outside = [k for k in found if not 0 <= k < nc]
    if outside:
        raise UserError(f"{path} names class {outside[0]}, but has only classes 0 to {nc - 1}.")
    missing = [i for i in range(nc) if i not in found]
    if missing:
        log.warning("%s names %d of its %d classes; the others are called class_%d and so on.", path, len(found), nc, missing[0])
    return {i: printable(str(found.get(i, f"class_{i}"))) for i in range(nc)}


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
    return {str(k).removeprefix("_orig_mod.").removeprefix("module."): v for k, v in found.items()}


# What a training checkpoint holds beside the nine keys.
TRAINING_KEYS = frozenset(
    {
        "is_ema_weights", "train_model", "ema", "ema_updates", "optimizer", "epoch", "config", "loss", "best_mAP50_95", "best_mAP50",
        "best_metric_key", "best_metric_name", "best_metric_value", "best_metric", "best_epoch", "fitness_source", "scaler", "rng_state",
        "distiller", "progress", "typed", "ranks",
    }
)  # fmt: skip


def _is_state(found: Mapping[str, Any]) -> bool:
    return bool(found) and all(isinstance(v, Tensor) for v in found.values())


def _read_safetensors(path: Path) -> dict[str, Tensor]:
    try:
        from safetensors.torch import load_file
    except ImportError as error:
        raise UserError(f"{path} needs the package safetensors: pip install safetensors.") from error
    try:
        return dict(load_file(str(path)))
    except Exception as error:  # the reader's own error type changed its name between versions
        raise UserError(f"{path} is no complete weights file: {error}.") from error


def _remove(temporary: Path) -> None:
    with contextlib.suppress(OSError):
        temporary.unlink()


def _sync_directory(folder: Path) -> None:
    """Make the rename itself durable; not every platform can."""
    with contextlib.suppress(OSError):
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
