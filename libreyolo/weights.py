"""From a name or a file to a network: find it, tell what it is, and take every tensor that fits."""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from libreyolo.engine import checkpoint
from libreyolo.errors import UserError, nearest
from libreyolo.interfaces.family import FILE_SUFFIX, Family
from libreyolo.schema import families, model_names

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Weights:
    """A weights file, read and understood.

    options: what `network.build` needs beside size and class count, read from the tensors (the width of a class tower, say).
    """

    path: Path
    family: Family
    size: str
    names: dict[int, str]
    imgsz: int | list[int]
    state: dict[str, Tensor]
    options: dict[str, Any]
    extras: dict[str, Any]
    content: dict[str, Any]


def find(name: str, cwd: Path) -> Path:
    """Return the file behind a path or a published name, fetching the latter when it is on no disk.

    Looked up: the path itself (relative to `cwd`), `weights/` below `cwd`; then the published file is fetched into `weights/`.
    """
    path = Path(name).expanduser()
    places = [path if path.is_absolute() else cwd / path]
    if path.name == name:
        places.append(cwd / "weights" / name)
    for place in places:
        if place.exists():
            return place
    published = parse_published(path.name)
    if published is None or path.name != name:
        close = nearest(path.name, [f.published_name(s) for f, s in model_names().values()])
        raise UserError(f"{name} was not found; looked at {' and '.join(str(p) for p in places)}.{close}")
    family, size = published
    return _fetch(family.published_name(size), cwd / "weights")


def parse_published(name: str) -> tuple[Family, str] | None:
    """Return family and size of a published file name ("LibreYOLO9s.pt", case-insensitive), or None."""
    for family in families().values():
        pattern = rf"{re.escape(family.prefix)}({'|'.join(map(re.escape, family.sizes))}){FILE_SUFFIX[family.task]}(-[a-z0-9]+)?\.pt"
        match = re.fullmatch(pattern, name, flags=re.IGNORECASE)
        if match:
            return family, match[1].lower()
    return None


def _fetch(name: str, folder: Path) -> Path:
    stem = name.removesuffix(".pt")
    advice = f"Fetch it on a machine with a network (https://huggingface.co/LibreYOLO/{stem}) and put it at {folder / name}."
    try:
        from huggingface_hub import hf_hub_download

        log.info("%s is not on disk: fetching LibreYOLO/%s from the Hugging Face hub.", name, stem)
        return Path(hf_hub_download(repo_id=f"LibreYOLO/{stem}", filename=name, local_dir=folder))
    except Exception as error:  # the hub's client has many; each means the same to the user
        reason = str(error).strip().splitlines()[0][:200] if str(error).strip() else type(error).__name__
        raise UserError(f"{name} is not on disk and could not be fetched ({type(error).__name__}: {reason}). {advice}") from error


def load(path: Path) -> Weights:
    """Read a weights file and tell its family, size and classes from metadata, else from tensors and file name. Raises UserError."""
    content = checkpoint.read(path)
    state = checkpoint.state_of(content, path)
    meta = checkpoint.read_meta(content, path)
    if meta is not None:
        if meta.family not in families():
            raise UserError(f"{path} is a {meta.family} file, a family that this program does not train.{nearest(meta.family, families())}")
        found = families()[meta.family]
        if not found.network.accepts(state):
            raise UserError(f"{path} says {meta.family}, but its tensors are not those of that family.")
    else:
        found = _family_of(state, path)
    seen = found.network.infer(state)
    size = str(meta.size if meta else seen["size"])
    if size not in found.sizes:
        raise UserError(f"{path} says size {size}, which {found.name} does not have: {', '.join(found.sizes)}.")
    names = meta.names if meta else {i: f"class_{i}" for i in range(seen["nc"])}
    if len(names) != seen["nc"]:
        raise UserError(f"{path} names {len(names)} classes, but its class layers have {seen['nc']}.")
    default = found.sizes[size]
    imgsz = meta.imgsz if meta else (default if isinstance(default, int) else list(default))
    options = {k: v for k, v in seen.items() if k not in ("size", "nc")}
    return Weights(path, found, size, names, imgsz, state, options, meta.extras if meta else {}, content)


def _family_of(state: Mapping[str, Tensor], path: Path) -> Family:
    """Tell the family of a bare state dict; a telling file name decides between families with the same tensors."""
    able = [f for f in families().values() if f.network.accepts(state)]
    named = parse_published(path.name)
    if named and named[0] in able:
        return named[0]
    if len(able) == 1:
        return able[0]
    if not able:
        raise UserError(f"{path} has no metadata, and its tensors belong to no family that this program knows.")
    raise UserError(f"{path} has no metadata and fits {', '.join(f.name for f in able)}; rename it like {able[0].published_name('s')} to say which.")


def transfer(net: nn.Module, state: Mapping[str, Tensor]) -> tuple[int, int]:
    """Copy every tensor whose name and shape fit into `net`; the others keep their fresh values. Return (taken, wanted)."""
    own = net.state_dict()
    fitting = {k: v for k, v in state.items() if k in own and own[k].shape == v.shape}
    net.load_state_dict(fitting, strict=False)
    return len(fitting), len(own)


def load_whole(net: nn.Module, state: Mapping[str, Tensor], path: Path) -> None:
    """Load a state that must fit completely, tensors of training-only branches left aside. Raises UserError naming the first that does not."""
    own = net.state_dict()
    for name, tensor in own.items():
        if name not in state:
            raise UserError(f"{path} lacks the tensor {name}: it is not a complete network of this size.")
        if state[name].shape != tensor.shape:
            raise UserError(f"{path}: tensor {name} has shape {list(state[name].shape)}, this network needs {list(tensor.shape)}.")
    net.load_state_dict({k: state[k] for k in own})
