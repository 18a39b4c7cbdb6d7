"""Pictures from anywhere to predictions: the path that `predict` and `python -m libreyolo predict` walk."""

from __future__ import annotations

import glob
import logging
import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image

from libreyolo.assembly.parts import Predictor
from libreyolo.data.dataset_yaml import absolute, exists
from libreyolo.data.decode import PICTURE_SUFFIXES, UNREAD_SUFFIXES, PictureError, decode_picture, picture_to_rgb
from libreyolo.data.sources import Listing
from libreyolo.errors import UserError, printable
from libreyolo.results import Result

logger = logging.getLogger(__name__)

_ADDRESS = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+://")
Source = str | Path | np.ndarray | Image.Image


def pictures(source: Source | Sequence[Source], cwd: Path) -> Iterator[tuple[Path | None, np.ndarray]]:
    """Yield (path or None, uint8 [H, W, 3] RGB) for a file, a folder, a glob, a PIL picture, an RGB array, or a list of those.

    A file that is no usable picture is skipped with a warning where a folder or a glob found it. Raises UserError where it was named by itself, and
    for a source that is not there, holds no usable picture, or is an array of another shape or type.
    """
    if isinstance(source, (list, tuple)):
        for one in source:
            yield from pictures(one, cwd)
    elif isinstance(source, Image.Image):
        yield None, _rgb(source)
    elif isinstance(source, np.ndarray):
        yield None, _checked_array(source)
    elif isinstance(source, (str, Path)):
        yield from _from_disk(str(source), cwd)
    else:
        raise UserError(f"predict does not know what to do with a {type(source).__name__}: give a path, a folder, a PIL picture or an RGB array.")


def _rgb(picture: Image.Image) -> np.ndarray:
    if 0 in picture.size:
        raise UserError(f"This PIL picture can't be used: it is {picture.width}x{picture.height} and has no pixel.")
    try:
        return picture_to_rgb(picture)
    except PictureError as error:
        raise UserError(f"This PIL picture can't be used: {error}.") from error


def _from_disk(source: str, cwd: Path) -> Iterator[tuple[Path, np.ndarray]]:
    if not source.strip() or _ADDRESS.match(source):
        raise UserError(f"{source!r} is no path: predict reads picture files, folders and patterns; download a picture before it is predicted on.")
    path = absolute(source, cwd)
    is_there = exists(path)  # False for a name that is too long
    if is_there and path.is_file():
        try:
            yield path, decode_picture(path)
        except PictureError as error:
            raise UserError(f"{path} is no usable picture: {error}.") from error
        return
    is_folder = is_there and path.is_dir()
    found = _in_folder(path) if is_folder else _matches(source, cwd)
    if found.unread:
        logger.warning("%s: %s.", printable(source), printable(found.unread_note()))
    if not found.pictures:
        note = f" ({found.unread_note()})" if found.unread else ""
        if is_folder:
            deeper = f"; for those in its folders give a pattern: {path}/**/*.jpg" if any(place.is_dir() for place in path.iterdir()) else ""
            raise UserError(f"{path} holds no picture ({', '.join(sorted(PICTURE_SUFFIXES))}){note}{deeper}.")
        raise UserError(f"{source}: no such picture, folder or pattern (looked at {path}){note}.")
    for picture in found.pictures:
        try:
            decoded = decode_picture(picture)
        except PictureError as error:
            found.skipped.append((picture, str(error)))
            logger.warning("%s is skipped: %s.", printable(picture), printable(str(error)))
        else:
            yield Path(picture), decoded
    if len(found.skipped) == len(found.pictures):
        raise UserError(f"{source}: none of its {len(found.pictures)} pictures is usable (for example {': '.join(found.skipped[0])}).")


def _in_folder(folder: Path) -> Listing:
    """Return the pictures directly in a folder; hidden files are none."""
    try:
        return _listing(path for path in folder.iterdir() if not path.name.startswith("."))
    except PermissionError as error:
        raise UserError(f"{folder} cannot be read ({error.strerror}); correct its permissions.") from error


def _matches(pattern: str, cwd: Path) -> Listing:
    """Return the pictures that a glob matches. The launch directory is no pattern, whatever its name."""
    whole = Path(pattern).expanduser()
    return _listing(cwd / match for match in glob.glob(str(whole), root_dir=cwd, recursive=True))  # noqa: PTH207 - Path.glob takes no absolute pattern


def _listing(paths: Iterable[Path]) -> Listing:
    files = sorted(path for path in paths if path.is_file() or not path.exists())  # a link to nothing is told, a pipe would be waited for
    return Listing(
        [str(path) for path in files if path.suffix.lower() in PICTURE_SUFFIXES], [], [str(p) for p in files if p.suffix.lower() in UNREAD_SUFFIXES]
    )


def _checked_array(array: np.ndarray) -> np.ndarray:
    if array.ndim != 3 or array.shape[2] != 3 or array.dtype != np.uint8 or 0 in array.shape:
        raise UserError(f"predict takes arrays of uint8 with shape [H, W, 3] in RGB order, not {array.dtype} {list(array.shape)}.")
    return array


@torch.no_grad()
def run(
    net: torch.nn.Module, predictor: Predictor, source: Any, *, cwd: Path, hw: tuple[int, int], batch: int, device: torch.device
) -> Iterator[Result]:
    """Yield the result of every picture of `source`, `batch` at a time. Raises UserError as `pictures` does."""
    net = net.to(device).eval()
    waiting: list[tuple[Path | None, np.ndarray]] = []
    for item in pictures(source, cwd):
        waiting.append(item)
        if len(waiting) == batch:
            yield from _predict(net, predictor, waiting, hw, device)
            waiting = []
    if waiting:
        yield from _predict(net, predictor, waiting, hw, device)


def _predict(
    net: torch.nn.Module, predictor: Predictor, items: list[tuple[Path | None, np.ndarray]], hw: tuple[int, int], device: torch.device
) -> Iterator[Result]:
    prepared = predictor.prepare([picture for _, picture in items], hw).to(device)
    predictions = predictor.task.decode(predictor.task.forward(net, prepared), prepared)
    for (path, picture), prediction in zip(items, predictions, strict=True):
        yield predictor.result(picture, prediction, path)
