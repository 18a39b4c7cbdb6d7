"""From a name or a file to a network: find it, tell what it is, and take every tensor that fits."""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor, nn
from torch.hub import download_url_to_file

from libreyolo.engine import checkpoint
from libreyolo.engine.refusal import not_finite_tensor
from libreyolo.errors import UserError, nearest
from libreyolo.interfaces.family import FILE_SUFFIX, Family
from libreyolo.record.atomic import write_bytes
from libreyolo.schema import families, model_names

log = logging.getLogger(__name__)

# Keys of a training that also decide what a validation of its weights gives, beside the input size, which the file names itself.
JUDGED_BY = (
    *("data", "data_dir", "single_cls", "classes", "max_det", "eval_max_det", "amp", "amp_dtype"),
    *("conf_thresholds", "nms_radii", "distance_tolerance"),
)


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

    Looked up: the path itself (relative to `cwd`), `weights/` below `cwd`, in both also the published name in its usual capitals; then the
    published file is fetched into `weights/`. Raises UserError.
    """
    path = Path(name).expanduser()
    if "://" in name:
        raise UserError(f"{name} is an address, not a file: download it, and give the path of the file.")
    if path.name != name:
        place = path if path.is_absolute() else cwd / path
        if place.exists():
            return place
        raise UserError(f"{name} was not found; looked at {place}.")
    published = parse_published(name) or parse_published(f"{name}.pt")
    names = [name] if published is None else list(dict.fromkeys((name, published[2])))
    places = [folder / n for folder in (cwd, cwd / "weights") for n in names]
    for place in places:
        if place.exists() and not (published and place.is_dir()):
            return place
    if published is None:
        close = nearest(name, [f.published_name(s) for f, s in model_names().values()])
        raise UserError(f"{name} was not found; looked at {' and '.join(str(p) for p in places)}.{close}")
    if not published[0].published:
        raise UserError(f"{name} was not found (looked at {' and '.join(map(str, places))}), and no weights of {published[0].name} are published.")
    return _fetch(published[2], cwd / "weights")


def parse_published(name: str) -> tuple[Family, str, str] | None:
    """Return family, size and the name in its usual capitals of a published file ("libreyolo9s.pt" in any case), or None."""
    for family in families().values():
        pattern = rf"{re.escape(family.prefix)}({'|'.join(map(re.escape, family.sizes))}){FILE_SUFFIX[family.task]}(-[a-z0-9]+)?\.pt"
        match = re.fullmatch(pattern, name, flags=re.IGNORECASE)
        if match:
            size, variant = match[1].lower(), (match[2] or "").lower()
            return family, size, f"{family.published_name(size).removesuffix('.pt')}{variant}.pt"
    return None


def _fetch(name: str, folder: Path) -> Path:
    """Fetch a published file into `folder`. The hub's own cache comes first, so that the ranks of a job download once."""
    stem, target = name.removesuffix(".pt"), folder / name
    try:
        from huggingface_hub import hf_hub_download

        # A warning, because it takes a while and no run's log is open yet.
        log.warning("%s is not on disk: fetching LibreYOLO/%s from the Hugging Face hub.", name, stem)
        with _quiet("huggingface_hub"):  # it tells each of its tries; the sentence below tells what came of them
            content = Path(hf_hub_download(repo_id=f"LibreYOLO/{stem}", filename=name)).read_bytes()
    except Exception as error:  # the hub's client has many; each means the same to the user
        reason = type(error).__name__ + ": " + str(error).strip().split("\n")[0].split(". ")[0].rstrip(".")[:150]
        raise UserError(
            f"{name} is not on disk and could not be fetched ({reason}): where there is a network, download it from "
            f"https://huggingface.co/LibreYOLO/{stem}, and put it at {target}."
        ) from error
    write_bytes(target, content)
    return target


@contextmanager
def _quiet(package: str) -> Iterator[None]:
    """Let a package's logger say errors alone; afterwards it is as it was."""
    logger = logging.getLogger(package)
    before = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(before)


def pretrained(family: Family, size: str, wish: Any, cwd: Path) -> tuple[dict[str, Tensor], dict[str, Any], str]:
    """Return the state that `pretrained=wish` means, options for `network.build`, and a name for the log. Raises UserError.

    True: the ImageNet weights of the backbone where the family has such, else the published weights of the whole network. A path or name: that
    file, of a backbone or a whole network of this family.
    """
    published = wish is True and not family.backbones
    if wish is True and family.backbones:
        path = _fetch_backbone(family.backbones[size], f"{family.name}{size}", cwd)
    else:
        path = find(family.published_name(size) if published else str(wish), cwd)
    if family.backbones:
        state = checkpoint.state_of(checkpoint.read(path), path)
        found = None if family.accepts(state) else family.network.from_backbone(state, size)
        if found is not None:
            return found, {}, f"the backbone file {path}"
        if wish is True:
            raise UserError(f"{path} does not hold the backbone of {family.name}{size}; remove it, and it is fetched anew.")
    file = load(path)
    if file.family.name != family.name:
        raise UserError(f"pretrained={wish} is a {file.family.name} file; this model is {family.name}.")
    return file.state, file.options, str(path)


def _fetch_backbone(address: str, model: str, cwd: Path) -> Path:
    """Return a backbone's file in `weights/` below `cwd`, fetched where it is not there."""
    name = address.rpartition("/")[2]
    target = cwd / "weights" / name
    if target.exists():
        return target
    log.warning("%s is not on disk: fetching %s.", name, address)
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        download_url_to_file(address, str(target), progress=False)
    except Exception as error:  # from a missing network to a full disk; each means the same to the user
        reason = type(error).__name__ + ": " + str(error).strip().split("\n")[0].rstrip(".")[:150]
        raise UserError(
            f"The backbone of {model} could not be fetched ({reason}): where there is a network, download {address} and put it at {target}, "
            "or train without pretrained=."
        ) from error
    return target


def load(path: Path) -> Weights:
    """Read a weights file and tell its family, size and classes from metadata, else from tensors and file name. Raises UserError."""
    content = checkpoint.read(path)
    state = checkpoint.state_of(content, path)
    meta = checkpoint.read_meta(content, path)
    if meta is not None:
        if meta.family not in families():
            raise UserError(f"{path} is a {meta.family} file, a family that this program does not train.{nearest(meta.family, families())}")
        found = families()[meta.family]
    else:
        found = _family_of(state, path)
    try:
        seen = found.network.infer(state)
    except UserError as error:
        raise UserError(f"{path} says {found.name}, but its tensors are not those of that family: {error}") from error
    size = str(meta.size if meta else seen["size"])
    if size not in found.sizes:
        raise UserError(f"{path} says size {size}, which {found.name} does not have: {', '.join(found.sizes)}.")
    if size != seen["size"]:
        raise UserError(f"{path} says size {size}, but its tensors are those of {found.name}{seen['size']}.")
    names = meta.names if meta and seen["nc"] else {i: f"class_{i}" for i in range(seen["nc"])}
    if len(names) != seen["nc"]:
        raise UserError(f"{path} names {len(names)} classes, but its class layers have {seen['nc']}.")
    default = found.sizes[size]
    imgsz = meta.imgsz if meta else (default if isinstance(default, int) else list(default))
    options = {k: v for k, v in seen.items() if k not in ("size", "nc")}
    return Weights(path, found, size, names, imgsz, state, options, meta.extras if meta else {}, content)


def evaluation_arguments(content: Mapping[str, Any]) -> dict[str, Any]:
    """Return how the training that wrote a checkpoint judged it, as arguments, the input size apart; {} for a plain weights file."""
    config = content.get("config")
    if not isinstance(config, Mapping):
        return {}
    return {k: config[k] for k in JUDGED_BY if config.get(k) is not None}


def _family_of(state: Mapping[str, Tensor], path: Path) -> Family:
    """Tell the family of a bare state dict; a telling file name decides between families with the same tensors."""
    able = [f for f in families().values() if f.accepts(state)]
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
    """Load a state that must fit completely, tensors of training-only branches left aside. Raises UserError naming the first that does not, or
    that is not finite.

    BatchNorm's step counters, which no evaluation reads, may be missing: old files left them out.
    """
    own = {k: v for k, v in net.state_dict().items() if k in state or not k.endswith("num_batches_tracked")}
    for name, tensor in own.items():
        if name not in state:
            raise UserError(f"{path} lacks the tensor {name}: it is not a complete network of this size.")
        if state[name].shape != tensor.shape:
            raise UserError(f"{path}: tensor {name} has shape {list(state[name].shape)}, this network needs {list(tensor.shape)}.")
    taken = {k: state[k] for k in own}
    refuse_infinite(taken, str(path))
    net.load_state_dict(taken, strict=False)


def refuse_infinite(state: Mapping[str, Tensor], origin: str) -> None:
    """Raise UserError where a tensor that a network is to take holds an infinity or NaN: no prediction and no training comes of it."""
    broken = not_finite_tensor(state)
    if broken:
        raise UserError(f"{origin} holds numbers that are not finite (tensor {broken}), as a training that failed leaves them: use another file.")
