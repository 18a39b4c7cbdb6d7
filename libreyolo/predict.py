"""Pictures from anywhere to predictions: the path that `predict` and `python -m libreyolo predict` walk."""

from __future__ import annotations

import glob
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image

from libreyolo.assembly.parts import Predictor
from libreyolo.data.decode import PICTURE_SUFFIXES, PictureError, decode_picture, picture_to_rgb
from libreyolo.errors import UserError
from libreyolo.results import Result

Source = str | Path | np.ndarray | Image.Image


def pictures(source: Source | Sequence[Source], cwd: Path) -> Iterator[tuple[Path | None, np.ndarray]]:
    """Yield (path or None, uint8 [H, W, 3] RGB) for a file, a folder, a glob, a PIL picture, an RGB array, or a list of those.

    Raises UserError for a source that is not there, holds no picture, or is an array of another shape or type.
    """
    if isinstance(source, (list, tuple)):
        for one in source:
            yield from pictures(one, cwd)
    elif isinstance(source, Image.Image):
        yield None, _rgb(source)
    elif isinstance(source, np.ndarray):
        yield None, _checked_array(source)
    elif isinstance(source, (str, Path)):
        for path in _files(str(source), cwd):
            yield path, _decoded(path)
    else:
        raise UserError(f"predict does not know what to do with a {type(source).__name__}: give a path, a folder, a PIL picture or an RGB array.")


def _rgb(picture: Image.Image) -> np.ndarray:
    try:
        return picture_to_rgb(picture)
    except PictureError as error:
        raise UserError(f"This PIL picture can't be used: {error}.") from error


def _decoded(path: Path) -> np.ndarray:
    try:
        return decode_picture(path)
    except PictureError as error:
        raise UserError(f"{path} is no usable picture: {error}.") from error


def _files(source: str, cwd: Path) -> list[Path]:
    path = Path(source).expanduser()
    path = path if path.is_absolute() else cwd / path
    if path.is_file():
        return [path]
    if path.is_dir():
        found = sorted(p for p in path.iterdir() if p.suffix.lower() in PICTURE_SUFFIXES)
        if not found:
            raise UserError(f"{path} holds no picture ({', '.join(sorted(PICTURE_SUFFIXES))}).")
        return found
    # Path.glob takes no absolute pattern.
    matches = glob.glob(str(path), recursive=True)  # noqa: PTH207
    found = sorted(Path(p) for p in matches if Path(p).suffix.lower() in PICTURE_SUFFIXES)
    if not found:
        raise UserError(f"{source}: no such picture, folder or pattern (looked at {path}).")
    return found


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
