"""Decoded pictures kept between epochs: in memory shared by all processes of the host, or on disk. n pictures.

A cache changes the time a picture takes, never its pixels: what it can't serve is decoded.
"""

from __future__ import annotations

import hashlib
import logging
import os
import shutil
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from libreyolo.data.cache_folder import cache_folder, write_atomically
from libreyolo.data.decode import Box, fit_size
from libreyolo.data.memory import IN_MEMORY, available_cpus, available_ram_bytes, shared_memory_folder
from libreyolo.data.shared_buffer import SharedBuffer, open_shared_buffer

if TYPE_CHECKING:
    from libreyolo.data.picture_set import PictureSet

logger = logging.getLogger(__name__)

Decode = Callable[[], NDArray[np.uint8]]
MaxHW = tuple[int, int] | Callable[[tuple[int, int]], tuple[int, int]] | None  # None: as large as they are
Cache = Literal[False, "auto", "ram", "disk"]
MAX_SHARE = 0.8  # of free memory or disk that a cache may take
UNASKED_SHARE = 0.2  # of free memory that cache=auto may take, which is also for who never thought about it
PIXELS_VERSION = 2  # raise it when decode.py gives other pixels for the same file
_SECONDS_BETWEEN_LINES = 5.0


class PictureCache(Protocol):
    """Serves a picture at `target_hw`, or calls `decode` for it."""

    def get(self, index: int, target_hw: tuple[int, int], decode: Decode, box: Box | None = None) -> NDArray[np.uint8]:
        """Return uint8 [h, w, 3] of its own memory, writable. box: (top, left, bottom, right) of the part that is wanted."""


class RamPictures:
    """All pictures of a set, shrunk to one `max_hw`, in one buffer that every process of the host shares. Picklable.

    targets: int64 [n, 2], the (h, w) held for each picture; another size is decoded. starts: int64 [n + 1], byte offsets.
    """

    def __init__(self, buffer: SharedBuffer, targets: NDArray[np.int64], starts: NDArray[np.int64]) -> None:
        self._buffer = buffer
        self._targets = targets
        self._starts = starts

    def get(self, index: int, target_hw: tuple[int, int], decode: Decode, box: Box | None = None) -> NDArray[np.uint8]:
        h, w = self._targets[index].tolist()
        if (h, w) != target_hw:
            return _part(decode(), box)
        held = self._buffer.array[self._starts[index] : self._starts[index + 1]].reshape(h, w, 3)
        return held.copy() if box is None else _part(held, box)

    def close(self) -> None:
        """Let go of the memory; the last process to do so gives it back. Also done when the object goes."""
        self._buffer.close()


class DiskPictures:
    """Pictures as .npy files in the cache folder, each written when it is first asked for; they outlive the run. Picklable."""

    def __init__(self, folder: Path, images: PictureSet) -> None:
        self._folder = folder
        self._paths = images.paths
        self._stamps = images.stamps

    def file(self, index: int, target_hw: tuple[int, int]) -> Path:
        """Return where the picture is kept: a name of its path, mtime, size and `target_hw`."""
        facts = (os.fsencode(self._paths[index]), *self._stamps[index].tolist(), *target_hw, PIXELS_VERSION)
        name = hashlib.sha256(repr(facts).encode()).hexdigest()[:40]
        return self._folder / name[:2] / f"{name}.npy"

    def get(self, index: int, target_hw: tuple[int, int], decode: Decode, box: Box | None = None) -> NDArray[np.uint8]:
        return _part(self._whole(index, target_hw, decode), box)

    def _whole(self, index: int, target_hw: tuple[int, int], decode: Decode) -> NDArray[np.uint8]:
        path = self.file(index, target_hw)
        try:
            picture = np.load(path, allow_pickle=False)
            if picture.shape == (*target_hw, 3) and picture.dtype == np.uint8:
                return picture
            logger.debug("%s holds another picture; made again", path)
        except FileNotFoundError:
            pass
        except Exception as error:  # a damaged header may promise any size: MemoryError
            logger.debug("%s cannot be used (%s); made again", path, error)
        picture = decode()
        try:
            write_atomically(path, lambda file: np.save(file, picture))
        except OSError as error:
            logger.debug("%s cannot be written (%s)", path, error)
        return picture


def kept_pictures(images: PictureSet, cache: Cache, max_hw: MaxHW = None) -> PictureCache | None:
    """Return what keeps the pictures of a set, shrunk to fit `max_hw`: (h, w), or a function of a picture's own. None for False and for want of room.

    auto: as ram, where the pictures take UNASKED_SHARE of the free memory at the most, and where memory can be shared without writing to a disk.
    Lacking room is what it asks about, so it warns of nothing.
    """
    if cache == "disk":
        return disk_pictures(images, max_hw)
    if cache == "ram" or (cache == "auto" and IN_MEMORY.is_dir()):
        return ram_pictures(images, max_hw, asked=cache == "ram")
    return None


def ram_pictures(images: PictureSet, max_hw: MaxHW, *, asked: bool = True) -> RamPictures | None:
    """Decode a whole set into shared memory, or return None where the room is lacking: with a warning if it was asked for, else told as a fact.

    Processes of one host that ask for the same set share one copy: the first decodes, the others wait for it and attach.
    """
    word, share = ("cache=ram", MAX_SHARE) if asked else ("cache=auto", UNASKED_SHARE)
    targets = _targets(images, max_hw)
    starts = np.concatenate([[0], np.cumsum(targets[:, 0] * targets[:, 1] * 3)]).astype(np.int64)
    digest = hashlib.sha256(repr(PIXELS_VERSION).encode() + images.paths.content() + images.stamps.tobytes() + targets.tobytes())

    def reserve(num_bytes: int) -> None:
        for free, what in (
            (available_ram_bytes(), "memory"),
            (shutil.disk_usage(shared_memory_folder()).free, str(shared_memory_folder())),
        ):
            if num_bytes > share * free:
                raise MemoryError(f"{_gib(num_bytes)} of pictures is more than {share:.0%} of the {_gib(free)} free in {what}")

    def fill(array: NDArray[np.uint8]) -> None:
        _decode_all(images, max_hw, array, starts, word)

    try:
        buffer = open_shared_buffer(digest.hexdigest()[:32], int(starts[-1]), reserve, fill)
    except (MemoryError, OSError) as error:
        if asked:
            logger.warning("cache=ram is off: %s; use cache=disk, a smaller imgsz, or more shared memory.", error)
        else:
            logger.info("cache=auto: each picture is decoded whenever it is needed (%s).", error)
        return None
    return RamPictures(buffer, targets, starts)


def disk_pictures(images: PictureSet, max_hw: MaxHW) -> DiskPictures | None:
    """Return a cache on disk, or None with a warning where the cache folder can't be written or the disk lacks room."""
    folder = cache_folder("pictures")
    targets = _targets(images, max_hw)
    num_bytes = int(targets.prod(axis=1).sum()) * 3
    try:
        folder.mkdir(parents=True, exist_ok=True)
        free = shutil.disk_usage(folder).free
    except OSError as error:
        logger.warning("cache=disk is off: %s cannot be written (%s); set LIBREYOLO_CACHE to a folder that can.", folder, error.strerror)
        return None
    if not os.access(folder, os.W_OK):
        logger.warning("cache=disk is off: %s cannot be written; set LIBREYOLO_CACHE to a folder that can.", folder)
        return None
    cache = DiskPictures(folder, images)
    num_held = sum(cache.file(index, (h, w)).exists() for index, (h, w) in enumerate(targets.tolist()))
    num_bytes = num_bytes * (len(images) - num_held) // max(1, len(images))
    if num_bytes > MAX_SHARE * free:
        logger.warning(
            "cache=disk is off: %s of pictures is more than %.0f%% of the %s free in %s.",
            _gib(num_bytes),
            100 * MAX_SHARE,
            _gib(free),
            folder,
        )
        return None
    return cache


def _targets(images: PictureSet, max_hw: MaxHW) -> NDArray[np.int64]:
    """Return int64 [n, 2]; sets have few sizes, and each is looked at once."""
    sizes, places = np.unique(images.sizes.reshape(-1, 2), axis=0, return_inverse=True)
    fitted = np.array([fit_size((h, w), _limit(max_hw, (h, w))) for h, w in sizes.tolist()], np.int64).reshape(-1, 2)
    found: NDArray[np.int64] = fitted[places.reshape(-1)]
    return found


def _limit(max_hw: MaxHW, hw: tuple[int, int]) -> tuple[int, int] | None:
    return max_hw(hw) if callable(max_hw) else max_hw


def _part(picture: NDArray[np.uint8], box: Box | None) -> NDArray[np.uint8]:
    """Return the picture itself, or a copy of a part, which keeps the rest from staying in memory."""
    if box is None:
        return picture
    top, left, bottom, right = box
    return picture[top:bottom, left:right].copy()


def _decode_all(images: PictureSet, max_hw: MaxHW, array: NDArray[np.uint8], starts: NDArray[np.int64], word: str) -> None:
    def decode(index: int) -> None:
        array[starts[index] : starts[index + 1]] = images.image(index, _limit(max_hw, images.size(index))).reshape(-1)

    told = time.monotonic()
    with ThreadPoolExecutor(available_cpus()) as pool:
        for place, _ in enumerate(pool.map(decode, range(len(images)))):
            if time.monotonic() - told > _SECONDS_BETWEEN_LINES:
                told = time.monotonic()
                logger.info("%s: %d of %d pictures decoded", word, place, len(images))
    logger.info("%s: %d pictures, %s in shared memory", word, len(images), _gib(int(starts[-1])))


def _gib(num_bytes: int) -> str:
    return f"{num_bytes / 2**30:.2f} GiB"
