"""A finished scan on disk: one .npz a split of a data set, with a JSON header; plain arrays, never unpickled.

Whatever is wrong with a cached file (cut off, of another set, of another version, not writable) the scan is simply made again.
"""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from libreyolo.data.cache_folder import cache_folder, write_atomically
from libreyolo.data.scan_result import Scan, SplitReport

logger = logging.getLogger(__name__)

# name: (dtype, number of dimensions)
_ARRAYS: dict[str, tuple[type, int]] = {
    "kept": (np.int64, 1),
    "sizes": (np.int32, 2),
    "boxes": (np.float32, 2),
    "labels": (np.int64, 1),
    "offsets": (np.int64, 1),
    "stamps": (np.int64, 2),
}


def cache_file(cache_name: str) -> Path:
    """Return where the scan called `cache_name` (any text that tells the split of the set) is kept."""
    return cache_folder("scan") / f"{hashlib.sha256(cache_name.encode(errors='surrogateescape')).hexdigest()[:32]}.npz"


def load(cache_name: str, key: str) -> Scan | None:
    """Return the cached scan of a detection set if it was saved under exactly this `key`, else None."""
    stored = load_arrays(cache_name, key, _ARRAYS)
    if stored is None:
        return None
    arrays, report = stored
    try:
        report["skipped"] = [(str(file), str(reason)) for file, reason in report["skipped"]]
        scan = Scan(**arrays, report=SplitReport(**report))
        if len(scan.offsets) != len(scan.kept) + 1 or scan.offsets[-1] != len(scan.labels) or len(scan.boxes) != len(scan.labels):
            raise ValueError("its arrays do not fit together")
    except (ValueError, KeyError, TypeError, IndexError) as error:
        logger.debug("%s cannot be used (%s); scanning again", cache_file(cache_name), error)
        return None
    return scan


def save(cache_name: str, key: str, scan: Scan) -> None:
    """Keep the scan of a detection set under `key`; a folder that can't be written is no error."""
    save_arrays(cache_name, key, {name: getattr(scan, name) for name in _ARRAYS}, asdict(scan.report))


def load_arrays(cache_name: str, key: str, kinds: Mapping[str, tuple[type, int]]) -> tuple[dict[str, np.ndarray], dict[str, Any]] | None:
    """Return the arrays (of these dtypes and numbers of dimensions) and the report saved under exactly this `key`, else None."""
    path = cache_file(cache_name)
    try:
        with np.load(path, allow_pickle=False) as stored:
            header = json.loads(stored["header"].tobytes())
            if header["key"] != key:
                logger.debug("%s is of another state of the set; scanning again", path)
                return None
            return {name: _checked(name, stored[name], kind) for name, kind in kinds.items()}, dict(header["report"])
    except Exception as error:  # NumPy and zipfile raise almost anything on a damaged archive, MemoryError too
        logger.debug("%s cannot be used (%s); scanning again", path, error)
        return None


def save_arrays(cache_name: str, key: str, arrays: Mapping[str, np.ndarray], report: Mapping[str, Any]) -> None:
    """Keep arrays and a report (builtins that JSON knows) under `key`; a folder that can't be written is no error."""
    header = json.dumps({"key": key, "report": report}).encode()
    path = cache_file(cache_name)
    given: dict[str, Any] = dict(arrays)
    try:
        write_atomically(path, lambda file: np.savez(file, header=np.frombuffer(header, np.uint8), **given))
    except OSError as error:
        logger.debug("%s cannot be written (%s); the next start scans again", path, error)


def _checked(name: str, array: np.ndarray, kind: tuple[type, int]) -> np.ndarray:
    if array.dtype != kind[0] or array.ndim != kind[1]:
        raise ValueError(f"{name} is {array.dtype} with {array.ndim} dimensions")
    return array
