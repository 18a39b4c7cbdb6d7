"""A picture file looked at closely, as a check does and a training does not. n pictures."""

from __future__ import annotations

import hashlib
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from libreyolo.data.decode import PictureError, decode_picture, open_picture, orientation_of

THUMB = 16  # side of the thumbnail that tells pictures apart
# Two thumbnails of one picture (saved again, made smaller) differ by rounding; a frame of the same scene differs more somewhere. Two dark
# pictures differ little as well, but not alike: hence the correlation, which means something where there is contrast.
NEAR_MEAN, NEAR_MAX, NEAR_CORRELATION, FLAT = 2.0, 20.0, 0.99, 1.0  # grey levels of 256; FLAT is a standard deviation
_ROWS = 1024  # of a distance table at a time


@dataclass(frozen=True)
class PictureFacts:
    """hw: upright. mode: Pillow's ("RGB", "CMYK", ...). orientation: EXIF, 1 is upright. num_frames: pages or frames.
    thumb: uint8 [THUMB * THUMB], grey."""

    hw: tuple[int, int]
    mode: str
    orientation: int
    num_frames: int
    thumb: NDArray[np.uint8]


def look(path: str) -> PictureFacts | str:
    """Decode a picture to its end; return its facts, or why that is not possible."""
    try:
        with open_picture(path) as image:
            mode, orientation, num_frames = image.mode, orientation_of(image), int(getattr(image, "n_frames", 1))
        picture = decode_picture(path)
        grey = Image.fromarray(picture).convert("L").resize((THUMB, THUMB), Image.Resampling.BOX)
    except PictureError as error:
        return str(error)
    except Exception as error:  # counting the frames of a damaged file raises anything
        return f"it cannot be read to its end ({str(error) or type(error).__name__})"
    return PictureFacts((picture.shape[0], picture.shape[1]), mode, orientation, num_frames, np.asarray(grey).reshape(-1))


def same_bytes(paths: Sequence[str]) -> list[list[str]]:
    """Return the groups of files with equal content, each sorted; files alone in their size are not read."""
    by_size: dict[int, list[str]] = defaultdict(list)
    for path in paths:
        by_size[Path(path).stat().st_size].append(path)
    by_digest: dict[bytes, list[str]] = defaultdict(list)
    for group in by_size.values():
        for path in group if len(group) > 1 else ():
            by_digest[hashlib.sha256(Path(path).read_bytes()).digest()].append(path)
    return [sorted(group) for group in by_digest.values() if len(group) > 1]


def near_pairs(first: NDArray[np.uint8], second: NDArray[np.uint8]) -> list[tuple[int, int]]:
    """Return (i, j) of all thumbnails, uint8 [n, THUMB * THUMB] each, that show nearly the same picture."""
    found: list[tuple[int, int]] = []
    right = second.astype(np.float32)
    squares = (right**2).sum(axis=1)
    # The sum of squares is at most the largest difference times the sum of differences, so this lets no near pair through unseen.
    limit = NEAR_MAX * NEAR_MEAN * first.shape[1]
    for start in range(0, len(first), _ROWS):
        left = first[start : start + _ROWS].astype(np.float32)
        distances = (left**2).sum(axis=1)[:, None] + squares[None] - 2 * left @ right.T
        for i, j in np.argwhere(distances <= limit + 64).tolist():  # 64: float32's rounding of such sums
            if _is_near(left[i], right[j]):
                found.append((start + i, j))
    return found


def _is_near(a: NDArray[np.float32], b: NDArray[np.float32]) -> bool:
    difference = np.abs(a - b)
    if difference.mean() > NEAR_MEAN or difference.max() > NEAR_MAX:
        return False
    if min(a.std(), b.std()) < FLAT:
        return bool(difference.max() <= NEAR_MEAN)
    return bool(np.corrcoef(a, b)[0, 1] >= NEAR_CORRELATION)
